/*!
 * \file runtime/expert_order.h
 * \brief Sorts rows by the experts that they have chosen.
 *
 * Example: ids [3, 0, 2, 3] of 4 experts: rows (1, 2, 0, 3), counts (1, 0, 1, 2).
 */
#ifndef DISTIR_RUNTIME_EXPERT_ORDER_H_
#define DISTIR_RUNTIME_EXPERT_ORDER_H_

#include <tvm/ffi/container/tensor.h>

#include <cstdint>
#include <vector>

namespace distir::runtime {

struct ExpertOrder {
  /*! \param ids A list of int32 or int64, see AreIds; one outside of the experts means the nearest.
   */
  ExpertOrder(const tvm::ffi::TensorView& ids, int64_t num_experts);

  /*! \brief Number of rows for the experts of each of `members`. */
  std::vector<int64_t> ByMember(int64_t members) const;

  std::vector<int64_t> counts;  // by expert
  std::vector<int64_t> rows;
};

/*! \brief True if a tensor is a list of int32 or int64. */
bool AreIds(const tvm::ffi::TensorView& ids);

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_EXPERT_ORDER_H_
