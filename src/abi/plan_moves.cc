// Reads who sends how much to whom off plans, and finds the mesh axes of groups and plans.
#include "abi/plan_moves.h"

#include <tvm/ffi/error.h>
#include <tvm/ffi/string.h>

#include <algorithm>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "abi/segment_plan.h"
#include "abi/transfer_plan.h"

namespace distir::abi {

namespace {

using Devices = std::optional<std::vector<int64_t>>;

/*! \brief Devices of a move, and the part of its block that the busiest of some devices sends. */
class Traffic {
 public:
  /*! \param among The devices that are looked at; nothing: all. */
  explicit Traffic(const Devices& among) : is_among_all_(!among.has_value()) {
    if (!is_among_all_) among_.insert(among->begin(), among->end());
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

  PlanTraffic Result(double bytes) const {
    return {devices_, static_cast<double>(sent_) * bytes / static_cast<double>(block_)};
  }

 private:
  const bool is_among_all_;
  std::unordered_set<int64_t> among_;
  int64_t devices_ = 0, sent_ = 0, block_ = 1;
};

void AddTransfer(const TransferPlan& plan, Traffic* traffic) {
  const TransferPlanner planner(plan);
  for (int64_t number = 0; number < planner.source().num_blocks(); ++number) {
    for (const SentShare& share : planner.SharesOf(number)) {
      // Those that receive are counted below.
      const bool only_sends = share.sent > 0 && planner.target().PositionOf(share.device) < 0;
      traffic->Add(only_sends, share.device, share.sent, share.block);
    }
  }
  for (int64_t device : plan.target.device_ids) traffic->Add(true, device, 0, 1);
}

void AddSegments(const SegmentPlan& plan, Traffic* traffic) {
  const SegmentPlanner planner(plan);
  for (int64_t device : plan.source.device_ids) {
    const SegmentPart part = planner.PartOf(device);
    int64_t sent = 0;
    for (const SegmentPiece& piece : part.sends) {
      if (piece.peer != device) sent += piece.segment.count;
    }
    const bool receives =
        std::any_of(part.receives.begin(), part.receives.end(),
                    [device](const SegmentPiece& piece) { return piece.peer != device; });
    traffic->Add(sent > 0 || receives, device, sent, planner.source_extent());
  }
}

/*! \brief Axes of a mesh along which devices have different places. */
class DifferingAxes {
 public:
  explicit DifferingAxes(const NamedMesh& mesh) : mesh_(mesh), differs_(mesh.shape.size(), false) {
    for (int64_t id : mesh.device_ids) position_.emplace(id, position_.size());
  }

  bool Has(int64_t device) const { return position_.count(device) > 0; }
  /*! \brief True if more pairs would not change the result. */
  bool AreAllKnown() const {
    return std::find(differs_.begin(), differs_.end(), false) == differs_.end();
  }

  void Add(int64_t first, int64_t second) {
    int64_t from = position_.at(first), to = position_.at(second);
    for (size_t axis = differs_.size(); axis-- > 0;
         from /= mesh_.shape[axis], to /= mesh_.shape[axis]) {
      if (from % mesh_.shape[axis] != to % mesh_.shape[axis]) differs_[axis] = true;
    }
  }

  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (size_t axis = 0; axis < differs_.size(); ++axis) {
      if (differs_[axis]) names.push_back(mesh_.axis_names[axis]);
    }
    return names;
  }

  /*! \brief The number of devices that differ along these axes only. */
  size_t NumDevices() const {
    size_t product = 1;
    for (size_t axis = 0; axis < differs_.size(); ++axis) {
      if (differs_[axis]) product *= static_cast<size_t>(mesh_.shape[axis]);
    }
    return product;
  }

 private:
  const NamedMesh& mesh_;
  std::vector<bool> differs_;                      // per axis
  std::unordered_map<int64_t, int64_t> position_;  // by device id
};

/*! \brief On the first of the meshes that has all devices of a move. */
template <typename Planner, typename Plan>
std::vector<std::string> AxesOf(const Plan& plan, const std::vector<NamedMesh>& meshes) {
  const auto &from = plan.source.device_ids, &to = plan.target.device_ids;
  // A tensor that moves to other devices than have it leaves its mesh.
  if (std::set<int64_t>(from.begin(), from.end()) != std::set<int64_t>(to.begin(), to.end()))
    return {};
  for (const NamedMesh& mesh : meshes) {
    DifferingAxes axes(mesh);
    if (!std::all_of(from.begin(), from.end(), [&axes](int64_t id) { return axes.Has(id); }))
      continue;
    const Planner planner(plan);
    for (int64_t device : from) {
      if (axes.AreAllKnown()) break;
      for (const auto& piece : planner.PartOf(device).sends) axes.Add(device, piece.peer);
    }
    return axes.Names();
  }
  return {};
}

}  // namespace

PlanTraffic TrafficOf(Collective collective, const std::string& plan, const Devices& among,
                      double bytes) {
  Traffic traffic(among);
  if (RecordOf(collective).members == Members::kSegments) {
    AddSegments(ReadSegmentPlan(plan), &traffic);
  } else {
    AddTransfer(ReadTransferPlan(plan), &traffic);
  }
  // Who receives sends nothing.
  return traffic.Result(collective == Collective::kRecv ? 0 : bytes);
}

std::vector<NamedMesh> ReadNamedMeshes(
    const tvm::ffi::Array<tvm::ffi::Array<tvm::ffi::Any>>& meshes) {
  using Ints = tvm::ffi::Array<int64_t>;
  std::vector<NamedMesh> read;
  for (const auto& row : meshes) {
    NamedMesh mesh;
    for (int64_t size : row[0].cast<Ints>()) mesh.shape.push_back(size);
    for (const auto& name : row[1].cast<tvm::ffi::Array<tvm::ffi::String>>())
      mesh.axis_names.emplace_back(name);
    for (int64_t id : row[2].cast<Ints>()) mesh.device_ids.push_back(id);
    if (mesh.axis_names.size() != mesh.shape.size())
      TVM_FFI_THROW(ValueError) << "a mesh of " << mesh.shape.size() << " axes has "
                                << mesh.axis_names.size() << " names";
    read.push_back(std::move(mesh));
  }
  return read;
}

std::vector<std::string> MeshAxes::OfGroup(const std::vector<int64_t>& group) const {
  std::vector<std::string> fallback;
  for (const NamedMesh& mesh : meshes_) {
    DifferingAxes axes(mesh);
    if (!std::all_of(group.begin(), group.end(), [&axes](int64_t id) { return axes.Has(id); }))
      continue;
    for (int64_t device : group) axes.Add(group[0], device);
    if (axes.NumDevices() == group.size()) return axes.Names();
    if (fallback.empty()) fallback = axes.Names();
  }
  return fallback;
}

std::vector<std::string> MeshAxes::OfPlan(Collective collective, const std::string& plan) const {
  const CollectiveRecord& record = RecordOf(collective);
  if (record.family == CollectiveFamily::kSide) return {};
  if (record.members == Members::kSegments)
    return AxesOf<SegmentPlanner>(ReadSegmentPlan(plan), meshes_);
  return AxesOf<TransferPlanner>(ReadTransferPlan(plan), meshes_);
}

}  // namespace distir::abi
