/*!
 * \file runtime/communicators/nccl/data_type.h
 * \brief Maps dtypes and reductions to NCCL's.
 *
 * Data that is only moved is moved as bytes, so every dtype can be. Reductions are those that NCCL
 * has; bools are uint8 of 0 and 1, where `or` is the maximum and `and` the minimum.
 */
#ifndef DISTIR_RUNTIME_COMMUNICATORS_NCCL_DATA_TYPE_H_
#define DISTIR_RUNTIME_COMMUNICATORS_NCCL_DATA_TYPE_H_

#include <tvm/ffi/dtype.h>

#include "runtime/kernels/reduce.h"

namespace distir::runtime::nccl {

/*! \brief ncclDataType_t and ncclRedOp_t of a reduction. */
struct Reduction {
  int dtype;
  int operation;
};

/*!
 * \throws TypeError for a dtype that NCCL does not reduce (integers of 16 bits, vectors), and for
 *         the mean of integers or bools.
 */
Reduction FindReduction(DLDataType dtype, ReduceKind kind);

}  // namespace distir::runtime::nccl

#endif  // DISTIR_RUNTIME_COMMUNICATORS_NCCL_DATA_TYPE_H_
