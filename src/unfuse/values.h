/*!
 * \file unfuse/values.h
 * \brief Reads the types of values in an annotated module: tensors, or DTensors where shardings are
 * stated.
 */
#ifndef DISTIR_UNFUSE_VALUES_H_
#define DISTIR_UNFUSE_VALUES_H_

#include "ir/node.h"

namespace distir::unfuse {

namespace ffi = tvm::ffi;

/*! \brief The type of a tensor without its sharding; null for others, and where its shape is not
 * known. */
ir::TensorType TypeOf(const ir::Expr& value);

bool IsTensor(const ir::Expr& value);

/*! \brief A call that one of TVM's constructors has made, with the type that its operator infers.
 */
ir::Call Typed(const ffi::Any& made);

}  // namespace distir::unfuse
#endif  // DISTIR_UNFUSE_VALUES_H_
