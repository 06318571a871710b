/*!
 * \file split/epilogues.h
 * \brief Calls of a kernel that has a reduction and an epilogue become two calls, one of each
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
