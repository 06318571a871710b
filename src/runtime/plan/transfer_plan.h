/*!
 * \file runtime/plan/transfer_plan.h
 * \brief A worker's part of a transfer plan (abi/transfer_plan.h): boxes of its local tensors that
 * it sends and receives when a tensor moves between layouts.
 *
 * A local dimension of size d that has u grid units has units of d / u elements. Units stand for
 * any size, so a plan serves symbolic shapes.
 *
 * Example: a source of [10, 6] elements on two devices by rows, a target on two others by columns.
 * The source of device 0, [5, 6] elements, is [1, 2] units; to device 2 it sends the box of [5, 3]
 * elements at [0, 0].
 */
#ifndef DISTIR_RUNTIME_PLAN_TRANSFER_PLAN_H_
#define DISTIR_RUNTIME_PLAN_TRANSFER_PLAN_H_

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
  /*! \brief Steps between the sent elements, per dimension; empty: 1 everywhere. */
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
  std::vector<TransferPiece> sends;     // by target, then place
  std::vector<TransferPiece> receives;  // by place
};

/*!
 * \brief Reads a plan and computes the part of one worker.
 * \param json The plan.
 * \param device_id The device of the calling worker.
 * \param rank_of The session rank of a device id; throws for devices the session lacks.
 * \throws ValueError for text that is not a plan.
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

#endif  // DISTIR_RUNTIME_PLAN_TRANSFER_PLAN_H_
