/*!
 * \file runtime/row_exchange.h
 * \brief Exchange of rows among the members of a group, with counts known at run time.
 */
#ifndef DISTIR_RUNTIME_ROW_EXCHANGE_H_
#define DISTIR_RUNTIME_ROW_EXCHANGE_H_

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/string.h>

#include <cstdint>
#include <vector>

#include "runtime/session/worker_context.h"

namespace distir::abi {
enum class Collective : uint8_t;
}  // namespace distir::abi

namespace distir::runtime {

/*! \brief Elements of a row of a tensor (rows, ..). */
int64_t WidthOf(const tvm::ffi::TensorView& tensor);

/*! \brief New rows on this worker, of the width and dtype of others. */
tvm::ffi::Tensor NewRows(int64_t rows, const tvm::ffi::TensorView& like);

/*! \brief Writes to each row of a matrix the sum of rows, which lie anywhere; zeros where there are
 * none. \param parts By row of `out`, in the order of the sum. */
void AddRowsUp(const std::vector<std::vector<const void*>>& parts, const tvm::ffi::TensorView& out);

/*!
 * \brief Sends `sent[m]` rows of x to each member m of a group, in their order, and receives
 * `received[m]` rows into out; counts what it sends.
 * \param bytes_of_counts That members have told each other before, to know how many.
 */
void MoveRows(abi::Collective kind, const tvm::ffi::String& groups, const Group& group,
              const tvm::ffi::Tensor& x, const std::vector<int64_t>& sent,
              const tvm::ffi::Tensor& out, const std::vector<int64_t>& received,
              int64_t bytes_of_counts);

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_ROW_EXCHANGE_H_
