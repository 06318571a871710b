// sequence_parallel: an all-reduce becomes a reduce-scatter and an all-gather, and the operators
// between the two run on shards (Korthikanti et al., arXiv:2205.05198).
//
//     a = R.dist.all_reduce(p, ..)                     a = R.dist.reduce_scatter(p, ..)  # "S[1]"
//     s = R.add(r, a)                                  s = R.add(r, a)        # r: "S[1]", too
//     n = R.nn.rms_norm(s, g, axes=[2])            ->  n = R.nn.rms_norm(s, g, axes=[2])
//     q = R.matmul(n, w)                               m = R.dist.all_gather(n, ..)
//                                                      q = R.matmul(m, w)
//
// All-reduces of one block over the same axes, of values of one shape and sharding, are taken
// together, so that a residual stream stays sharded from layer to layer. Every dimension is tried;
// the one that sends least is taken, of equals the one that leaves most to be computed on shards,
// of equals the first. optimize/program/shard_region.h says what lies between.
#include <map>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "dialect/operators/collective.h"
#include "ir/build.h"
#include "optimize/program/chain.h"
#include "optimize/program/shard_region.h"

namespace distir::optimize {

namespace {

using mesh::CollectiveKind;
using mesh::Sharding;

struct StepGroup {
  Resharding step;
  std::vector<EditableBinding*> seeds;
};

/*! \brief The all-reduces of a function, those that can be scattered alike together. */
std::vector<StepGroup> CollectGroups(const std::vector<EditableBinding*>& bindings,
                                     dialect::MeshTable* meshes) {
  std::vector<StepGroup> groups;
  std::map<std::tuple<const Block*, const ffi::Object*, std::string>, size_t> known;
  for (EditableBinding* binding : bindings) {
    if (binding->dropped || binding->block == nullptr || binding->cast.defined()) continue;
    auto step = ReadResharding(binding->value, meshes);
    if (!step || step->kind != CollectiveKind::kAllReduce) continue;
    auto type = ir::DTensorType::Cast(binding->value.ty());
    std::string text = mesh::ToString(step->source, meshes->Root(step->root)) +
                       mesh::ToString(step->target, meshes->Root(step->root)) +
                       ir::Print(type.tensor_ty()) + std::to_string(step->root);
    auto [found, is_new] = known.emplace(
        std::make_tuple(binding->block, type.device_mesh().get(), text), groups.size());
    if (is_new) groups.push_back({*step, {}});
    groups[found->second].seeds.push_back(binding);
  }
  return groups;
}

class SequenceParallelism {
 public:
  SequenceParallelism(EditableFunction* editable, Program* program, Tally* tally)
      : editable_(*editable), program_(*program), meshes_(*program->meshes), tally_(*tally) {}

  void Run() {
    std::vector<EditableBinding*> bindings = editable_.Bindings();
    for (size_t i = 0; i < bindings.size(); ++i) order_.emplace(bindings[i], static_cast<int>(i));
    for (const StepGroup& group : CollectGroups(bindings, &meshes_)) Visit(group);
  }

 private:
  void Visit(const StepGroup& group) {
    auto type = ir::DTensorType::Cast(group.seeds[0]->value.ty()).tensor_ty();
    const double each = program_.costs->Of(group.step, meshes_.Root(group.step.root), type).bytes;
    if (each < static_cast<double>(program_.options.sequence_bytes)) {
      for (size_t i = 0; i < group.seeds.size(); ++i) tally_.Skip("sends too little");
      return;
    }
    const double now = each * static_cast<double>(group.seeds.size());
    std::unique_ptr<ShardRegion> best;
    for (size_t dim = 0; dim < group.step.target.dims.size(); ++dim) {
      auto region = std::make_unique<ShardRegion>(&editable_, &program_, group.seeds, group.step,
                                                  static_cast<int>(dim), order_);
      if (region->is_possible() && (best == nullptr || IsBetter(*region, *best)))
        best = std::move(region);
    }
    int num_scattered = 0;
    const char* why = "no dimension divides";
    if (best != nullptr && IsMore(best->bytes(), now)) {
      why = "would send more bytes";
    } else if (best != nullptr) {
      num_scattered = best->num_seeds();
      why = "needs replication at once";
      if (num_scattered > 0) Write(*best);
    }
    tally_.matched += num_scattered;
    for (size_t i = num_scattered; i < group.seeds.size(); ++i) tally_.Skip(why);
  }

  // Bytes are sums of fractions.
  static bool IsMore(double a, double b) { return a > b * (1 + 1e-9); }

  static bool IsBetter(const ShardRegion& a, const ShardRegion& b) {
    if (IsMore(a.bytes(), b.bytes()) || IsMore(b.bytes(), a.bytes())) return a.bytes() < b.bytes();
    return a.num_values() > b.num_values();
  }

  void Write(const ShardRegion& region) {
    forms_.clear();
    slices_.clear();
    std::vector<EditableBinding*> gathered;
    for (const RegionValue& value : region.values()) {
      if (!value.is_in) continue;
      ir::Expr sharded = value.is_seed ? Scatter(region, value) : Compute(region, value);
      if (ir::Call::Is(sharded))
        sharded = editable_.InsertBefore(value.binding, value.binding->var.name(), sharded);
      forms_[value.binding->var.get()] = sharded;
      if (value.outer_uses == 0) continue;
      Lead(region.root(), value.binding, sharded, value.sharded, value.whole);
      gathered.push_back(value.binding);
    }
    for (auto each = region.values().rbegin(); each != region.values().rend(); ++each)
      editable_.DropUnused(each->binding);
    for (EditableBinding* binding : gathered) {
      std::vector<EditableBinding*> users = editable_.UsersOf(binding->var);
      for (EditableBinding* user : users) FoldChain(&editable_, user, Chains::kMoving, &program_);
    }
  }

  /*! \brief Lets a binding be its sharded value, gathered again. */
  void Lead(int root, EditableBinding* binding, const ir::Expr& sharded, const Sharding& from,
            const Sharding& to) {
    auto type = ir::DTensorType::Cast(binding->value.ty());
    const planning::Plan& plan =
        program_.costs->Plan(meshes_.Root(root), from, to, type.tensor_ty());
    editable_.SetValue(binding,
                       WritePlan(&editable_, binding, sharded, root, from, plan, type, &meshes_));
  }

  ir::Expr Scatter(const ShardRegion& region, const RegionValue& value) {
    auto step = ReadResharding(value.binding->value, &meshes_);
    const planning::Plan& plan = program_.costs->Plan(meshes_.Root(region.root()), step->source,
                                                      value.sharded, value.form.tensor_ty());
    return WritePlan(&editable_, value.binding, ir::Call::Cast(value.binding->value).args()[0],
                     region.root(), step->source, plan, value.form, &meshes_);
  }

  ir::Expr Compute(const ShardRegion& region, const RegionValue& value) {
    auto call = ir::Call::Cast(value.binding->value);
    ffi::Array<ir::Expr> args = call.args();
    for (size_t i = 0; i < args.size(); ++i) {
      const RegionValue* input = region.Find(args[i]);
      if (input != nullptr && input->is_in) {
        args.Set(i, forms_.at(args[i].get()));
      } else if (ir::DTensorType type = input ? input->form : value.operands[i]; type.defined()) {
        args.Set(i, Slice(region, value.binding, args[i], type));
      }
    }
    return ir::MakeCall(value.form, call.op(), args, call.attrs(), call.ty_args(), call.span());
  }

  /*! \brief The slice of a replicated value; a region makes it once. */
  ir::Expr Slice(const ShardRegion& region, EditableBinding* binding, const ir::Expr& whole,
                 const ir::DTensorType& type) {
    ir::Expr& slice = slices_[{whole.get(), dialect::PlacementDims(type.placement())}];
    if (slice.defined()) return slice;
    const Sharding& from = meshes_.ShardingOf(ir::DTensorType::Cast(whole.ty()));
    const Sharding& to = meshes_.ShardingOf(type);
    const planning::Plan& plan =
        program_.costs->Plan(meshes_.Root(region.root()), from, to, type.tensor_ty());
    slice = WritePlan(&editable_, binding, whole, region.root(), from, plan, type, &meshes_);
    if (ir::Call::Is(slice)) {
      std::string name = ir::Var::Is(whole) ? ir::Var::Cast(whole).name() : "lv";
      slice = editable_.InsertBefore(binding, name, slice);
    }
    return slice;
  }

  EditableFunction& editable_;
  Program& program_;
  dialect::MeshTable& meshes_;
  Tally& tally_;
  std::unordered_map<const EditableBinding*, int> order_;
  std::unordered_map<const ffi::Object*, ir::Expr> forms_;  // sharded values by their variables
  std::map<std::pair<const ffi::Object*, std::vector<int>>, ir::Expr> slices_;
};

}  // namespace

void SequenceParallel(Program* program, Tally* tally) {
  for (NamedFunction& function : program->functions)
    SequenceParallelism(function.editable.get(), program, tally).Run();
}

}  // namespace distir::optimize
