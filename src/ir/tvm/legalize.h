/*!
 * \file ir/tvm/legalize.h
 * \brief Makes the kernel of an operator by TVM's FLegalize.
 */
#ifndef DISTIR_IR_TVM_LEGALIZE_H_
#define DISTIR_IR_TVM_LEGALIZE_H_

#include "ir/node.h"
#include "ir/tir_node.h"

namespace distir::ir {

/*!
 * \brief The kernel that relax.transform.LegalizeOps makes of a call, of which the parameters are
 * its tensors and its result; null where it makes anything else of it.
 * \param call Typed; its operands are Tensors, and integers that it states.
 * \throws what TVM throws where it has no kernel for these types.
 */
PrimFunc LegalizedKernel(const Call& call);

}  // namespace distir::ir
#endif  // DISTIR_IR_TVM_LEGALIZE_H_
