// Times kernels: the bytes that they read and write, and which part of the time is whose.
#include <algorithm>

#include "autosharding/kernels.h"

namespace distir::autosharding {

using propagation::Node;
using propagation::SlotInfo;

double Kernels::Local(int slot, int number) const {
  const SlotInfo& info = graph_.slots[slot];
  const mesh::Sharding& sharding = moves_.Sharding(number);
  if (sharding.dims.size() != info.sizes.size()) return info.bytes();
  return LocalBytes(info.sizes, info.bytes(), sharding);
}

double Kernels::SecondsToAccess(size_t call, size_t way) const {
  const Node& node = graph_.nodes[call];
  const NumberedWays& rule = *calls_[call].rule;
  double bytes = 0;
  for (size_t o = 0; o < node.operands.size(); ++o)
    bytes += Local(node.operands[o], rule.operands[o][way]);
  for (size_t r = 0; r < node.results.size(); ++r)
    bytes += Local(node.results[r], rule.results[r][way]);
  return limits_.Seconds(0, bytes);
}

double Kernels::ResultRatio(size_t call, int way) const {
  const Node& node = graph_.nodes[call];
  double whole = 0, local = 0;
  for (size_t r = 0; r < node.results.size(); ++r) {
    whole += graph_.slots[node.results[r]].bytes();
    local += Local(node.results[r], ResultNumber({call, r}, way));
  }
  return whole > 0 ? local / whole : calls_[call].rule->ways[way].fraction;
}

/*! \brief Bytes of a call's kernel that a part of a fused one reads or writes.
 * \param read What others of the part read: TVM passes it once. */
double Kernels::BytesOf(const Group& group, const Part& part, const Piece& piece,
                        std::vector<std::pair<int, int>>* read) const {
  const size_t call = piece.call;
  const Node& node = graph_.nodes[call];
  const std::vector<KernelWork>& kernels = calls_[call].work->kernels;
  const KernelWork& work = kernels[piece.kernel];
  const int way = WayOf(group, part, call);
  const auto is_here = [&](size_t kernel) { return &groups_[groups_of_[call][kernel]] == &group; };
  const auto scaled = [](double bytes, double local, double whole) {
    return whole > 0 ? bytes * local / whole : 0;
  };
  double bytes = 0;
  if (piece.kernel > 0) {
    if (!is_here(piece.kernel - 1)) bytes += work.read * ResultRatio(call, way);
  } else {
    double whole = 0, local = 0;
    for (size_t o = 0; o < node.operands.size(); ++o) {
      const int slot = node.operands[o];
      const int number = OperandNumber({call, o}, way);
      whole += graph_.slots[slot].bytes();
      if (is_inner_[slot]) {
        const int made = WayOf(group, part, maker_[slot].call);
        if (made >= 0 && ResultNumber(maker_[slot], made) == number) continue;
      }
      const std::pair<int, int> access(slot, number);
      if (read != nullptr) {
        if (std::find(read->begin(), read->end(), access) != read->end()) continue;
        read->push_back(access);
      }
      local += Local(slot, number);
    }
    bytes += scaled(work.read, local, whole);
  }
  if (piece.kernel + 1 < kernels.size()) {
    if (!is_here(piece.kernel + 1)) bytes += work.written * ResultRatio(call, way);
    return bytes;
  }
  double whole = 0, local = 0;
  for (size_t r = 0; r < node.results.size(); ++r) {
    const int slot = node.results[r];
    const int number = ResultNumber({call, r}, way);
    whole += graph_.slots[slot].bytes();
    const bool stays =
        is_inner_[slot] &&
        std::all_of(readers_[slot].begin(), readers_[slot].end(), [&](const Use& reader) {
          const int reading = WayOf(group, part, reader.call);
          return reading >= 0 && OperandNumber(reader, reading) == number;
        });
    if (!stays) local += Local(slot, number);
  }
  return bytes + scaled(work.written, local, whole);
}

Kernels::Time Kernels::TimeOf(const Group& group, const Part& part) const {
  Time time;
  time.shares.resize(part.size(), 0);
  std::vector<double> computing(part.size(), 0), bytes(part.size(), 0);
  std::vector<std::pair<int, int>> read;
  double all_computing = 0, all_bytes = 0;
  size_t num_pieces = 0, last = 0;
  for (const Piece& piece : group.pieces)
    num_pieces += part[PositionOf(group, piece.call)] >= 0 ? 1 : 0;
  for (const Piece& piece : group.pieces) {
    const size_t position = PositionOf(group, piece.call);
    if (part[position] < 0) continue;
    const Call& call = calls_[piece.call];
    const double own =
        call.work->kernels[piece.kernel].computing * call.rule->ways[part[position]].fraction;
    const double moved = BytesOf(group, part, piece, num_pieces > 1 ? &read : nullptr);
    computing[position] += own;
    bytes[position] += moved;
    all_computing += own;
    all_bytes += moved;
    last = position;
  }
  if (num_pieces == 0) return time;
  // TVM writes several views that follow each other as a kernel that copies.
  if (num_pieces == 1 && calls_[group.calls[last]].work->is_view) return time;
  const double bandwidth = limits_.BandwidthOf(all_bytes);
  time.seconds = limits_.Seconds(all_computing, all_bytes);
  if (time.seconds <= limits_.launch) {
    time.shares[last] = time.seconds;
  } else {
    for (size_t i = 0; i < part.size(); ++i)
      time.shares[i] = time.seconds <= all_computing ? computing[i] : bytes[i] / bandwidth;
  }
  return time;
}

}  // namespace distir::autosharding
