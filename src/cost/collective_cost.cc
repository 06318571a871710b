#include "cost/collective_cost.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <cmath>

namespace distir {
namespace cost {

double Seconds(mesh::CollectiveKind kind, double launch, const Link& link, int64_t group_size,
               double local_bytes) {
  const double sent = BytesSent(kind, group_size, local_bytes);
  if (sent == 0) return 0;
  const double others = static_cast<double>(group_size - 1);
  const double levels = std::ceil(std::log2(static_cast<double>(group_size)));
  const bool is_power_of_two = (group_size & (group_size - 1)) == 0;
  const double steps = is_power_of_two ? levels : others;
  auto seconds = [&](double messages, double bytes) {
    return launch + messages * link.latency + bytes / link.bandwidth;
  };
  switch (kind) {
    case mesh::CollectiveKind::kAllToAll:
      return seconds(others, sent);
    case mesh::CollectiveKind::kAllReduce:
      return std::min(seconds(2 * steps, sent), seconds(2 * levels, 2 * local_bytes));
    default:
      return seconds(steps, sent);
  }
}

double BytesSent(mesh::CollectiveKind kind, int64_t group_size, double local_bytes) {
  double others = static_cast<double>(group_size - 1);
  double n = static_cast<double>(group_size);
  switch (kind) {
    case mesh::CollectiveKind::kAllGather:
      return local_bytes * others;  // its shard reaches every other device once
    case mesh::CollectiveKind::kReduceScatter:
    case mesh::CollectiveKind::kAllToAll:
      return local_bytes * others / n;
    case mesh::CollectiveKind::kAllReduce:
      return 2 * local_bytes * others / n;
    case mesh::CollectiveKind::kSlice:
    case mesh::CollectiveKind::kView:
      return 0;
    case mesh::CollectiveKind::kPermute:
    case mesh::CollectiveKind::kExchange:
    case mesh::CollectiveKind::kTransfer:
      break;
  }
  TVM_FFI_THROW(ValueError) << "the bytes of " << mesh::CollectiveName(kind)
                            << " depend on its plan";
}

}  // namespace cost
}  // namespace distir
