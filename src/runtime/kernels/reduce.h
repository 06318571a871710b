/*!
 * \file runtime/kernels/reduce.h
 * \brief Element-wise reduction of equally shaped buffers in host memory.
 *
 * Buffers are combined in the order in which they are given, so every worker that reduces the same
 * buffers in the same order gets the same bits. Floats of 16 and 8 bits accumulate in float32 and
 * are rounded once, at the end. Integers wrap around. max and min give NaN where any source has
 * one. bool: sum and max are `or`, prod and min are `and`.
 *
 * Example: the float16 sum of three buffers of 100 elements:
 * \code
 *   ReduceFunction sum = FindReduceFunction(float16, ReduceKind::kSum);
 *   sum(sources, 3, 0, 100, &out, 1);
 * \endcode
 */
#ifndef DISTIR_RUNTIME_KERNELS_REDUCE_H_
#define DISTIR_RUNTIME_KERNELS_REDUCE_H_

#include <tvm/ffi/dtype.h>

#include <cstdint>
#include <string>

namespace distir::runtime {

enum class ReduceKind : int { kSum, kMax, kMin, kProd, kMean };

/*! \brief "sum", "max", "min", "prod" or "mean". \throws ValueError for anything else. */
ReduceKind ParseReduceKind(const std::string& name);

/*! \brief The inverse of ParseReduceKind. */
const char* ReduceKindName(ReduceKind kind);

/*!
 * \brief Reduces elements [begin, begin + count) of each of `num_sources` buffers into elements
 *        [0, count) of each of `num_outs` results. A result may be at the same address as a
 *        source's element `begin`.
 */
using ReduceFunction = void (*)(const void* const* sources, int num_sources, int64_t begin,
                                int64_t count, void* const* outs, int num_outs);

/*! \brief True if results are left in the caches, or are too large for them. */
enum class ResultSize { kCached, kStreamed };

/*! \brief The size class of a result of so many bytes. */
ResultSize ResultSizeOf(int64_t num_bytes);

/*!
 * \brief The kernel for a dtype and a kind.
 * \throws TypeError for a dtype that cannot be reduced, and for the mean of integers or bools.
 */
ReduceFunction FindReduceFunction(DLDataType dtype, ReduceKind kind,
                                  ResultSize size = ResultSize::kCached);

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_KERNELS_REDUCE_H_
