// Sorts rows by the expert that they have chosen, and counts them.
#include "runtime/expert_order.h"

#include <algorithm>

#include "runtime/kernels/strided_copy.h"

namespace distir::runtime {

using tvm::ffi::TensorView;

ExpertOrder::ExpertOrder(const TensorView& ids, int64_t num_experts) : counts(num_experts, 0) {
  const int64_t num = ids.size(0);
  std::vector<int64_t> expert_of(num);
  for (int64_t i = 0; i < num; ++i) {
    const int64_t id = ids.dtype().bits == 64 ? reinterpret_cast<const int64_t*>(DataOf(ids))[i]
                                              : reinterpret_cast<const int32_t*>(DataOf(ids))[i];
    expert_of[i] = std::clamp<int64_t>(id, 0, num_experts - 1);
    ++counts[expert_of[i]];
  }
  std::vector<int64_t> next(num_experts, 0);
  for (int64_t e = 1; e < num_experts; ++e) next[e] = next[e - 1] + counts[e - 1];
  rows.resize(num);
  for (int64_t i = 0; i < num; ++i) rows[next[expert_of[i]]++] = i;
}

std::vector<int64_t> ExpertOrder::ByMember(int64_t members) const {
  const int64_t of_each = static_cast<int64_t>(counts.size()) / members;
  std::vector<int64_t> sums(members, 0);
  for (size_t e = 0; e < counts.size(); ++e) sums[e / of_each] += counts[e];
  return sums;
}

bool AreIds(const TensorView& ids) {
  return ids.ndim() == 1 && ids.dtype().code == kDLInt && ids.dtype().lanes == 1 &&
         (ids.dtype().bits == 32 || ids.dtype().bits == 64);
}

}  // namespace distir::runtime
