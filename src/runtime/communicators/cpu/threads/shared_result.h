/*!
 * \file runtime/communicators/cpu/threads/shared_result.h
 * \brief Result of a collective that all its threads share.
 *
 * Members ask for it before they meet, in any order; who comes first allocates it. A member asks
 * for the result of its next collective only when all have left the one before, so there is one at
 * a time.
 */
#ifndef DISTIR_RUNTIME_COMMUNICATORS_CPU_THREADS_SHARED_RESULT_H_
#define DISTIR_RUNTIME_COMMUNICATORS_CPU_THREADS_SHARED_RESULT_H_

#include <tvm/ffi/container/tensor.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "runtime/communicators/result_memory.h"

namespace distir::runtime::cpu {

class SharedResult {
 public:
  SharedResult(int num_members, std::shared_ptr<ResultMemory> memory)
      : num_members_(num_members), memory_(std::move(memory)) {}

  /*!
   * \brief The result of collective number `number` of the group: the same tensor for all members
   *        that ask for the same shape and dtype. (If they differ, the collective fails.)
   */
  tvm::ffi::Tensor Take(uint64_t number, tvm::ffi::ShapeView shape, DLDataType dtype) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!tensor_.has_value() || number != number_) {
      tensor_ = memory_->NewTensor(shape, dtype);
      number_ = number;
      num_taken_ = 0;
    }
    const tvm::ffi::ShapeView found = tensor_->shape();
    if (tensor_->dtype() != dtype ||
        !std::equal(found.begin(), found.end(), shape.begin(), shape.end())) {
      return memory_->NewTensor(shape, dtype);
    }
    if (++num_taken_ < num_members_) return *tensor_;
    tvm::ffi::Tensor last = *tensor_;
    tensor_.reset();
    return last;
  }

 private:
  const int num_members_;
  const std::shared_ptr<ResultMemory> memory_;
  std::mutex mutex_;
  std::optional<tvm::ffi::Tensor> tensor_;
  uint64_t number_ = 0;
  int num_taken_ = 0;
};

}  // namespace distir::runtime::cpu

#endif  // DISTIR_RUNTIME_COMMUNICATORS_CPU_THREADS_SHARED_RESULT_H_
