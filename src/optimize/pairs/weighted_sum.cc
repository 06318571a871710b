// Recognises sums over experts whose terms are zero where the weight is.
#include "optimize/pairs/weighted_sum.h"

#include <algorithm>
#include <set>
#include <string>

#include "dialect/operators/collective.h"
#include "dialect/placement.h"
#include "ir/symbolic.h"

namespace distir::optimize {

namespace {

/*! \brief Operators whose result has the elements of the first operand, in another shape. */
const std::set<std::string> kMoves = {"relax.broadcast_to", "relax.expand_dims",
                                      "relax.permute_dims", "relax.reshape", "relax.squeeze"};
/*! \brief Operators that are zero where the first operand is. */
const std::set<std::string> kKeepZeros = {
    "relax.abs",     "relax.astype",       "relax.divide",  "relax.negative",
    "relax.nn.gelu", "relax.nn.gelu_tanh", "relax.nn.relu", "relax.nn.silu",
    "relax.sqrt",    "relax.square",       "relax.tanh",
};
/*! \brief Operators that give zero where an operand is zero; products along dimensions, too. */
const std::set<std::string> kProducts = {"relax.einsum", "relax.matmul", "relax.multiply"};

/*! \brief True if a mask may be the operand of what looks like one: what is multiplied by it. */
bool IsElement(const ir::Call& call) {
  return IsOneOf(call, kKeepZeros) ||
         IsOneOf(call, {"relax.broadcast_to", "relax.multiply", "relax.where"});
}

/*! \brief The parts of a result from those of one operand. */
std::optional<PairDims> Through(const RuledCall& call, size_t operand, const PairDims& dims,
                                int64_t num_experts) {
  auto factors = PartsOfFactors(call.rule, call.rule.operands[operand], dims, num_experts);
  if (!factors || call.rule.results.size() != 1) return std::nullopt;
  return PartsOfDims(call.rule, call.rule.results[0], *factors);
}

}  // namespace

std::vector<WeightedSum> WeightedSums::Read(const ir::Expr& value) {
  // Products that are taken for weights, and these in other shapes.
  constexpr int kMaxRank = 4, kMaxPassed = 8;
  std::vector<WeightedSum> found;
  auto call = ir::Call::Cast(value);
  if (!call.defined() || !IsOneOf(call, {"relax.sum", "relax.einsum", "relax.matmul"}) ||
      !ir::DTensorType::Is(call.ty()))
    return found;
  auto read = ReadRule(call);
  if (!read || read->rule.results.size() != 1) return found;
  for (size_t operand = 0; operand < read->operands.size(); ++operand) {
    for (int dim = 0; dim < kMaxRank; ++dim) {
      for (int passed = 0; passed < kMaxPassed; ++passed) {
        passed_ = passed;
        auto sum = ReadBy(*read, operand, dim);
        if (sum) found.push_back(*sum);
        if (passed_ > 0) break;  // there are no more
      }
    }
  }
  return found;
}

std::optional<WeightedSum> WeightedSums::ReadBy(const RuledCall& call, size_t operand,
                                                int expert_dim) {
  WeightedSum sum;
  sum.expert_dim = expert_dim;
  auto dims = Find(call.operands[operand], &sum);
  if (!dims) return std::nullopt;
  const rules::FactorRule& rule = call.rule;
  auto factors = PartsOfFactors(rule, rule.operands[operand], *dims, sum.num_experts);
  if (!factors) return std::nullopt;
  // The experts, and nothing else, are added up.
  bool adds_experts = false;
  for (size_t f = 0; f < factors->size(); ++f) {
    if (rule.factors[f].reduction() == mesh::Reduction::kNone) continue;
    if ((*factors)[f].part != Part::kExpert || rule.factors[f].reduction() != mesh::Reduction::kSum)
      return std::nullopt;
    adds_experts = true;
  }
  auto result = PartsOfDims(rule, rule.results[0], *factors);
  if (!adds_experts || !result || HasExperts(*result)) return std::nullopt;
  sum.of_result = *result;
  for (size_t i = 0; i < call.operands.size(); ++i) {
    auto of_operand = PartsOfDims(rule, rule.operands[i], *factors);
    if (!of_operand || !HasExperts(*of_operand) || !HasTokens(*of_operand)) return std::nullopt;
    sum.summed.push_back(call.operands[i]);
    sum.of_summed.push_back(*of_operand);
  }
  return sum;
}

/*! \brief The operands, one of which being zero makes the result of a call zero. */
std::vector<size_t> WeightedSums::KeptBy(const RuledCall& read) const {
  std::vector<size_t> operands;
  if (IsOneOf(read.call, kMoves) || IsOneOf(read.call, kKeepZeros)) operands = {0};
  if (IsOneOf(read.call, {"relax.where"}) && masks_.IsZero(read.call.args()[2])) operands = {1};
  if (IsOneOf(read.call, kProducts)) operands = {0, 1};
  while (!operands.empty() && operands.back() >= read.operands.size()) operands.pop_back();
  return operands;
}

/*! \brief True if there may be weights behind a value; each value is looked at once. */
bool WeightedSums::MayHave(const ir::Expr& value) {
  if (auto known = may_have_.find(value.get()); known != may_have_.end()) return known->second;
  EditableBinding* binding = editable_.DefinitionOf(value);
  auto call = binding == nullptr ? ir::Call() : ir::Call::Cast(binding->value);
  bool found = call.defined() && masks_.Choices(value) > 0;
  if (call.defined() && !found) {
    if (dialect::DTensorCollective(call.op()).has_value()) {
      found = MayHave(call.args()[0]);
    } else if (auto read = ReadRule(call)) {
      for (size_t operand : KeptBy(*read)) found = found || MayHave(read->operands[operand]);
    }
  }
  may_have_[value.get()] = found;
  return found;
}

/*! \brief The dimensions of a value that is zero wherever weights are; finds these. */
std::optional<PairDims> WeightedSums::Find(const ir::Expr& value, WeightedSum* sum) {
  EditableBinding* binding = editable_.DefinitionOf(value);
  auto call =
      binding == nullptr || binding->cast.defined() ? ir::Call() : ir::Call::Cast(binding->value);
  if (!call.defined() || !ir::DTensorType::Is(value.ty()) || !MayHave(value)) return std::nullopt;
  if (dialect::DTensorCollective(call.op()) == mesh::CollectiveKind::kAllReduce &&
      dialect::ReductionOf(call) == mesh::Reduction::kSum)
    return Find(call.args()[0], sum);
  // A sum of masks, as choices of tokens, is weights itself, and so is a movement of one.
  const bool is_first = !IsElement(call);
  if (is_first) {
    if (auto dims = AsWeights(value, sum)) return dims;
  }
  auto read = ReadRule(call);
  if (!read) return std::nullopt;
  for (size_t operand : KeptBy(*read)) {
    if (auto dims = Find(read->operands[operand], sum))
      return Through(*read, operand, *dims, sum->num_experts);
  }
  return is_first ? std::nullopt : AsWeights(value, sum);
}

/*! \brief A mask whose dimension `expert_dim` is that of experts, and all others of tokens. */
std::optional<PairDims> WeightedSums::AsWeights(const ir::Expr& value, WeightedSum* sum) {
  const ir::DTensorType type = ir::DTensorType::Cast(value.ty());
  const ir::TensorType tensor = type.tensor_ty();
  if (!ir::HasKnownShape(tensor) || sum->expert_dim >= tensor.ndim() || !tensor.has_dtype() ||
      (tensor.dtype().code != kDLFloat && tensor.dtype().code != kDLBfloat))
    return std::nullopt;
  const int64_t choices = masks_.Choices(value);
  const ir::NodeArray<ir::Expr>& shape = ir::ShapeOf(tensor);
  const int64_t experts = ir::StaticDim(shape[sum->expert_dim]);
  if (choices <= 0 || experts <= choices) return std::nullopt;
  const std::vector<int> placed = dialect::PlacementDims(type.placement());
  std::vector<int> axes;
  for (int axis = 0; axis < static_cast<int>(placed.size()); ++axis)
    if (placed[axis] == sum->expert_dim) axes.push_back(axis);
  if (axes.empty()) return std::nullopt;

  PairDims dims(shape.size());
  int64_t stride = 1;
  for (int d = static_cast<int>(shape.size()); d-- > 0;) {
    const int64_t size = ir::StaticDim(shape[d]);
    if (d == sum->expert_dim) {
      dims[d] = {Part::kExpert, 0};
    } else if (size != 1) {
      if (stride <= 0) return std::nullopt;  // inside of a number of tokens that is symbolic
      dims[d] = {Part::kToken, stride};
      stride *= size;
    }
  }
  if (!HasTokens(dims) || passed_-- > 0) return std::nullopt;
  const int row = RowDim(dims);  // only the outermost tokens may be sharded
  for (int dim : placed)
    if (dim >= 0 && dim != sum->expert_dim && dim != row) return std::nullopt;
  sum->weights = value;
  sum->of_weights = dims;
  sum->num_experts = experts;
  sum->choices = choices;
  sum->expert_axes = axes;
  return dims;
}

}  // namespace distir::optimize
