/*!
 * \file runtime/append.h
 * \brief Appends to tensors that grow along a dimension from call to call, such as caches of keys
 * and values.
 *
 * Example: a cache of 1,000 positions, each of 8 x 64 numbers, and one more:
 * \code
 *   longer = distir.runtime.append(cache, new, 0)  // copies 1,000 positions, leaves room for more
 *   longest = distir.runtime.append(longer, newer, 0)  // copies one position
 * \endcode
 */
#ifndef DISTIR_RUNTIME_APPEND_H_
#define DISTIR_RUNTIME_APPEND_H_

#include <tvm/ffi/container/tensor.h>

#include <cstdint>

#include "runtime/communicators/result_memory.h"

namespace distir::runtime {

/*!
 * \brief `tensor` with `added` behind it along `axis`; neither changes.
 *
 * Where no dimension before `axis` is longer than 1, the result has room behind it. What an earlier
 * call returned shares its memory with the result of this one, unless something was appended to it
 * before.
 *
 * \throws ValueError for tensors that do not fit each other, or are not row-major in host memory.
 */
tvm::ffi::Tensor Append(const tvm::ffi::Tensor& tensor, const tvm::ffi::Tensor& added,
                        int64_t axis);

/*! \brief Memory of results. */
ResultMemory& ExtendedTensors();

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_APPEND_H_
