/*!
 * \file target/gpu/carry_constants.h
 * \brief Replaces constants of a worker's program by calls that return them on its device.
 */
#ifndef DISTIR_TARGET_GPU_CARRY_CONSTANTS_H_
#define DISTIR_TARGET_GPU_CARRY_CONSTANTS_H_

#include "ir/node.h"

namespace distir::target {

/*!
 * \brief Constants become calls of functions that return them, of a module that the executable
 *        gets; the module itself if there are none.
 * \param device_type Kind of the program's device, as DLPack numbers it.
 */
ir::IRModule CarryConstants(const ir::IRModule& mod, int device_type);

}  // namespace distir::target
#endif  // DISTIR_TARGET_GPU_CARRY_CONSTANTS_H_
