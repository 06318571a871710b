/*!
 * \file mesh/blocks.cc
 * \brief Blocks of a sharded tensor and plans that move them.
 */
#include "mesh/blocks.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <numeric>

namespace distir {
namespace mesh {

namespace {

/*! \brief The devices of one side of a transfer by id, with the boxes that they hold. */
struct Side {
  std::vector<std::pair<int64_t, int64_t>> by_id;  // (device id, position), sorted
  std::vector<Box> boxes;                          // by position

  Side(const Mesh& mesh, const Sharding& sharding, const std::vector<int64_t>& grid)
      : boxes(DeviceBoxes(mesh, sharding, grid)) {
    for (size_t i = 0; i < boxes.size(); ++i) by_id.emplace_back(mesh.device_ids[i], i);
    std::sort(by_id.begin(), by_id.end());
  }
};

struct Holder {
  int64_t device_id;
  int64_t pieces_sent = 0;
};

/*! \brief The blocks that a sharding cuts a tensor into, and who holds each. */
class Blocks {
 public:
  Blocks(const Side& side, const Sharding& sharding, const std::vector<int64_t>& grid) {
    int64_t count = 1;
    for (size_t dim = 0; dim < grid.size(); ++dim) {
      counts_.push_back(NumShards(sharding.dims[dim]));
      extents_.push_back(grid[dim] / counts_.back());
      count *= counts_.back();
    }
    holders_.resize(count);
    for (const auto& [id, position] : side.by_id) {
      holders_[IndexOf(side.boxes[position].begin)].push_back(Holder{id});
    }
  }

  /*! \brief The part of `box` in the block that holds the cell `begin`. */
  Box Clip(const Box& box, const std::vector<int64_t>& begin) const {
    Box part{begin, begin};
    for (size_t dim = 0; dim < begin.size(); ++dim) {
      const int64_t block_end = (begin[dim] / extents_[dim] + 1) * extents_[dim];
      part.end[dim] = std::min(box.end[dim], block_end);
    }
    return part;
  }

  /*! \brief Who sends a part of the block with the cell `begin` to `target`. */
  int64_t ChooseSender(const std::vector<int64_t>& begin, int64_t target) {
    std::vector<Holder>& holders = holders_[IndexOf(begin)];
    auto own = std::lower_bound(holders.begin(), holders.end(), target,
                                [](const Holder& h, int64_t id) { return h.device_id < id; });
    if (own != holders.end() && own->device_id == target) return target;
    auto least = std::min_element(
        holders.begin(), holders.end(),
        [](const Holder& a, const Holder& b) { return a.pieces_sent < b.pieces_sent; });
    ++least->pieces_sent;
    return least->device_id;
  }

 private:
  int64_t IndexOf(const std::vector<int64_t>& cell) const {
    int64_t index = 0;
    for (size_t dim = 0; dim < cell.size(); ++dim) {
      index = index * counts_[dim] + cell[dim] / extents_[dim];
    }
    return index;
  }

  std::vector<int64_t> counts_;               // blocks per dimension
  std::vector<int64_t> extents_;              // of a block, in grid units
  std::vector<std::vector<Holder>> holders_;  // per block, by device id
};

/*!
 * \brief Moves `begin` to the next part of `box`, in the order of begins, `part` being the present
 * one; false after the last.
 */
bool NextPart(const Box& box, const Box& part, std::vector<int64_t>* begin) {
  for (size_t dim = begin->size(); dim-- > 0;) {
    if (part.end[dim] < box.end[dim]) {
      (*begin)[dim] = part.end[dim];
      return true;
    }
    (*begin)[dim] = box.begin[dim];
  }
  return false;
}

void CheckNotPartial(const Sharding& sharding, const char* side) {
  if (sharding.partial.empty()) return;
  TVM_FFI_THROW(ValueError) << "the " << side << " of a transfer is partial over "
                            << ToString(sharding.partial) << "; reduce it first";
}

}  // namespace

std::vector<Box> DeviceBoxes(const Mesh& mesh, const Sharding& sharding,
                             const std::vector<int64_t>& grid) {
  const size_t ndim = sharding.dims.size();
  if (grid.size() != ndim) {
    TVM_FFI_THROW(ValueError) << "a grid of " << grid.size()
                              << " dimensions does not fit a sharding of " << ndim;
  }
  const std::vector<int64_t> extents = LocalShape(grid, sharding);
  std::vector<Box> boxes(mesh.size());
  for (int64_t position = 0; position < mesh.size(); ++position) {
    const std::vector<int64_t> at = mesh.Coordinates(position);
    Box& box = boxes[position];
    box.begin.resize(ndim);
    box.end.resize(ndim);
    for (size_t dim = 0; dim < ndim; ++dim) {
      box.begin[dim] = ShardIndex(mesh, sharding.dims[dim], at) * extents[dim];
      box.end[dim] = box.begin[dim] + extents[dim];
    }
  }
  return boxes;
}

TransferPlan PlanTransfer(const Mesh& source_mesh, const Sharding& source, const Mesh& target_mesh,
                          const Sharding& target) {
  const size_t ndim = source.dims.size();
  if (target.dims.size() != ndim) {
    TVM_FFI_THROW(ValueError) << "cannot transfer a tensor of " << ndim
                              << " dimensions to a sharding of " << target.dims.size();
  }
  CheckNotPartial(source, "source");
  CheckNotPartial(target, "target");
  TransferPlan plan;
  for (size_t dim = 0; dim < ndim; ++dim) {
    plan.grid.push_back(std::lcm(NumShards(source.dims[dim]), NumShards(target.dims[dim])));
  }
  const Side from(source_mesh, source, plan.grid);
  const Side to(target_mesh, target, plan.grid);
  Blocks blocks(from, source, plan.grid);
  for (const auto& [target_id, position] : to.by_id) {
    const Box& wanted = to.boxes[position];
    std::vector<int64_t> begin = wanted.begin;
    for (bool more = true; more;) {
      Box part = blocks.Clip(wanted, begin);
      const int64_t sender = blocks.ChooseSender(begin, target_id);
      more = NextPart(wanted, part, &begin);
      plan.pieces.push_back(Piece{sender, target_id, std::move(part)});
    }
  }
  return plan;
}

}  // namespace mesh
}  // namespace distir
