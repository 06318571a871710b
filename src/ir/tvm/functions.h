/*!
 * \file ir/tvm/functions.h
 * \brief Functions and fields of TVM that several files of src/ir use, or that others need without
 * a view in ir/node.h.
 *
 * They are resolved when the library is loaded, as all that src/ir declares; a TVM that lacks one
 * is an ImportError that lists it.
 */
#ifndef DISTIR_IR_TVM_FUNCTIONS_H_
#define DISTIR_IR_TVM_FUNCTIONS_H_

#include "ir/node.h"
#include "ir/tvm/reflection.h"

namespace distir::ir {
namespace functions {

/*! \brief (operator, name): an attribute of an operator such as "FLegalize", or null. */
inline const GlobalFunction kOpGetAttr("ir.OpGetAttr");
inline const GlobalFunction kBlockBuilder("relax.BlockBuilderCreate");
/*! \brief (block builder): its module. */
inline const GlobalFunction kContextModule("relax.BlockBuilderGetContextIRModule");
/*! \brief (object, whether free variables may differ, whether elements of tensors are left out). */
inline const GlobalFunction kStructuralHash("ffi.StructuralHash");
/*! \brief (shape, dtype, device, memory scope). */
inline const GlobalFunction kAllocateTensor("runtime.TVMTensorAllocWithScope");
/*! \brief True if TVMScript is being parsed. */
inline const GlobalFunction kIsParsing("script.ir_builder.IRBuilderIsInScope");
/*! \brief The builder that TVMScript writes to while it is parsed. */
inline const GlobalFunction kScriptBuilder("script.ir_builder.IRBuilderCurrent");

}  // namespace functions

namespace fields {

/*! \brief Virtual device that TVM's memory planning assigns to a tensor, or null. */
inline const Field<Node> kVirtualDevice("relax.TensorType", "vdevice");
inline const Field<NodeArray<Expr>> kInitialIndices("tirx.IndexMap", "initial_indices");
inline const Field<NodeArray<Expr>> kFinalIndices("tirx.IndexMap", "final_indices");

}  // namespace fields
}  // namespace distir::ir
#endif  // DISTIR_IR_TVM_FUNCTIONS_H_
