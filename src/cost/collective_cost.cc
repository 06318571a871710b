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
  const int64_t others = group_size - 1;
  const double levels = std::ceil(std::log2(static_cast<double>(group_size)));
  const double in_turn = link.latency + link.gap;
  const bool is_power_of_two = (group_size & others) == 0;
  // A ring takes no fewer messages in turn than all peers at once.
  const double at_once = link.Seconds(others, 0);
  const double turns = is_power_of_two ? std::min(at_once, levels * in_turn) : at_once;
  switch (kind) {
    case mesh::CollectiveKind::kAllToAll:
      return launch + at_once + sent / link.bandwidth;
    case mesh::CollectiveKind::kAllReduce:
      return launch + std::min(2 * turns + sent / link.bandwidth,
                               2 * levels * in_turn + 2 * local_bytes / link.bandwidth);
    default:
      return launch + turns + sent / link.bandwidth;
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
