// Joins dimensions that must be padded alike, and finds the unit in which each is cut (its grain).
#include "padding/grains.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "dialect/operators/collective.h"
#include "dialect/operators/segment_exchange.h"
#include "dialect/operators/token_dispatch.h"
#include "ir/build.h"
#include "ir/module/call_graph.h"
#include "ir/rewriter.h"
#include "ir/size_arithmetic.h"
#include "ir/symbolic.h"
#include "rules/call/infer_type.h"
#include "rules/operator.h"
#include "rules/registry.h"

namespace distir::padding {

namespace {

using rules::Factor;
using rules::FactorRule;

std::vector<ir::DTensorType> TensorTypes(const ir::Type& type) {
  std::vector<ir::DTensorType> types;
  dialect::CollectDTensorTypes(type, &types);
  return types;
}

size_t NumTensors(const ir::Type& type) { return TensorTypes(type).size(); }

/*!
 * \brief Collects a property of a value's tensors, one after the other.
 * \param of_leaf Gives it for a value that is neither a tuple nor a part of one.
 */
template <typename T, typename OfLeaf>
std::vector<T> Flattened(const ir::Expr& value, const OfLeaf& of_leaf) {
  std::vector<T> all;
  if (auto tuple = ir::Tuple::Cast(value); tuple.defined()) {
    for (const ir::Expr& field : tuple.fields()) {
      std::vector<T> of_field = Flattened<T>(field, of_leaf);
      all.insert(all.end(), of_field.begin(), of_field.end());
    }
    return all;
  }
  auto item = ir::TupleGetItem::Cast(value);
  if (!item.defined()) return of_leaf(value);
  all = Flattened<T>(item.tuple(), of_leaf);
  const auto& fields = ir::TupleType::Cast(item.tuple().ty()).fields();
  size_t begin = 0;
  for (int i = 0; i < item.index(); ++i) begin += NumTensors(fields[i]);
  const size_t end = begin + NumTensors(fields[item.index()]);
  return {all.begin() + begin, all.begin() + end};
}

/*! \brief The extent of a dimension that has so many units in so many shards. */
ir::Expr PaddedExtent(const Size& size, const Size& units, int64_t shards) {
  return Size::Padded(size.DividedBy(units), units, shards);
}

}  // namespace

Grains::Grains(const ir::IRModule& mod, dialect::MeshTable* meshes, rules::KernelTable* kernels,
               const DividingSizes& dividing)
    : meshes_(*meshes), kernels_(*kernels), dividing_(dividing) {
  const ir::CallGraph calls(mod);
  std::vector<std::pair<ir::GlobalVar, ir::Function>> functions;
  for (const auto& [gv, base] : ir::OrderedFunctions(mod)) {
    ir::Function function = ir::Function::Cast(base);
    if (!function.defined()) continue;
    functions.emplace_back(gv, function);
    functions_.emplace(gv.get(), function);
    // A caller of a value sees its type alone.
    const bool is_value = calls[*calls.Find(gv)].is_value;
    Tensors& params = params_[gv.get()];
    for (const ir::Var& param : function.params()) {
      Tensors added = AddStated(param.ty(), is_value);
      params.insert(params.end(), added.begin(), added.end());
      values_.emplace(param.get(), std::move(added));
    }
    results_.emplace(gv.get(), AddStated(function.body().body().ty(), is_value));
  }
  for (const auto& [gv, function] : functions) Visit(function.body(), results_.at(gv.get()));
  for (const auto& [var, tensors] : taken_) taken_extents_.emplace(var, PaddedOf(tensors));
}

// ---- what belongs together

int Grains::AddNode(const Size& size, int64_t shards, bool is_fixed) {
  const int node = static_cast<int>(nodes_.size());
  nodes_.push_back({node, size, 1, size, shards, is_fixed, false});
  return node;
}

int Grains::Root(int node) const {
  while (nodes_[node].parent != node) node = nodes_[node].parent;
  return node;
}

void Grains::Join(int a, int b) {
  a = Root(a);
  b = Root(b);
  if (a == b) return;
  const Size units = Size::CommonDivisor(nodes_[a].units, nodes_[b].units);
  const int64_t shards = std::lcm(nodes_[a].shards, nodes_[b].shards);
  if (nodes_[a].shards != nodes_[b].shards && !units.is_symbolic()) return;
  for (int root : {a, b}) {
    const Node& node = nodes_[root];
    if (units == node.units && shards == node.shards) continue;
    if (node.is_stated && shards != node.shards) return;
    const bool is_kept =
        ir::SameDim(PaddedExtent(node.units, units, shards), node.units.Even(node.shards));
    // Without a unit for each shard, some device would have far too much.
    if ((node.is_fixed && !is_kept) || !units.MayReach(shards)) return;
  }
  if (nodes_[a].nodes < nodes_[b].nodes) std::swap(a, b);
  nodes_[b].parent = a;
  nodes_[a].nodes += nodes_[b].nodes;
  nodes_[a].units = units;
  nodes_[a].shards = shards;
  nodes_[a].is_fixed = nodes_[a].is_fixed || nodes_[b].is_fixed;
  nodes_[a].is_stated = nodes_[a].is_stated || nodes_[b].is_stated;
}

void Grains::JoinAll(const Tensors& a, const Tensors& b) {
  if (a.size() != b.size()) return;
  for (size_t i = 0; i < a.size(); ++i) {
    const size_t rank = std::min(a[i].nodes.size(), b[i].nodes.size());
    for (size_t d = 0; d < rank; ++d) {
      // Symbolic sizes of two functions have nothing in common.
      if (a[i].callee != b[i].callee && ir::StaticDim(a[i].sizes[d]) < 0) continue;
      const bool is_same =
          a[i].nodes[d] >= 0 && b[i].nodes[d] >= 0 && ir::SameDim(a[i].sizes[d], b[i].sizes[d]);
      if (is_same) Join(a[i].nodes[d], b[i].nodes[d]);
    }
  }
}

Grains::Tensors Grains::Add(const ir::Type& type, bool is_fixed) {
  Tensors tensors;
  for (const ir::DTensorType& tensor : TensorTypes(type)) {
    Tensor added;
    if (tensor.defined()) {
      added.sizes = ExtentsOf(tensor.tensor_ty());
      const mesh::Sharding& sharding = meshes_.ShardingOf(tensor);
      for (size_t d = 0; d < added.sizes.size(); ++d) {
        const int64_t size = ir::StaticDim(added.sizes[d]);
        // A symbolic one that is whole may be padded as it is where it is cut.
        const bool is_cut =
            (size < 0 || !sharding.dims[d].empty()) && size != 0 && !dividing_.Has(added.sizes[d]);
        const int64_t shards = mesh::NumShards(sharding.dims[d]);
        added.nodes.push_back(is_cut ? AddNode(Size(added.sizes[d]), shards, is_fixed) : -1);
      }
    }
    tensors.push_back(std::move(added));
  }
  return tensors;
}

Grains::Tensors Grains::AddStated(const ir::Type& type, bool is_fixed) {
  Tensors tensors = Add(type, is_fixed);
  for (const Tensor& tensor : tensors) {
    for (int node : tensor.nodes)
      if (node >= 0) nodes_[node].is_stated = true;
  }
  return tensors;
}

Grains::Tensors Grains::AddKept(const ir::Type& type) {
  Tensors tensors = Add(type);
  for (const Tensor& tensor : tensors) {
    for (int node : tensor.nodes)
      if (node >= 0 && nodes_[node].shards == 1) nodes_[node].is_fixed = true;
  }
  return tensors;
}

// ---- the program

Grains::Tensors Grains::TensorsOf(const ir::Expr& value) {
  return Flattened<Tensor>(value, [this](const ir::Expr& leaf) {
    auto found = values_.find(leaf.get());
    return found != values_.end() ? found->second : Add(leaf.ty(), /*is_fixed=*/true);
  });
}

void Grains::Visit(const ir::SeqExpr& seq, const Tensors& target) {
  for (const ir::BindingBlock& block : seq.blocks()) {
    for (const ir::Binding& binding : block.bindings()) {
      const ir::Var var = binding.var();
      if (auto cast = ir::MatchCast::Cast(binding); cast.defined()) {
        Tensors tensors = AddKept(var.ty());
        const Tensors of_value = TensorsOf(cast.value());
        for (size_t i = 0; i < std::min(tensors.size(), of_value.size()); ++i) {
          const Extents &before = of_value[i].sizes, &after = tensors[i].sizes;
          // A dimension cut by a size that is stated anew follows from that size alone.
          for (size_t d = 0; d < std::min(before.size(), after.size()); ++d) {
            const int node = tensors[i].nodes[d];
            if (node >= 0 && !ir::SameDim(before[d], after[d])) nodes_[node].is_fixed = true;
          }
        }
        JoinAll(of_value, tensors);
        values_[var.get()] = std::move(tensors);
        continue;
      }
      const ir::Expr value = ir::VarBinding::Cast(binding).value();
      if (auto call = ir::Call::Cast(value); call.defined()) {
        VisitCall(var, call);
      } else if (auto branch = ir::If::Cast(value); branch.defined()) {
        const Tensors tensors = Add(var.ty());
        Visit(branch.true_branch(), tensors);
        Visit(branch.false_branch(), tensors);
        values_[var.get()] = tensors;
      } else {
        values_[var.get()] = TensorsOf(value);
      }
    }
  }
  JoinAll(TensorsOf(seq.body()), target);
}

void Grains::VisitCall(const ir::Var& var, const ir::Call& call) {
  if (ir::IsOp(call.op(), "relax.dist.redistribute")) return VisitRedistribute(var, call);
  if (dialect::IsSegmentExchange(call.op()) || dialect::IsOfTokens(call.op())) {
    values_[var.get()] = AddKept(var.ty());
    return;
  }
  if (params_.count(call.op().get()) > 0) return VisitFunctionCall(var, call);
  VisitOperator(var, call);
}

void Grains::VisitFunctionCall(const ir::Var& var, const ir::Call& call) {
  const ffi::Object* callee = call.op().get();
  const auto sizes = std::make_shared<const CalleeSizes>(functions_.at(callee), call);
  auto in_caller = [&sizes](Tensors tensors, const Tensors& here) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      tensors[i].sizes = here[i].sizes;
      tensors[i].callee = sizes;
      // With an unknown shape, nothing is known of the padding.
      tensors[i].nodes.resize(here[i].sizes.size(), -1);
    }
    return tensors;
  };
  Tensors args;
  for (const ir::Expr& arg : call.args()) {
    Tensors of_arg = TensorsOf(arg);
    args.insert(args.end(), of_arg.begin(), of_arg.end());
  }
  JoinAll(params_.at(callee), args);
  taken_[var.get()] = in_caller(params_.at(callee), args);
  values_[var.get()] = in_caller(results_.at(callee), Add(var.ty()));
}

// A dimension that keeps its axes keeps its grains, so that its shards stay where they are. A
// symbolic one has the same padding before and behind where it can, so that nothing is cut off and
// put on again on the way: that takes devices that have all of it.
void Grains::VisitRedistribute(const ir::Var& var, const ir::Call& call) {
  auto source = ir::DTensorType::Cast(call.args()[0].ty());
  auto target = ir::DTensorType::Cast(var.ty());
  Tensors to = source.defined() ? Add(var.ty()) : AddKept(var.ty());
  if (source.defined() && meshes_.RootOf(source) == meshes_.RootOf(target)) {
    const mesh::Sharding before = meshes_.ShardingOf(source);
    const mesh::Sharding after = meshes_.ShardingOf(target);
    Tensors from = TensorsOf(call.args()[0]);
    for (size_t d = 0; d < from[0].nodes.size(); ++d) {
      if (before.dims[d] != after.dims[d] && ir::StaticDim(from[0].sizes[d]) >= 0)
        from[0].nodes[d] = -1;
    }
    JoinAll(from, to);
  }
  values_[var.get()] = std::move(to);
}

void Grains::VisitOperator(const ir::Var& var, const ir::Call& call) {
  const rules::OpView view = rules::ViewCall(call, rules::StripDistribution(var.ty()), &kernels_);
  const FactorRule rule = rules::RuleOf(view);
  const rules::Operator* record = rules::FindOperator(call.op());
  const bool decomposes = record != nullptr && record->padding == rules::Padding::kDecomposed;
  std::unordered_map<int, int> node_of_factor;
  auto add = [&](const ir::Type& type, const std::vector<rules::TensorFactors>& factors,
                 size_t begin) {
    Tensors tensors = Add(type);
    for (size_t i = 0; i < tensors.size(); ++i) {
      for (size_t d = 0; d < tensors[i].nodes.size(); ++d) {
        const int at = tensors[i].nodes[d];
        if (at < 0) continue;
        const rules::FactorList& dim = factors[begin + i][d];
        const int64_t shards = nodes_[at].shards;
        const Factor* major = dim.empty() ? nullptr : &rule.factors[dim[0]];
        // A divisible dimension was not decomposed for padding, so it stays divisible.
        const bool is_decomposed = decomposes && major != nullptr &&
                                   major->decomposed() != nullptr &&
                                   ir::AlwaysDivides(tensors[i].sizes[d], shards);
        // Other factors may look at all elements where they are not sharded.
        const bool may_pad = MayPad(rule, dim, shards) && !is_decomposed &&
                             (shards > 1 || major->Is<rules::ParallelFactor>());
        if (may_pad) {
          auto [found, is_new] = node_of_factor.try_emplace(dim[0], -1);
          // A symbolic one is a dimension by itself somewhere in the call, which it is joined with.
          if (is_new) {
            const Size size = major->size < 0 ? nodes_[at].size : Size(major->size);
            found->second = AddNode(size, shards);
          }
          Join(found->second, at);
        } else {
          nodes_[at].is_fixed = true;
        }
      }
    }
    return tensors;
  };
  Tensors operands;
  for (const ir::Expr& arg : call.args()) {
    Tensors of_arg = add(arg.ty(), rule.operands, operands.size());
    JoinAll(of_arg, TensorsOf(arg));
    operands.insert(operands.end(), of_arg.begin(), of_arg.end());
  }
  values_[var.get()] = add(var.ty(), rule.results, 0);
  taken_[var.get()] = std::move(operands);
}

// ---- what is asked

ValueExtents Grains::PaddedOf(const Tensors& tensors) const {
  ValueExtents extents;
  for (const Tensor& tensor : tensors) {
    extents.push_back(tensor.sizes);
    for (size_t d = 0; d < tensor.nodes.size(); ++d) {
      if (tensor.nodes[d] < 0) continue;
      const Node& root = nodes_[Root(tensor.nodes[d])];
      ir::Expr padded = PaddedExtent(nodes_[tensor.nodes[d]].size, root.units, root.shards);
      if (tensor.callee != nullptr) padded = tensor.callee->InCaller(padded);
      if (!ir::SameDim(padded, tensor.sizes[d])) extents.back()[d] = padded;
    }
  }
  return extents;
}

ValueExtents Grains::Of(const ir::Expr& value) const {
  return Flattened<Extents>(value, [this](const ir::Expr& leaf) {
    auto found = values_.find(leaf.get());
    if (found != values_.end()) return PaddedOf(found->second);
    return PaddedTypes(&meshes_).ExtentsOfAll(leaf.ty());
  });
}

ValueExtents Grains::OfResult(const ir::GlobalVar& function) const {
  return PaddedOf(results_.at(function.get()));
}

const ValueExtents* Grains::TakenBy(const ir::Var& var) const {
  auto found = taken_extents_.find(var.get());
  return found == taken_extents_.end() ? nullptr : &found->second;
}

bool Grains::IsRecutFor(const ir::Var& var, const ir::Call& call) const {
  const ValueExtents* taken = TakenBy(var);
  if (taken == nullptr) return false;
  ValueExtents has;
  for (const ir::Expr& arg : call.args()) {
    const ValueExtents of_arg = Of(arg);
    has.insert(has.end(), of_arg.begin(), of_arg.end());
  }
  return Differ(has, *taken);
}

bool Grains::Concern(const ir::GlobalVar& name, const ir::Function& function) const {
  auto is_padded = [this](const ir::Var& var) { return IsPadded(var.ty(), Of(var)); };
  bool found = Differ(Of(function.body().body()), OfResult(name)) ||
               std::any_of(function.params().begin(), function.params().end(), is_padded);
  ir::VisitBindings(function.body(), [&](const ir::Binding& binding) {
    const ir::Call call = ir::BoundCall(binding);
    found =
        found || is_padded(binding.var()) || (call.defined() && IsRecutFor(binding.var(), call));
  });
  return found;
}

}  // namespace distir::padding
