/*!
 * \file runtime/session/constants.h
 * \brief Module with a program's constants for devices, which the executable imports.
 *
 * For each constant it has a function without arguments, such as "distir.constant.3". A virtual
 * machine looks these up when it is made; on a worker the look-up copies the constant to the
 * worker's device, in the order of its stream, and what is found returns that copy. It lives as
 * long as the machine. Elsewhere, as in a machine that one makes by hand, the first call copies.
 */
#ifndef DISTIR_RUNTIME_SESSION_CONSTANTS_H_
#define DISTIR_RUNTIME_SESSION_CONSTANTS_H_

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/string.h>

namespace distir::runtime {

/*!
 * \brief A module of constants.
 * \param prefix The i-th is what the function of this name and i returns.
 * \param values Tensors of the host, each contiguous.
 * \param device_type Kind of device that they are for, as DLPack numbers it.
 */
tvm::ffi::Module MakeConstants(const tvm::ffi::String& prefix,
                               const tvm::ffi::Array<tvm::ffi::Tensor>& values, int device_type);

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_SESSION_CONSTANTS_H_
