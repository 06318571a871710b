// Separates dimensions that reshapes merge around calls that keep them apart.
#include "propagation/merged_dims.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "ir/build.h"
#include "ir/make_operators.h"
#include "ir/operator_attrs.h"
#include "ir/rewriter.h"
#include "ir/symbolic.h"
#include "rules/call/infer_type.h"

namespace distir::propagation {

namespace ffi = tvm::ffi;

namespace {

bool IsReshape(const ir::Call& call) { return ir::IsOp(call.op(), "relax.reshape"); }

/*! \brief Dimensions of one shape that are one dimension of another. */
struct Group {
  size_t first, last;  // those that are merged, the last one included
  size_t merged;       // the dimension of the other shape
};

/*! \brief The dimensions of `from` that are one dimension of `to`, as far as each dimension of one
 * side is dimensions of the other. */
std::vector<Group> MergedGroups(const Dims& from, const Dims& to) {
  std::vector<Group> groups;
  size_t i = 0, o = 0;
  // The end behind those dimensions of `all` from `begin` on that are `whole`; `begin`: there are
  // none.
  auto end_of = [](const Dims& all, size_t begin, const ir::Expr& whole) {
    Dims taken;
    for (size_t end = begin; end < all.size(); ++end) {
      taken.push_back(all[end]);
      if (ir::SameDim(ir::Product(taken), whole)) return end + 1;
      if (ir::StaticDim(whole) >= 0 && ir::StaticDim(all[end]) > ir::StaticDim(whole)) break;
    }
    return begin;
  };
  while (i < from.size() && o < to.size()) {
    if (ir::SameDim(from[i], to[o])) {
      ++i, ++o;
    } else if (const size_t end = end_of(from, i, to[o]); end > i) {
      groups.push_back({i, end - 1, o++});
      i = end;
    } else if (const size_t end = end_of(to, o, from[i]); end > o) {
      ++i;
      o = end;
    } else if (ir::StaticDim(from[i]) == 1) {
      ++i;
    } else if (ir::StaticDim(to[o]) == 1) {
      ++o;
    } else {
      break;
    }
  }
  return groups;
}

/*! \brief The dimensions of a group but for those of size 1. */
Dims PartsOf(const Dims& from, const Group& group) {
  Dims parts;
  for (size_t d = group.first; d <= group.last; ++d) {
    if (ir::StaticDim(from[d]) != 1) parts.push_back(from[d]);
  }
  return parts;
}

/*!
 * \brief The first dimensions, those of size 1 left out, that a reshape to three dimensions makes
 * its first one: (4, 8, n, k) to (32, n, k) merges {4, 8}. Empty if there are none.
 */
Dims BatchOf(const Dims& from, const Dims& to) {
  if (to.size() != 3) return {};
  for (const Group& group : MergedGroups(from, to)) {
    Dims parts = PartsOf(from, group);
    if (group.merged == 0 && parts.size() > 1) return parts;
  }
  return {};
}

/*! \brief The dimensions that products of two merged tensors are batched over. */
std::vector<Dims> BatchesOfProducts(const ir::Function& function) {
  std::unordered_map<const ffi::Object*, Dims> batches;  // by variable of a reshape
  std::vector<Dims> found;
  ir::VisitBindings(function.body(), [&](const ir::Binding& binding) {
    const ir::Call call = ir::BoundCall(binding);
    if (!call.defined()) return;
    if (IsReshape(call)) {
      const std::optional<Dims> from = KnownShape(call.args()[0]), to = KnownShape(binding.var());
      if (!from || !to) return;
      Dims batch = BatchOf(*from, *to);
      const auto before = batches.find(call.args()[0].get());
      if (before != batches.end() && to->size() == 3 && ir::SameDim((*from)[0], (*to)[0]))
        batch = before->second;
      if (!batch.empty()) batches.emplace(binding.var().get(), std::move(batch));
    } else if (ir::IsOp(call.op(), "relax.matmul")) {
      const auto a = batches.find(call.args()[0].get()), b = batches.find(call.args()[1].get());
      if (a == batches.end() || b == batches.end() || !SameDims(a->second, b->second)) return;
      if (!HasDims(found, a->second)) found.push_back(a->second);
    }
  });
  return found;
}

/*! \brief A variable with merged dimensions. */
struct Merged {
  Separated dims;
  ir::Expr source;     // of a reshape: what it reshapes; of other calls: null
  int other_uses = 0;  // by what needs the dimensions merged
};

/*! \brief Rewrites to make. */
struct Plan {
  std::unordered_map<const ffi::Object*, Merged> merged;  // by variable
  std::unordered_map<const ffi::Object*, SeparatedCall> calls;
  std::unordered_set<const ffi::Object*> reshapes;  // variables, of merged ones

  bool empty() const { return calls.empty() && reshapes.empty(); }
};

/*! \brief Finds the calls that can be written on separate dimensions. */
class Search {
 public:
  Search(const ir::Function& function, const std::vector<Dims>& apart, bool even_if_merged)
      : apart_(apart), even_if_merged_(even_if_merged) {
    Scan(function.body());
    if (plan_.empty()) return;
    const std::unordered_map<const ffi::Object*, int> uses = ir::CountUses(function);
    for (auto& [var, merged] : plan_.merged) {
      const auto found = uses.find(var);
      if (found != uses.end()) merged.other_uses += found->second;
    }
    if (!even_if_merged) LeaveOut();
  }

  Plan Take() { return std::move(plan_); }

 private:
  void Scan(const ir::SeqExpr& seq) {
    for (const ir::BindingBlock& block : seq.blocks()) {
      open_.clear();  // a block's variables may not be seen behind it
      for (const ir::Binding& binding : block.bindings()) {
        ir::VarBinding bound = ir::VarBinding::Cast(binding);
        if (!bound.defined()) continue;
        if (auto call = ir::Call::Cast(bound.value()); call.defined()) {
          if (IsReshape(call)) {
            ScanReshape(binding.var(), call);
          } else if (!open_.empty()) {
            ScanCall(binding.var(), call);
          }
        } else if (auto item = ir::TupleGetItem::Cast(bound.value()); item.defined()) {
          ScanField(binding.var(), item);
        } else if (auto branch = ir::If::Cast(bound.value()); branch.defined()) {
          Scan(branch.true_branch());
          Scan(branch.false_branch());
          open_.clear();
        }
      }
    }
  }

  void ScanReshape(const ir::Var& var, const ir::Call& call) {
    const ir::Expr& argument = call.args()[0];
    const std::optional<Dims> to = KnownShape(var);
    std::optional<Dims> from = KnownShape(argument);
    if (!to || !from) return;
    if (Merged* merged = Find(argument); merged != nullptr) {
      --merged->other_uses;
      plan_.reshapes.insert(var.get());
      from = Flat(merged->dims);
    }
    Merged made{{}, argument};
    for (const ir::Expr& dim : *to) made.dims.push_back({dim});
    bool any = false;
    for (const Group& group : MergedGroups(*from, *to)) {
      Dims parts = PartsOf(*from, group);
      if (!HasDims(apart_, parts)) continue;
      made.dims[group.merged] = std::move(parts);
      any = true;
    }
    if (any) Add(var, std::move(made));
  }

  void ScanCall(const ir::Var& var, const ir::Call& call) {
    std::vector<Merged*> tensors;
    auto add = [&](const ir::Expr& tensor) {
      if (ir::TensorType::Is(tensor.ty())) tensors.push_back(Find(tensor));
    };
    for (const ir::Expr& arg : call.args()) {
      if (auto tuple = ir::Tuple::Cast(arg); tuple.defined()) {
        for (const ir::Expr& field : tuple.fields()) add(field);
      } else {
        add(arg);
      }
    }
    std::vector<const Separated*> operands;
    for (const Merged* merged : tensors)
      operands.push_back(merged == nullptr ? nullptr : &merged->dims);
    if (std::all_of(operands.begin(), operands.end(), [](auto* each) { return each == nullptr; }))
      return;
    const bool is_tuple = ir::TupleType::Is(var.ty());
    if (is_tuple && even_if_merged_) return;
    std::optional<SeparatedCall> separated = Separate(call, var.ty(), operands);
    if (!separated) return;
    order_.push_back({var.get(), {}});
    for (Merged* merged : tensors) {
      if (merged == nullptr) continue;
      --merged->other_uses;
      order_.back().operands.push_back(merged);
    }
    // A loss, for one, has none of the dimensions.
    if (is_tuple) {
      Add(var, Merged{{}, ir::Expr()});
    } else if (HasMerged(separated->results[0])) {
      Add(var, Merged{separated->results[0], ir::Expr()});
    }
    plan_.calls.emplace(var.get(), std::move(*separated));
  }

  void ScanField(const ir::Var& var, const ir::TupleGetItem& item) {
    Merged* tuple = Find(item.tuple());
    if (tuple == nullptr) return;
    --tuple->other_uses;
    order_.push_back({var.get(), {tuple}});
    const Separated& dims = plan_.calls.at(item.tuple().get()).results[item.index()];
    if (HasMerged(dims)) Add(var, Merged{dims, ir::Expr()});
  }

  static bool HasMerged(const Separated& tensor) {
    return std::any_of(tensor.begin(), tensor.end(),
                       [](const Dims& dims) { return dims.size() > 1; });
  }

  /*! \brief Leaves calls as they are whose results somebody needs merged, and then those in front
   * of them. */
  void LeaveOut() {
    for (auto call = order_.rbegin(); call != order_.rend(); ++call) {
      const auto merged = plan_.merged.find(call->var);
      if (merged == plan_.merged.end() || merged->second.other_uses == 0) continue;
      plan_.calls.erase(call->var);
      for (Merged* operand : call->operands) ++operand->other_uses;
    }
  }

  Merged* Find(const ir::Expr& value) {
    return open_.count(value.get()) > 0 ? &plan_.merged.at(value.get()) : nullptr;
  }

  void Add(const ir::Var& var, Merged merged) {
    plan_.merged.emplace(var.get(), std::move(merged));
    open_.insert(var.get());
  }

  struct Noted {
    const ffi::Object* var;
    std::vector<Merged*> operands;
  };

  const std::vector<Dims>& apart_;
  const bool even_if_merged_;
  Plan plan_;
  std::vector<Noted> order_;
  std::unordered_set<const ffi::Object*> open_;  // variables of the block that are merged
};

class Writer : public ir::FunctionRewriter {
 public:
  explicit Writer(Plan plan) : plan_(std::move(plan)) {}

 protected:
  void RewriteVarBinding(const ir::Var& var, const ir::Expr& value) override {
    const auto merged = plan_.merged.find(var.get());
    const bool is_needed = merged == plan_.merged.end() || merged->second.other_uses > 0;
    const auto separated = plan_.calls.find(var.get());
    if (separated != plan_.calls.end()) {
      const ir::Expr written = Write(ir::Call::Cast(value), separated->second, var.ty());
      if (!is_needed || merged == plan_.merged.end()) {
        separate_[var.get()] = Bind(var, written);
        return;
      }
      separate_[var.get()] = Emit(std::string(var.name()) + "_apart", written);
      Bind(var, Reshaped(separate_[var.get()], *KnownShape(var), var.ty()));
    } else if (plan_.reshapes.count(var.get()) > 0) {
      if (!is_needed) return;
      Bind(var, Reshaped(Origin(ir::Call::Cast(value).args()[0]), *KnownShape(var), var.ty()));
    } else if (const auto field = ir::TupleGetItem::Cast(value);
               field.defined() && !is_needed && plan_.calls.count(field.tuple().get()) > 0) {
      separate_[var.get()] =
          Bind(var, ir::MakeTupleGetItem(separate_.at(field.tuple().get()), field.index()));
    } else if (is_needed || merged->second.source.get() == nullptr) {
      ir::FunctionRewriter::RewriteVarBinding(var, value);
    }
  }

 private:
  ir::Call Write(const ir::Call& call, const SeparatedCall& separated, const ir::Type& type) {
    auto shape = separated.operands.begin();
    std::vector<ir::Expr> tensors;
    auto add = [&](const ir::Expr& tensor) {
      if (ir::TensorType::Is(tensor.ty())) tensors.push_back(InShape(tensor, *shape++));
    };
    for (const ir::Expr& arg : call.args()) {
      if (auto tuple = ir::Tuple::Cast(arg); tuple.defined()) {
        for (const ir::Expr& field : tuple.fields()) add(field);
      } else {
        add(arg);
      }
    }
    if (!separated.first_order.empty()) tensors[0] = Permuted(tensors[0], separated.first_order);
    std::vector<ir::TensorType> types;
    rules::CollectTensorTypes(type, &types);
    ffi::Array<ir::Type> results;
    for (size_t r = 0; r < types.size(); ++r) {
      const Dims dims = Flat(separated.results[r]);
      results.push_back(
          ir::MakeTensorType(ffi::Array<ir::Expr>(dims.begin(), dims.end()), types[r]));
    }
    const ir::Type apart =
        ir::TupleType::Is(type) ? ir::Type(ir::MakeTupleType(results)) : results[0];
    if (separated.is_einsum) {
      const auto made = ir::make::kEinsum(
          RewriteAll({ir::MakeTuple(ffi::Array<ir::Expr>(tensors.begin(), tensors.end()))})[0],
          ffi::String(ir::attrs::kEinsumSubscripts.Text(separated.attrs)));
      const ir::Call einsum = made.cast<ir::Call>();
      return ir::MakeCall(apart, einsum.op(), einsum.args(), einsum.attrs());
    }
    ffi::Array<ir::Expr> args;
    for (const ir::Expr& arg : WithTensors(separated.call, tensors)) args.push_back(Rewrite(arg));
    return ir::MakeCall(apart, call.op(), args, separated.attrs, call.ty_args(), call.span());
  }

  /*! \brief The value that a merged one is a reshape of. */
  ir::Expr Origin(const ir::Expr& value) {
    const auto separate = separate_.find(value.get());
    if (separate != separate_.end()) return separate->second;
    const auto merged = plan_.merged.find(value.get());
    if (merged == plan_.merged.end() || merged->second.source.get() == nullptr)
      return Rewrite(value);
    return Origin(merged->second.source);
  }

  ir::Expr InShape(const ir::Expr& value, const Dims& shape) {
    const ir::Expr origin = Origin(value);
    if (SameDims(*KnownShape(origin), shape)) return origin;
    const std::string name = ir::Var::Is(value) ? ir::Var::Cast(value).name() : "constant";
    return Emit(name + "_apart", Reshaped(origin, shape, value.ty()));
  }

  ir::Expr Permuted(const ir::Expr& value, const std::vector<int64_t>& order) {
    const Dims dims = *KnownShape(value);
    ffi::Array<ir::Expr> shape;
    for (int64_t d : order) shape.push_back(dims[d]);
    const ir::Type type = ir::MakeTensorType(shape, ir::TensorType::Cast(value.ty()));
    const ffi::Array<int64_t> axes(order.begin(), order.end());
    const ir::Call written = ir::make::kPermuteDims(value, axes).cast<ir::Call>();
    return Emit("classes", ir::MakeCall(type, written.op(), {value}, written.attrs()));
  }

  static ir::Call Reshaped(const ir::Expr& value, const Dims& dims, const ir::Type& like) {
    const ffi::Array<ir::Expr> shape(dims.begin(), dims.end());
    return ir::MakeOpCall(ir::MakeTensorType(shape, ir::TensorType::Cast(like)), "relax.reshape",
                          {value, ir::MakeShape(shape)});
  }

  Plan plan_;
  std::unordered_map<const ffi::Object*, ir::Expr> separate_;  // by their variables, not merged
};

ir::Function Written(const ir::Function& function, const std::vector<Dims>& apart,
                     bool even_if_merged) {
  if (apart.empty()) return function;
  Plan plan = Search(function, apart, even_if_merged).Take();
  if (plan.empty()) return function;
  ir::Function written = Writer(std::move(plan)).RewriteFunction(function);
  // The stated result type may know more than the body's.
  return ir::MakeFunction(written.params(), written.body(), function.ret_ty(), function.is_pure(),
                          function.attrs());
}

/*! \brief True if a minor dimension of a group is sharded, and a major one is not in as many shards
 * as it has elements. */
bool IsStrided(const Dims& dims, const Group& group, const mesh::Sharding& sharding) {
  bool is_block = true;
  for (size_t d = group.first; d <= group.last && d < sharding.dims.size(); ++d) {
    const int64_t shards = mesh::NumShards(sharding.dims[d]);
    if (shards > 1 && !is_block) return true;
    is_block = is_block && shards == ir::StaticDim(dims[d]);
  }
  return false;
}

}  // namespace

ir::Function SeparateBatchDims(const ir::Function& function) {
  return Written(function, BatchesOfProducts(function), /*even_if_merged=*/true);
}

ir::Function SeparateDims(const ir::Function& function, const std::vector<Dims>& apart) {
  return Written(function, apart, /*even_if_merged=*/false);
}

std::vector<Dims> StridedDims(const Program& program, const FunctionGraph& graph) {
  std::vector<Dims> found;
  ir::VisitBindings(graph.function.body(), [&](const ir::Binding& binding) {
    const ir::Call call = ir::BoundCall(binding);
    if (!call.defined() || !IsReshape(call)) return;
    const std::optional<Dims> from = KnownShape(call.args()[0]), to = KnownShape(binding.var());
    const auto node = graph.node_of_call.find(call.get());
    if (!from || !to || node == graph.node_of_call.end()) return;
    auto look = [&](const Dims& apart, const Dims& merged, int local) {
      for (const Group& group : MergedGroups(apart, merged)) {
        Dims parts = PartsOf(apart, group);
        if (HasDims(found, parts)) continue;
        const bool is_strided = std::any_of(
            program.instances.begin(), program.instances.end(), [&](const Instance& instance) {
              return instance.graph == &graph &&
                     IsStrided(apart, group, program.slots[instance.Slot(local)].sharding);
            });
        if (is_strided) found.push_back(std::move(parts));
      }
    };
    look(*from, *to, graph.nodes[node->second].operands[0]);
    look(*to, *from, graph.nodes[node->second].results[0]);
  });
  return found;
}

}  // namespace distir::propagation
