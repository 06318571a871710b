/*!
 * \file mesh/blocks.cc
 * \brief Blocks of a sharded tensor and plans that move them.
 */
#include "mesh/blocks.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

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
      holders_[IndexOf(side.boxes[position].begin)].push_back(id);
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

  /*! \brief The index of the block that holds a cell. */
  int64_t IndexOf(const std::vector<int64_t>& cell) const {
    int64_t index = 0;
    for (size_t dim = 0; dim < cell.size(); ++dim) {
      index = index * counts_[dim] + cell[dim] / extents_[dim];
    }
    return index;
  }

  /*! \brief Device ids, sorted. */
  const std::vector<int64_t>& HoldersOf(int64_t block) const { return holders_[block]; }

 private:
  std::vector<int64_t> counts_;                // blocks per dimension
  std::vector<int64_t> extents_;               // of a block, in grid units
  std::vector<std::vector<int64_t>> holders_;  // per block
};

std::vector<int64_t> Nearest(const std::vector<int64_t>& holders, int64_t target,
                             const Distance& distance) {
  if (distance == nullptr) return holders;
  std::vector<int64_t> nearest;
  int least = std::numeric_limits<int>::max();
  for (int64_t holder : holders) {
    const int far = distance(holder, target);
    if (far > least) continue;
    if (far < least) nearest.clear();
    least = far;
    nearest.push_back(holder);
  }
  return nearest;
}

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

/*! \brief A box that a device wants and does not hold. */
struct Demand {
  int64_t target;
  Box box;
};

/*! \brief Spreads demands for one block over its holders; cuts boxes where that makes it even. */
class Spreader {
 public:
  /*! \param units Elements per grid unit in each dimension, 0 where unknown. */
  explicit Spreader(std::vector<int64_t> units)
      : units_(std::move(units)), refinement_(units_.size(), 1) {}

  void Spread(const std::vector<Demand>& demands, const std::vector<int64_t>& holders) {
    const int64_t num_demands = static_cast<int64_t>(demands.size());
    const int64_t num_holders = static_cast<int64_t>(holders.size());
    // Slabs of each demand. Where one cannot be cut none is, since cuts would not make it even.
    int64_t slabs = num_holders / std::gcd(num_demands, num_holders);
    std::vector<size_t> dims;
    for (const Demand& demand : demands) dims.push_back(DimensionToCut(demand.box, slabs));
    if (std::find(dims.begin(), dims.end(), units_.size()) != dims.end()) slabs = 1;
    auto holder_of = [&](int64_t slab) { return slab * num_holders / (num_demands * slabs); };
    for (int64_t i = 0; i < num_demands; ++i) {
      const Demand& demand = demands[i];
      const size_t dim = slabs > 1 ? dims[i] : units_.size();
      if (slabs > 1) Refine(dim, Refinement(demand.box, dim, slabs));
      for (int64_t from = 0, to; from < slabs; from = to) {
        const int64_t holder = holder_of(i * slabs + from);
        to = from + 1;
        while (to < slabs && holder_of(i * slabs + to) == holder) ++to;
        cuts_.push_back({{holders[holder], demand.target, demand.box}, dim, from, to, slabs});
      }
    }
  }

  /*! \brief How much finer the grid has to be for all cuts. */
  const std::vector<int64_t>& refinement() const { return refinement_; }

  /*! \brief The pieces, in units of the finer grid. */
  void AddTo(std::vector<Piece>* pieces) const {
    for (const Cut& cut : cuts_) {
      Piece piece = cut.piece;
      for (size_t d = 0; d < refinement_.size(); ++d) {
        piece.box.begin[d] *= refinement_[d];
        piece.box.end[d] *= refinement_[d];
      }
      if (cut.dim < refinement_.size()) {
        const int64_t begin = piece.box.begin[cut.dim];
        const int64_t extent = piece.box.end[cut.dim] - begin;
        piece.box.begin[cut.dim] = begin + extent * cut.from / cut.slabs;
        piece.box.end[cut.dim] = begin + extent * cut.to / cut.slabs;
      }
      pieces->push_back(std::move(piece));
    }
  }

 private:
  /*! \brief Slabs [from, to) of a piece that is cut into `slabs` along `dim`. */
  struct Cut {
    Piece piece;
    size_t dim;
    int64_t from, to, slabs;
  };

  /*! \brief The dimension along which a box cuts into equal slabs with the least refinement; their
   * number when there is none. */
  size_t DimensionToCut(const Box& box, int64_t slabs) const {
    size_t best = units_.size();
    int64_t least = 0;
    for (size_t d = 0; d < units_.size(); ++d) {
      const int64_t finer = Refinement(box, d, slabs);
      if (finer > 1 && (units_[d] == 0 || units_[d] % finer != 0)) continue;
      if (best == units_.size() || finer < least) {
        best = d;
        least = finer;
      }
    }
    return best;
  }

  /*! \brief How much finer the grid has to be to cut a box along `dim`. */
  static int64_t Refinement(const Box& box, size_t dim, int64_t slabs) {
    return slabs / std::gcd(box.end[dim] - box.begin[dim], slabs);
  }
  void Refine(size_t dim, int64_t finer) { refinement_[dim] = std::lcm(refinement_[dim], finer); }

  std::vector<int64_t> units_;
  std::vector<int64_t> refinement_;
  std::vector<Cut> cuts_;
};

void CheckNotPartial(const Mesh& mesh, const Sharding& sharding, const char* side) {
  if (sharding.partial.empty()) return;
  TVM_FFI_THROW(ValueError) << "the " << side << " of a transfer is partial over "
                            << ToString(sharding.partial, mesh) << "; reduce it first";
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
                          const Sharding& target, const std::vector<int64_t>& shape,
                          const Distance& distance) {
  const size_t ndim = source.dims.size();
  if (target.dims.size() != ndim) {
    TVM_FFI_THROW(ValueError) << "cannot transfer a tensor of " << ndim
                              << " dimensions to a sharding of " << target.dims.size();
  }
  CheckNotPartial(source_mesh, source, "source");
  CheckNotPartial(target_mesh, target, "target");
  TransferPlan plan;
  for (size_t dim = 0; dim < ndim; ++dim) {
    plan.grid.push_back(std::lcm(NumShards(source.dims[dim]), NumShards(target.dims[dim])));
  }
  const Side from(source_mesh, source, plan.grid);
  const Side to(target_mesh, target, plan.grid);
  const Blocks blocks(from, source, plan.grid);
  std::vector<Piece> kept;
  std::map<std::pair<int64_t, std::vector<int64_t>>, std::vector<Demand>> demands;
  for (const auto& [target_id, position] : to.by_id) {
    const Box& wanted = to.boxes[position];
    std::vector<int64_t> begin = wanted.begin;
    for (bool more = true; more;) {
      Box part = blocks.Clip(wanted, begin);
      const int64_t block = blocks.IndexOf(begin);
      const std::vector<int64_t>& holders = blocks.HoldersOf(block);
      more = NextPart(wanted, part, &begin);
      if (std::binary_search(holders.begin(), holders.end(), target_id)) {
        kept.push_back({target_id, target_id, std::move(part)});
      } else {
        demands[{block, Nearest(holders, target_id, distance)}].push_back(
            {target_id, std::move(part)});
      }
    }
  }
  std::vector<int64_t> units(ndim, 0);
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    if (shape[dim] % plan.grid[dim] == 0) units[dim] = shape[dim] / plan.grid[dim];
  }
  Spreader spreader(std::move(units));
  for (const auto& [block, wanted] : demands) spreader.Spread(wanted, block.second);
  for (Piece& piece : kept) {
    for (size_t dim = 0; dim < ndim; ++dim) {
      piece.box.begin[dim] *= spreader.refinement()[dim];
      piece.box.end[dim] *= spreader.refinement()[dim];
    }
  }
  plan.pieces = std::move(kept);
  spreader.AddTo(&plan.pieces);
  for (size_t dim = 0; dim < ndim; ++dim) plan.grid[dim] *= spreader.refinement()[dim];
  std::sort(plan.pieces.begin(), plan.pieces.end(), [](const Piece& a, const Piece& b) {
    return std::tie(a.target, a.box.begin) < std::tie(b.target, b.box.begin);
  });
  return plan;
}

}  // namespace mesh
}  // namespace distir
