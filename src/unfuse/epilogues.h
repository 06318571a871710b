/*!
 * \file unfuse/epilogues.h
 * \brief Splits calls of a kernel with a reduction and an epilogue into two calls
 * (unfuse/kernel_parts.h).
 */
#ifndef DISTIR_UNFUSE_EPILOGUES_H_
#define DISTIR_UNFUSE_EPILOGUES_H_

#include "ir/node.h"

namespace distir::unfuse {

ir::IRModule SplitEpilogues(const ir::IRModule& mod);

}  // namespace distir::unfuse
#endif  // DISTIR_UNFUSE_EPILOGUES_H_
