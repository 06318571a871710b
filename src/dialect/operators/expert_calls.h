/*!
 * \file dialect/operators/expert_calls.h
 * \brief Reads, checks and makes calls of the operators of experts (token_dispatch.h,
 * slot_exchange.h).
 */
#ifndef DISTIR_DIALECT_OPERATORS_EXPERT_CALLS_H_
#define DISTIR_DIALECT_OPERATORS_EXPERT_CALLS_H_

#include <string>
#include <utility>
#include <vector>

#include "dialect/operators/collective_record.h"
#include "ir/node.h"

namespace distir::dialect {

namespace ffi = tvm::ffi;

/*! \brief A call with the type that its inference gives. */
ir::Call MakeTyped(InferFunction infer, const std::string& name,
                   const ir::NodeArray<ir::Expr>& args,
                   const std::vector<std::pair<const char*, ffi::Any>>& attrs);
/*! \brief The attribute `expert_axes`. */
ffi::Array<int64_t> AxesAttr(const std::vector<int>& axes);

/*! \brief The type of an argument of known shape. */
ir::DTensorType DTensorArg(const ir::Call& call, int index, int rank);
ir::TensorType TensorArg(const ir::Call& call, int index, int rank);

/*!
 * \brief The expert axes, of which each shards dimension 0 of a tensor.
 * \param what The tensor in errors: "the rows"; `experts` what lies along the axes.
 */
std::vector<int> CheckedAxes(const ir::Call& call, const ir::DTensorType& tensor, const char* what,
                             const char* experts);
/*! \brief The members of each group of a call on local tensors. */
int64_t GroupSize(const ir::Call& call);

}  // namespace distir::dialect
#endif  // DISTIR_DIALECT_OPERATORS_EXPERT_CALLS_H_
