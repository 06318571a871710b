// Answers which operators commute with a reduction, and in which operands.
#include "rules/linearity.h"

#include <algorithm>

#include "rules/operator.h"

namespace distir::rules {

namespace {

using mesh::Reduction;

In OperandsFor(const Commutation& commutation, Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum:
      return commutation.sum;
    case Reduction::kMean:
      return commutation.mean;
    case Reduction::kMax:
      return commutation.max;
    case Reduction::kMin:
      return commutation.min;
    case Reduction::kProd:
      return commutation.prod;
    case Reduction::kNone:
      break;
  }
  return In::kNone;
}

}  // namespace

bool MayCommute(const ir::Expr& op) {
  const Operator* record = FindOperator(op);
  return record != nullptr && record->commutation.any();
}

bool CommutesWith(const ir::Call& call, const std::vector<bool>& partial, Reduction reduction) {
  const Operator* record = FindOperator(call.op());
  if (record == nullptr || partial.empty()) return false;
  const Commutation& commutation = record->commutation;
  auto count = std::count(partial.begin(), partial.end(), true);
  bool fits = false;
  switch (OperandsFor(commutation, reduction)) {
    case In::kNone:
      break;
    case In::kAll:
      fits = count == static_cast<int64_t>(partial.size());
      break;
    case In::kOne:
      fits = count == 1;
      break;
    case In::kFirst:
      fits = partial[0] && count == 1;
      break;
    case In::kAny:
      fits = count > 0;
      break;
  }
  if (!fits || commutation.condition == nullptr) return fits;
  return commutation.condition(ViewCall(call, call.ty()));
}

}  // namespace distir::rules
