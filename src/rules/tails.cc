// Decides which factors of a call may be padded, and what their padding (tails) must hold.
#include "rules/tails.h"

#include <algorithm>
#include <vector>

namespace distir::rules {

namespace {

bool MayReduce(mesh::Reduction reduction) {
  switch (reduction) {
    case mesh::Reduction::kSum:
    case mesh::Reduction::kProd:
    case mesh::Reduction::kMax:
    case mesh::Reduction::kMin:
      return true;
    case mesh::Reduction::kMean:
      // The mean of what is there is its sum over their number.
      return true;
    default:
      return false;
  }
}

/*! \brief True if operators padded so may be padded along a factor. */
bool Covers(Padding padding, const Factor& factor) {
  const bool is_decomposed = padding == Padding::kDecomposed;
  if (factor.Is<ParallelFactor>()) return padding != Padding::kNone;
  if (factor.Is<DecomposedFactor>()) return is_decomposed || padding == Padding::kPositions;
  if (!factor.Is<ReductionFactor>()) return false;
  return (is_decomposed || padding == Padding::kAll) && MayReduce(factor.reduction());
}

bool IsInteger(const ir::TensorType& type) {
  if (!type.has_dtype()) return false;
  uint8_t code = type.dtype().code;
  return code == kDLInt || code == kDLUInt;
}

/*! \brief True if the neutral elements of reductions can be written in the type of a tensor. */
bool HasNeutralElements(const ir::TensorType& type) {
  if (!type.has_dtype()) return false;
  DLDataType dtype = type.dtype();
  if (dtype.lanes != 1 || dtype.bits < 8) return false;
  return dtype.code == kDLInt || dtype.code == kDLUInt || dtype.code == kDLFloat ||
         dtype.code == kDLBfloat || dtype.code == kDLBool;
}

/*! \brief True if a dimension is a parallel factor's elements, one grain after the other; `size` is
 * -1 where it is symbolic. */
bool IsMajor(int factor, const FactorList& dim, int64_t size, const FactorRule& rule) {
  const Factor& major = rule.factors[factor];
  if (dim[0] != factor || !major.Is<ParallelFactor>()) return false;
  return size < 0 ? dim.size() > 1 : size > 0 && major.size > 0 && size % major.size == 0;
}

/*! \brief True if there may be more than one of a number of elements; -1 is a symbolic number. */
bool HasSeveral(int64_t size) { return size < 0 || size > 1; }

/*! \brief True if a factor is all of a dimension of a tensor. */
bool IsDimension(int factor, const FactorRule& rule) {
  for (const auto* tensors : {&rule.operands, &rule.results}) {
    for (const TensorFactors& tensor : *tensors) {
      for (const FactorList& dim : tensor) {
        if (dim.size() == 1 && dim[0] == factor) return true;
      }
    }
  }
  return false;
}

}  // namespace

void MarkUneven(const Operator& record, const OpView& view, FactorRule* rule) {
  if (record.padding == Padding::kNone) return;
  const bool may_pad_decomposed =
      record.decomposed_tail == nullptr || HasNeutralElements(view.operands[0]);
  for (Factor& factor : rule->factors) {
    factor.may_be_uneven = HasSeveral(factor.size) && Covers(record.padding, factor) &&
                           !factor.must_divide() &&
                           (!factor.Is<DecomposedFactor>() || may_pad_decomposed);
  }
  RequireWhole(record.pads_grains ? Padded::kGrains : Padded::kDims, view, rule);
}

void RequireWhole(Padded padded, const OpView& view, FactorRule* rule) {
  const bool any = std::any_of(rule->factors.begin(), rule->factors.end(),
                               [](const Factor& factor) { return factor.may_be_uneven; });
  if (!any) return;
  auto exclude = [padded, rule](const std::vector<TensorFactors>& tensors,
                                const std::vector<ir::TensorType>& types) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      Sizes sizes = StaticSizes(types[i]);
      for (size_t d = 0; d < tensors[i].size(); ++d) {
        for (int f : tensors[i][d]) {
          Factor& factor = rule->factors[f];
          if (!factor.may_be_uneven) continue;
          bool is_whole = tensors[i][d].size() == 1 && (factor.moves() || sizes[d] == factor.size);
          bool is_major = padded == Padded::kGrains && IsMajor(f, tensors[i][d], sizes[d], *rule);
          bool is_writable = !factor.Is<ReductionFactor>() || HasNeutralElements(types[i]);
          factor.may_be_uneven = (is_whole || is_major) && is_writable;
          factor.is_grained = factor.may_be_uneven && (factor.is_grained || !is_whole);
        }
      }
    }
  };
  exclude(rule->operands, view.operands);
  exclude(rule->results, view.results);
  // PadShards finds what is uneven by the dimensions, and in calls of kernels: grains of operators
  // have to be a dimension somewhere.
  if (view.kernel != nullptr) return;
  for (size_t f = 0; f < rule->factors.size(); ++f) {
    Factor& factor = rule->factors[f];
    if (!factor.is_grained || IsDimension(static_cast<int>(f), *rule)) continue;
    factor.may_be_uneven = factor.is_grained = false;
  }
}

Tail NeededTail(const OpView& view, const FactorRule& rule, size_t operand, int factor) {
  const Operator* record = FindOperator(view.call.op());
  if (record != nullptr && record->counted_tail != nullptr &&
      rule.factors[factor].Is<ReductionFactor>())
    return record->counted_tail(view);
  switch (rule.factors[factor].reduction()) {
    case mesh::Reduction::kSum:
    case mesh::Reduction::kMean:
      return Tail::kZero;
    case mesh::Reduction::kProd:
      return Tail::kOne;
    case mesh::Reduction::kMax:
      return Tail::kLowest;
    case mesh::Reduction::kMin:
      return Tail::kHighest;
    default:
      break;
  }
  if (record == nullptr) return Tail::kAny;
  if (operand == 0) {
    const bool is_needed =
        record->decomposed_tail != nullptr && rule.factors[factor].Is<DecomposedFactor>();
    return is_needed ? record->decomposed_tail(view) : Tail::kAny;
  }
  switch (record->tails) {
    case OperandTails::kDivisor:
      return operand == 1 && IsInteger(view.operands[1]) ? Tail::kOne : Tail::kAny;
    case OperandTails::kPositions:
      return Tail::kZero;
    case OperandTails::kAny:
      break;
  }
  return Tail::kAny;
}

bool IsDecomposedUneven(const ir::Expr& op) {
  const Operator* record = FindOperator(op);
  return record != nullptr && record->padding == Padding::kDecomposed;
}

bool MovesTails(const ir::Expr& op) {
  const Operator* record = FindOperator(op);
  return record != nullptr && record->keeps_zeros;
}

}  // namespace distir::rules
