// Turns a transfer plan into the boxes that one worker sends and receives.
#include "runtime/plan/transfer_plan.h"

#include <tvm/ffi/error.h>

#include "abi/transfer_plan.h"

namespace distir::runtime {

namespace {

std::vector<int64_t> ExtentOf(const abi::Box& box) {
  std::vector<int64_t> extent(box.begin.size());
  for (size_t i = 0; i < extent.size(); ++i) extent[i] = box.end[i] - box.begin[i];
  return extent;
}

/*! \brief Pieces with ranks, relative to the local tensor. */
std::vector<TransferPiece> LocalPieces(const std::vector<abi::TransferPiece>& pieces,
                                       const abi::Box& local,
                                       const std::function<int(int64_t)>& rank_of) {
  std::vector<TransferPiece> result;
  for (const abi::TransferPiece& piece : pieces) {
    result.push_back({rank_of(piece.peer), piece.box.begin, ExtentOf(piece.box), {}});
    std::vector<int64_t>& begin = result.back().begin;
    for (size_t i = 0; i < begin.size(); ++i) begin[i] -= local.begin[i];
  }
  return result;
}

}  // namespace

TransferPlan ParseTransferPlan(const std::string& json, int device_id,
                               const std::function<int(int64_t)>& rank_of) {
  const abi::TransferPlan stated = abi::ReadTransferPlan(json);
  const abi::TransferPart part = abi::TransferPlanner(stated).PartOf(device_id);
  TransferPlan plan;
  plan.channel = stated.channel;
  plan.rank = rank_of(device_id);
  plan.is_source = part.held.has_value();
  plan.is_target = part.wanted.has_value();
  if (plan.is_source) {
    plan.source_units = ExtentOf(*part.held);
    plan.sends = LocalPieces(part.sends, *part.held, rank_of);
  }
  if (plan.is_target) {
    plan.target_units = ExtentOf(*part.wanted);
    plan.receives = LocalPieces(part.receives, *part.wanted, rank_of);
  }
  return plan;
}

ElementBox ScalePiece(const TransferPiece& piece, const std::vector<int64_t>& units,
                      const std::vector<int64_t>& local_shape) {
  if (local_shape.size() != units.size()) {
    TVM_FFI_THROW(ValueError) << "the plan is for tensors of " << units.size()
                              << " dimensions, the tensor has " << local_shape.size();
  }
  ElementBox box{piece.begin, piece.extent};
  for (size_t i = 0; i < units.size(); ++i) {
    if (units[i] == 0 || local_shape[i] % units[i] != 0) {
      TVM_FFI_THROW(ValueError) << "dimension " << i << " of size " << local_shape[i]
                                << " does not divide into the plan's " << units[i] << " units";
    }
    const int64_t unit = local_shape[i] / units[i];
    box.begin[i] *= unit;
    box.extent[i] *= unit;
  }
  return box;
}

}  // namespace distir::runtime
