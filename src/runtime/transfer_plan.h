/*!
 * \file runtime/transfer_plan.h
 * \brief Which boxes of a tensor one worker sends and receives when it moves between meshes.
 *
 * A plan is JSON over the *global* tensor, in grid units: a global dimension of size d that the
 * grid cuts into g units has units of d / g elements. Every device of the source (target) mesh has
 * a box: the part of the global tensor that its local tensor is.
 * \code{.json}
 *   {"channel": 3, "grid": [2, 4],
 *    "pieces": [[0, 5, [0, 0], [1, 2]], ...],          source, target, begin, end
 *    "source_boxes": {"0": [[0, 0], [2, 2]], ...},     device: begin, end
 *    "target_boxes": {"5": [[0, 0], [1, 4]], ...}}
 * \endcode
 * Units stand for any size, so a plan serves symbolic shapes.
 *
 * Example: with the plan above and a source tensor of [10, 6] on device 0, a unit is 5 x 3
 * elements; device 0 sends to device 5 the box of [5, 6] elements at [0, 0].
 */
#ifndef DISTIR_RUNTIME_TRANSFER_PLAN_H_
#define DISTIR_RUNTIME_TRANSFER_PLAN_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace distir::runtime {

/*! \brief A box that goes to or comes from a peer, in units, relative to the local tensor. */
struct TransferPiece {
  int peer;  // session rank
  std::vector<int64_t> begin;
  std::vector<int64_t> extent;
  /*! \brief Of what is sent: elements from one to the next, per dimension; empty: 1 everywhere. */
  std::vector<int64_t> steps;
};

/*! \brief The part of a plan that concerns one worker. */
struct TransferPlan {
  int64_t channel = 0;
  int rank = 0;
  bool is_source = false;
  bool is_target = false;
  std::vector<int64_t> source_units;  // units of the local source tensor, per dimension
  std::vector<int64_t> target_units;
  std::vector<TransferPiece> sends;     // in the order of the plan
  std::vector<TransferPiece> receives;  // in the order of the plan
};

/*!
 * \brief Reads a plan.
 * \param json The plan.
 * \param device_id The device of the calling worker.
 * \param rank_of The session rank of a device id; throws for devices the session lacks.
 * \throws ValueError for text that is not a plan, boxes that lie outside their tensor, and pieces
 *         that do not cover the target box of this device exactly.
 */
TransferPlan ParseTransferPlan(const std::string& json, int device_id,
                               const std::function<int(int64_t)>& rank_of);

/*! \brief A box in elements of a local tensor. */
struct ElementBox {
  std::vector<int64_t> begin;
  std::vector<int64_t> extent;
};

/*!
 * \brief Scales a piece from units to the elements of a local tensor.
 * \throws ValueError if the tensor's dimensions are not multiples of the units.
 */
ElementBox ScalePiece(const TransferPiece& piece, const std::vector<int64_t>& units,
                      const std::vector<int64_t>& local_shape);

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_TRANSFER_PLAN_H_
