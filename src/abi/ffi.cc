/*!
 * \file abi/ffi.cc
 * \brief Global functions that read plans, for analysis in Python.
 */
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/optional.h>
#include <tvm/ffi/string.h>

#include <algorithm>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "abi/segment_plan.h"
#include "abi/transfer_plan.h"
#include "support/functions.h"

namespace distir::abi {

namespace ffi = tvm::ffi;

namespace {

using Ints = ffi::Array<int64_t>;

/*! \brief Devices of a move, and the part of its block that the busiest of some devices sends.
 */
class Traffic {
 public:
  /*! \param among The devices that are looked at; null: all. */
  explicit Traffic(const ffi::Optional<Ints>& among) : is_among_all_(!among.has_value()) {
    if (!is_among_all_) among_.insert(among.value().begin(), among.value().end());
  }

  /*! \param sent Of a block of `block`, in any unit. */
  void Add(bool takes_part, int64_t device, int64_t sent, int64_t block) {
    devices_ += takes_part;
    if (!is_among_all_ && among_.count(device) == 0) return;
    if (static_cast<double>(sent) * static_cast<double>(block_) >
        static_cast<double>(sent_) * static_cast<double>(block)) {
      sent_ = sent;
      block_ = block;
    }
  }
  /*! \brief The number of devices; what is sent, and the block that it is a part of. */
  Ints Result() const { return {devices_, sent_, block_}; }

 private:
  const bool is_among_all_;
  std::unordered_set<int64_t> among_;
  int64_t devices_ = 0, sent_ = 0, block_ = 1;
};

/*! \brief Along which axes of a mesh those that send differ from those that receive from them. */
class MovedAxes {
 public:
  /*! \param source, target Of the move. */
  MovedAxes(const Ints& shape, const Ints& device_ids, const Layout& source, const Layout& target)
      : shape_(shape.begin(), shape.end()), differs_(shape_.size(), false) {
    for (int64_t id : device_ids) position_.emplace(id, static_cast<int64_t>(position_.size()));
    for (const Layout* side : {&source, &target}) {
      for (int64_t id : side->device_ids) is_inside_ = is_inside_ && position_.count(id) > 0;
    }
  }

  /*! \brief True if more pieces would not change the result. */
  bool AreAllKnown() const {
    return !is_inside_ || std::find(differs_.begin(), differs_.end(), false) == differs_.end();
  }

  void Add(int64_t sender, int64_t receiver) {
    int64_t from = position_.at(sender), to = position_.at(receiver);
    for (size_t axis = shape_.size(); axis-- > 0; from /= shape_[axis], to /= shape_[axis]) {
      if (from % shape_[axis] != to % shape_[axis]) differs_[axis] = true;
    }
  }

  /*! \brief Their indices; null where the mesh lacks a device of the move. */
  ffi::Optional<Ints> Result() const {
    if (!is_inside_) return std::nullopt;
    Ints axes;
    for (size_t axis = 0; axis < shape_.size(); ++axis) {
      if (differs_[axis]) axes.push_back(static_cast<int64_t>(axis));
    }
    return axes;
  }

 private:
  std::vector<int64_t> shape_;
  std::vector<bool> differs_;                      // per axis
  std::unordered_map<int64_t, int64_t> position_;  // by device id
  bool is_inside_ = true;
};

/*! \brief Null also where a tensor moves to other devices than have it: then it leaves its mesh. */
template <typename Planner, typename Plan>
ffi::Optional<Ints> AxesOf(const Plan& plan, const Ints& shape, const Ints& device_ids) {
  const auto &from = plan.source.device_ids, &to = plan.target.device_ids;
  if (std::set<int64_t>(from.begin(), from.end()) != std::set<int64_t>(to.begin(), to.end()))
    return std::nullopt;
  const Planner planner(plan);
  MovedAxes axes(shape, device_ids, plan.source, plan.target);
  for (int64_t device : plan.source.device_ids) {
    if (axes.AreAllKnown()) break;
    for (const auto& piece : planner.PartOf(device).sends) axes.Add(device, piece.peer);
  }
  return axes.Result();
}

Ints TransferTraffic(const ffi::String& json, const ffi::Optional<Ints>& among) {
  const TransferPlan plan = ReadTransferPlan(json);
  const TransferPlanner planner(plan);
  Traffic traffic(among);
  for (int64_t number = 0; number < planner.source().num_blocks(); ++number) {
    for (const SentShare& share : planner.SharesOf(number)) {
      // Those that receive are counted below.
      const bool only_sends = share.sent > 0 && planner.target().PositionOf(share.device) < 0;
      traffic.Add(only_sends, share.device, share.sent, share.block);
    }
  }
  for (int64_t device : plan.target.device_ids) traffic.Add(true, device, 0, 1);
  return traffic.Result();
}

ffi::Optional<Ints> TransferAxes(const ffi::String& json, const Ints& shape,
                                 const Ints& device_ids) {
  return AxesOf<TransferPlanner>(ReadTransferPlan(json), shape, device_ids);
}

Ints SegmentTraffic(const ffi::String& json, const ffi::Optional<Ints>& among) {
  const SegmentPlan plan = ReadSegmentPlan(json);
  const SegmentPlanner planner(plan);
  Traffic traffic(among);
  for (int64_t device : plan.source.device_ids) {
    const SegmentPart part = planner.PartOf(device);
    int64_t sent = 0;
    for (const SegmentPiece& piece : part.sends) {
      if (piece.peer != device) sent += piece.segment.count;
    }
    const bool receives =
        std::any_of(part.receives.begin(), part.receives.end(),
                    [device](const SegmentPiece& piece) { return piece.peer != device; });
    traffic.Add(sent > 0 || receives, device, sent, planner.source_extent());
  }
  return traffic.Result();
}

ffi::Optional<Ints> SegmentAxes(const ffi::String& json, const Ints& shape,
                                const Ints& device_ids) {
  return AxesOf<SegmentPlanner>(ReadSegmentPlan(json), shape, device_ids);
}

TVM_FFI_STATIC_INIT_BLOCK() {
  support::Functions()
      .def("distir.abi.TransferTraffic", TransferTraffic)
      .def("distir.abi.TransferAxes", TransferAxes)
      .def("distir.abi.SegmentTraffic", SegmentTraffic)
      .def("distir.abi.SegmentAxes", SegmentAxes);
}

}  // namespace

}  // namespace distir::abi
