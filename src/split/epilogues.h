/*!
 * \file split/epilogues.h
 * \brief Splits calls of a kernel with a reduction and an epilogue into two calls
 * (split/kernel_parts.h).
 */
#ifndef DISTIR_SPLIT_EPILOGUES_H_
#define DISTIR_SPLIT_EPILOGUES_H_

#include "ir/node.h"

namespace distir {
namespace split {

ir::IRModule SplitEpilogues(const ir::IRModule& mod);

}  // namespace split
}  // namespace distir
#endif  // DISTIR_SPLIT_EPILOGUES_H_
