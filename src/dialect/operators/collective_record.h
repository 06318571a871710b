/*!
 * \file dialect/operators/collective_record.h
 * \brief Maps operators of `R.dist` and `R.ccl` to the records of collectives (abi/collective.h),
 * and registers operators by their records.
 */
#ifndef DISTIR_DIALECT_OPERATORS_COLLECTIVE_RECORD_H_
#define DISTIR_DIALECT_OPERATORS_COLLECTIVE_RECORD_H_

#include "abi/collective.h"
#include "ir/node.h"

namespace distir::dialect {

/*! \brief The record of an operator on DTensors, or on local tensors; null for all others. Looked
 * up once per operator. */
const abi::CollectiveRecord* RecordOnDTensors(const ir::Expr& op);
const abi::CollectiveRecord* RecordOnTensors(const ir::Expr& op);

inline bool IsOnDTensors(const ir::Expr& op, abi::Collective collective) {
  const abi::CollectiveRecord* record = RecordOnDTensors(op);
  return record != nullptr && record->collective == collective;
}
inline bool IsOnTensors(const ir::Expr& op, abi::Collective collective) {
  const abi::CollectiveRecord* record = RecordOnTensors(op);
  return record != nullptr && record->collective == collective;
}

using InferFunction = ir::Type (*)(const ir::Call&);

/*!
 * \brief Enters the operators that the record has, with its arguments and its text.
 * \param on_dtensors, on_tensors Their type inference; null if the record has no such operator.
 */
void RegisterCollective(abi::Collective collective, InferFunction on_dtensors,
                        InferFunction on_tensors = nullptr);

}  // namespace distir::dialect
#endif  // DISTIR_DIALECT_OPERATORS_COLLECTIVE_RECORD_H_
