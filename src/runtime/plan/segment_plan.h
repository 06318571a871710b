/*!
 * \file runtime/plan/segment_plan.h
 * \brief A worker's part of a segment plan (abi/segment_plan.h): segments along one dimension that
 * it sends, receives, and fills itself.
 */
#ifndef DISTIR_RUNTIME_PLAN_SEGMENT_PLAN_H_
#define DISTIR_RUNTIME_PLAN_SEGMENT_PLAN_H_

#include <tvm/ffi/container/tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/plan/transfer_plan.h"

namespace distir::runtime {

/*! \brief The part of a plan that concerns one worker. */
struct SegmentPlan {
  TransferPlan transfer;
  int dim = 0;
  int64_t source_size = 0;  // of the local tensors along dim
  int64_t target_size = 0;
  double fill = 0;
  std::vector<std::pair<int64_t, int64_t>> gaps;  // begin, end of what no piece gives
};

/*!
 * \brief Reads a plan and computes the part of one worker; parameters as of ParseTransferPlan.
 * \throws ValueError for text that is not a plan, and devices that are not on both sides.
 */
SegmentPlan ParseSegmentPlan(const std::string& json, int device_id,
                             const std::function<int(int64_t)>& rank_of);

/*!
 * \brief The fill value as it is stored, in the first bytes.
 * \throws TypeError for types that the runtime has no values of.
 */
std::array<char, 8> StoredFill(const SegmentPlan& plan, DLDataType dtype);

/*!
 * \brief Writes the fill value in the gaps of a tensor in host memory.
 * \throws TypeError for types that the runtime has no values of.
 */
void FillGaps(const SegmentPlan& plan, const tvm::ffi::TensorView& out);

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_PLAN_SEGMENT_PLAN_H_
