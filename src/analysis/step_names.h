/*!
 * \file analysis/step_names.h
 * \brief Lists the result names of a program's calls in the order of TVM's virtual machine, which
 * maps executed steps to variables of the lowered module.
 *
 *     y = call_tir(fused_matmul_relu, (x, w))        ["fused_matmul_relu", "y"],
 *     z = call_dps_packed("distir.runtime.all_reduce", (y, ..))
 *                                              ->    ["distir.runtime.all_reduce", "z"]
 *     if c: ..                                       ["", "v", [of one side], [of the other]]
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
