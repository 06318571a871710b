/*!
 * \file analysis/step_names.h
 * \brief Lists the callee and the result of each call of a program, in the order in which TVM's
 * virtual machine runs them. Profiles map executed steps to variables by this list.
 *
 *     y = call_tir(fused_matmul_relu, (x, w))                    ["fused_matmul_relu", "y"]
 *     z = call_dps_packed("distir.runtime.all_reduce", (y,))  -> ["distir.runtime.all_reduce", "z"]
 *     v = if c: .. else: ..                                      ["", "v", [true ..], [false ..]]
 */
#ifndef DISTIR_ANALYSIS_STEP_NAMES_H_
#define DISTIR_ANALYSIS_STEP_NAMES_H_

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/string.h>

#include "ir/node.h"

namespace distir::analysis {

namespace ffi = tvm::ffi;

/*! \brief Names by function, for a module in front of CallTIRRewrite. */
ffi::Map<ffi::String, ffi::Any> StepNames(const ir::IRModule& mod);

}  // namespace distir::analysis
#endif  // DISTIR_ANALYSIS_STEP_NAMES_H_
