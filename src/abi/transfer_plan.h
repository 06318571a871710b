/*!
 * \file abi/transfer_plan.h
 * \brief Plan of a tensor's move from one layout to another, on the same or on other devices.
 *
 * A plan states the two layouts, and each device computes from them what it sends and receives, so
 * that a plan is as long as the lists of its devices however many pieces move:
 * \code{.json}
 *   {"channel": 3, "shape": [10, 6],
 *    "source": {"devices": [[0, 2, 1]], "dims": [[[1, 2]], []]},
 *    "target": {"devices": [[2, 2, 1]], "dims": [[], [[1, 2]]]}}
 * \endcode
 * An extent of 0 is not known. "near", if some devices are nearer to each other than to others, is
 * a Closeness.
 *
 * Every target device gets each cell of its block once: from itself where it holds it, else from
 * the nearest of its holders. Equally near ones send as much of a block each, as far as pieces can
 * be cut: what is wanted of the block, in the order of those who want it, is divided among them,
 * and a piece is cut where the part of one ends and that of the next begins.
 *
 * Boxes are in units of a grid that divides both layouts' blocks, so a plan serves symbolic shapes:
 * a tensor dimension is cut into `grid[d]` equal parts. In the plan above (grid (2, 2)) device 0
 * holds [0, 0] to [1, 2]; it sends [0, 0] to [1, 1] to device 2 and [0, 1] to [1, 2] to device 3.
 */
#ifndef DISTIR_ABI_TRANSFER_PLAN_H_
#define DISTIR_ABI_TRANSFER_PLAN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "abi/layout.h"

namespace distir::abi {

struct TransferPlan {
  int64_t channel = 0;
  std::vector<int64_t> shape;  // 0 where unknown
  Layout source, target;
  Closeness closeness;
};

std::string ToJson(const TransferPlan& plan);
/*! \throws ValueError for text that is not a plan, and layouts of different ranks. */
TransferPlan ReadTransferPlan(const std::string& json);

/*! \brief A box of the global tensor in grid units, [begin, end) per dimension. */
struct Box {
  std::vector<int64_t> begin, end;
};

/*! \brief A box that goes to or comes from a device, which may be the same one. */
struct TransferPiece {
  int64_t peer;
  Box box;
};

/*! \brief Sends and receives of one device. */
struct TransferPart {
  std::vector<int64_t> grid;            // of this device: others may cut finer
  std::optional<Box> held, wanted;      // its blocks; null where it is no source, no target
  std::vector<TransferPiece> sends;     // by target, then place
  std::vector<TransferPiece> receives;  // by place
};

/*! \brief Parts that a device sends to others, of its block, which has `block` of them. */
struct SentShare {
  int64_t device;
  int64_t sent, block;
};

class TransferPlanner {
 public:
  explicit TransferPlanner(const TransferPlan& plan);
  /*! \brief The boxes that a device sends and receives. Takes time linear in its pieces, where all
   * devices are equally near. Otherwise a block of which several holders are equally near is looked
   * at with all devices that want it. */
  TransferPart PartOf(int64_t device) const;
  /*! \brief Parts that the holders of a block of the source send. Takes time linear in the holders
   * if there is one, or if all devices are equally near and want equal parts of the block;
   * otherwise linear in the devices that want a part, too. */
  std::vector<SentShare> SharesOf(int64_t number) const;

  const Blocks& source() const { return source_; }
  const Blocks& target() const { return target_; }

 private:
  class Meeting;
  class Pieces;

  std::vector<SentShare> SharesByDemands(const Meeting& meeting) const;
  void Receive(int64_t position, const Box& wanted, Pieces* pieces) const;
  void Send(int64_t position, Pieces* pieces) const;
  Box BoxOf(const Blocks& side, int64_t position) const;

  const TransferPlan& plan_;
  Blocks source_, target_;
  Neighbours neighbours_;
  std::vector<int64_t> grid_;   // the coarsest
  std::vector<int64_t> units_;  // elements per unit of it, 0 where unknown
  std::vector<int64_t> extents_of_source_, extents_of_target_;  // of their blocks
  std::vector<int64_t> target_of_source_;  // positions, -1 for others; empty: no device is in both
};

}  // namespace distir::abi
#endif  // DISTIR_ABI_TRANSFER_PLAN_H_
