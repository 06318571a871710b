// Sends rows between the members of a group, in numbers known at run time.
#include "runtime/row_exchange.h"

#include <cstring>

#include "abi/collective.h"
#include "runtime/kernels/reduce.h"
#include "runtime/kernels/strided_copy.h"

namespace distir::runtime {

namespace ffi = tvm::ffi;
using ffi::TensorView;

namespace {

// Those of compiled plans count from 0.
constexpr int64_t kChannel = -1;

}  // namespace

int64_t WidthOf(const TensorView& tensor) {
  int64_t width = 1;
  for (int d = 1; d < tensor.ndim(); ++d) width *= tensor.size(d);
  return width;
}

ffi::Tensor NewRows(int64_t rows, const TensorView& like) {
  return WorkerContext::Current().communicator().NewTensor(ffi::Shape({rows, WidthOf(like)}),
                                                           like.dtype());
}

void AddRowsUp(const std::vector<std::vector<const void*>>& parts, const TensorView& out) {
  const int64_t row_bytes = out.size(1) * ElementBytes(out.dtype());
  const ReduceFunction sum = FindReduceFunction(out.dtype(), ReduceKind::kSum);
  for (size_t row = 0; row < parts.size(); ++row) {
    void* to = DataOf(out) + row * row_bytes;
    if (parts[row].empty()) {
      std::memset(to, 0, row_bytes);
    } else {
      sum(parts[row].data(), static_cast<int>(parts[row].size()), 0, out.size(1), &to, 1);
    }
  }
}

void MoveRows(abi::Collective kind, const ffi::String& groups, const Group& group,
              const ffi::Tensor& x, const std::vector<int64_t>& sent, const ffi::Tensor& out,
              const std::vector<int64_t>& received, int64_t bytes_of_counts) {
  WorkerContext& worker = WorkerContext::Current();
  TransferPlan plan;
  plan.channel = kChannel;
  plan.rank = worker.rank();
  plan.is_source = plan.is_target = true;
  plan.source_units = {x.size(0), 1};
  plan.target_units = {out.size(0), 1};
  int64_t begin_sent = 0, begin_received = 0, others_sent = 0, others_received = 0, messages = 0;
  for (int m = 0; m < group.size(); ++m) {
    const bool is_other = m != group.position;
    if (sent[m] > 0) plan.sends.push_back({group.ranks[m], {begin_sent, 0}, {sent[m], 1}, {}});
    if (received[m] > 0)
      plan.receives.push_back({group.ranks[m], {begin_received, 0}, {received[m], 1}, {}});
    begin_sent += sent[m];
    begin_received += received[m];
    if (!is_other) continue;
    others_sent += sent[m];
    others_received += received[m];
    messages += sent[m] > 0 ? 1 : 0;
  }
  const TensorView source = x, target = out;
  worker.communicator().Transfer(plan, &source, &target);
  const int64_t row_bytes = x.size(1) * ElementBytes(x.dtype());
  if (bytes_of_counts > 0) messages += group.size() - 1;
  worker.traffic().CountRows(kind, groups, group, others_sent * row_bytes + bytes_of_counts,
                             others_received * row_bytes + bytes_of_counts, messages);
}

}  // namespace distir::runtime
