// Evaluates the time and byte formulas of collectives within groups.
#include "cost/collective_cost.h"

#include <algorithm>
#include <cmath>

#include "mesh/collective_record.h"

namespace distir::cost {

double Seconds(abi::Collective collective, double launch, const Link& link, int64_t group_size,
               double local_bytes) {
  const double sent = abi::SentBy(collective, group_size).Bytes(local_bytes);
  if (sent == 0) return 0;
  const int64_t others = group_size - 1;
  const double levels = std::ceil(std::log2(static_cast<double>(group_size)));
  const double in_turn = link.latency + link.gap;
  const bool is_power_of_two = (group_size & others) == 0;
  // A ring takes no fewer messages in turn than all peers at once.
  const double at_once = link.Seconds(others, 0);
  const double turns = is_power_of_two ? std::min(at_once, levels * in_turn) : at_once;
  switch (abi::RecordOf(collective).sends) {
    case abi::Sends::kPartsAtOnce:
      return launch + at_once + sent / link.bandwidth;
    case abi::Sends::kPartsAndBlock:
      return launch + std::min(2 * turns + sent / link.bandwidth,
                               2 * levels * in_turn + 2 * local_bytes / link.bandwidth);
    default:
      return launch + turns + sent / link.bandwidth;
  }
}

double Seconds(mesh::CollectiveKind kind, double launch, const Link& link, int64_t group_size,
               double local_bytes) {
  return Seconds(mesh::RecordedAs(kind), launch, link, group_size, local_bytes);
}

double BytesSent(mesh::CollectiveKind kind, int64_t group_size, double local_bytes) {
  return abi::SentBy(mesh::RecordedAs(kind), group_size).Bytes(local_bytes);
}

}  // namespace distir::cost
