// Runs collectives on GPU tensors by way of host memory, or of a GPU-aware library.
#include "runtime/communicators/cpu/device_communicator.h"

#include <cstring>
#include <numeric>
#include <optional>

#include "abi/collective.h"
#include "runtime/communicators/cpu/collective_call.h"
#include "runtime/communicators/cpu/memory_box.h"
#include "runtime/communicators/cpu/packed_collective.h"
#include "runtime/kernels/format_list.h"
#include "runtime/plan/segment_plan.h"
#include "support/dtypes.h"

namespace distir::runtime::cpu {

namespace {

namespace ffi = tvm::ffi;
using TensorView = Communicator::TensorView;

constexpr DLDataType kBytes{kDLUInt, 8, 1};

int64_t BytesOf(const TensorView& tensor) { return tensor.numel() * ElementBytes(tensor.dtype()); }

// Pieces of a collective in memory of the GPU. They are larger than those of the host: each of them
// is waited for, and there is no cache to stay in.
class DevicePieces : public PieceMemory {
 public:
  explicit DevicePieces(WorkerDevice* device) : device_(device) {}
  int64_t piece_bytes() const final { return 8 << 20; }
  std::shared_ptr<char> New(int64_t num_bytes) final { return device_->NewBuffer(num_bytes); }
  void Copy(const BoxCopy& copy, const char* source, char* target) final {
    device_->CopyOnDevice(copy, source, target);
  }
  void AwaitCopies() final { device_->Wait(); }

 private:
  WorkerDevice* const device_;
};

}  // namespace

void DeviceCommunicator::Join(const std::string& address) {
  host_->Join(address);
  device_->Join();
  if (library_ == nullptr) return;
  // All workers take the same way, also if their libraries differ.
  std::vector<int> everybody(device_ids_.size());
  std::iota(everybody.begin(), everybody.end(), 0);
  const std::unique_ptr<Group> group = host_->OpenGroup(everybody, rank_);
  const ffi::Tensor mine = host_->NewTensor(ffi::Shape({1}), kInt32);
  const ffi::Tensor all = host_->NewTensor(ffi::Shape({1}), kInt32);
  *static_cast<int32_t*>(mine.data_ptr()) = library_->TakesDeviceMemory() ? 1 : 0;
  host_->AllReduce(group.get(), mine, ReduceKind::kMin, all);
  library_takes_device_memory_ = *static_cast<const int32_t*>(all.data_ptr()) == 1;
}

ffi::Tensor DeviceCommunicator::Download(const TensorView& tensor) {
  ffi::Tensor copy = host_->NewTensor(tensor.shape(), tensor.dtype());
  device_->CopyToHost(DataOf(tensor), DataOf(copy), BytesOf(tensor));
  return copy;
}

void DeviceCommunicator::Upload(const ffi::Tensor& from, const TensorView& to) {
  device_->CopyToDevice(DataOf(from), DataOf(to), BytesOf(to));
}

template <typename Collective>
void DeviceCommunicator::OnHost(const TensorView& x, const TensorView& out, Collective collective) {
  const ffi::Tensor operand = Download(x);
  const ffi::Tensor result = host_->NewTensor(out.shape(), out.dtype());
  device_->Wait();
  collective(TensorView(operand), TensorView(result));
  Upload(result, out);
}

// A library must not be given calls that disagree.
void DeviceCommunicator::Agree(Group* group, const char* operation, const TensorView& x,
                               int64_t argument0, int64_t argument1) {
  const CollectiveCall mine(operation, 0, x.dtype(), x.shape().data(), x.ndim(), argument0,
                            argument1);
  const auto size = static_cast<int64_t>(sizeof(mine));
  const ffi::Tensor said = host_->NewTensor(ffi::Shape({1, size}), kBytes);
  const ffi::Tensor heard = host_->NewTensor(ffi::Shape({group->size(), size}), kBytes);
  std::memcpy(DataOf(said), &mine, sizeof(mine));
  host_->AllGather(group, said, 0, heard);
  for (int j = 0; j < group->size(); ++j) {
    CollectiveCall other;
    std::memcpy(&other, DataOf(heard) + j * size, sizeof(other));
    if (!other.IsWellFormed() || !other.Matches(mine)) {
      ThrowDisagreement(device_ids_[rank_], mine, device_ids_[group->ranks[j]], other);
    }
  }
}

// Returns false, on all members alike, if the library does not take the call or GPUs' memory.
template <typename MakePacked>
bool DeviceCommunicator::ByLibrary(Group* group, const char* operation, const TensorView& x,
                                   const LibraryCall& call, int64_t argument0, int64_t argument1,
                                   MakePacked make_packed) {
  if (!library_takes_device_memory_ || group->size() == 1 || !library_->Takes(group->ranks, call))
    return false;
  Agree(group, operation, x, argument0, argument1);
  const PackedCollective packed = make_packed();
  DevicePieces pieces(device_.get());
  packed.Run(
      library_.get(), group->ranks, wait_,
      [&] {
        std::vector<int> devices;
        for (int rank : group->ranks) devices.push_back(device_ids_[rank]);
        return std::string(operation) + " over devices " + FormatList(devices);
      },
      &pieces);
  library_bytes_ += packed.LeastBytes(group->size());
  return true;
}

void DeviceCommunicator::AllReduce(Group* group, TensorView x, ReduceKind kind, TensorView out) {
  device_->Enter(abi::NameOf(abi::Collective::kAllReduce));
  const LibraryCall call{LibraryOperation::kAllReduce, x.dtype(), kind, BytesOf(x)};
  if (ByLibrary(group, abi::NameOf(abi::Collective::kAllReduce), x, call,
                static_cast<int64_t>(kind), 0, [&] { return PackedAllReduce(call, x, out); }))
    return;
  OnHost(x, out, [&](const TensorView& operand, const TensorView& result) {
    host_->AllReduce(group, operand, kind, result);
  });
}

void DeviceCommunicator::AllGather(Group* group, TensorView x, int dim, TensorView out) {
  device_->Enter(abi::NameOf(abi::Collective::kAllGather));
  const LibraryCall call{LibraryOperation::kAllGather, x.dtype(), ReduceKind::kSum, BytesOf(out)};
  if (ByLibrary(group, abi::NameOf(abi::Collective::kAllGather), x, call, dim, 0,
                [&] { return PackedAllGather(call, x, dim, out, group->size()); }))
    return;
  OnHost(x, out, [&](const TensorView& operand, const TensorView& result) {
    host_->AllGather(group, operand, dim, result);
  });
}

void DeviceCommunicator::ReduceScatter(Group* group, TensorView x, int dim, ReduceKind kind,
                                       TensorView out) {
  device_->Enter(abi::NameOf(abi::Collective::kReduceScatter));
  const LibraryCall call{LibraryOperation::kReduceScatter, x.dtype(), kind, BytesOf(x)};
  if (ByLibrary(group, abi::NameOf(abi::Collective::kReduceScatter), x, call, dim,
                static_cast<int64_t>(kind),
                [&] { return PackedReduceScatter(call, x, dim, out, group->size()); }))
    return;
  OnHost(x, out, [&](const TensorView& operand, const TensorView& result) {
    host_->ReduceScatter(group, operand, dim, kind, result);
  });
}

void DeviceCommunicator::AllToAll(Group* group, TensorView x, int split_dim, int concat_dim,
                                  TensorView out) {
  device_->Enter(abi::NameOf(abi::Collective::kAllToAll));
  const LibraryCall call{LibraryOperation::kAllToAll, x.dtype(), ReduceKind::kSum, BytesOf(x)};
  if (ByLibrary(group, abi::NameOf(abi::Collective::kAllToAll), x, call, split_dim, concat_dim,
                [&] { return PackedAllToAll(call, x, split_dim, concat_dim, out, group->size()); }))
    return;
  OnHost(x, out, [&](const TensorView& operand, const TensorView& result) {
    host_->AllToAll(group, operand, split_dim, concat_dim, result);
  });
}

void DeviceCommunicator::Slice(const Group& group, TensorView x, int dim, TensorView out) {
  device_->Enter(abi::NameOf(abi::Collective::kSlice));
  if (out.numel() == 0) return;
  const BoxOfSlice slice = SliceOf(group, x, dim, out);
  device_->CopyOnDevice(slice.copy, slice.source, DataOf(out));
}

void DeviceCommunicator::Transfer(const TransferPlan& plan, const TensorView* x,
                                  const TensorView* out) {
  device_->Enter(abi::NameOf(abi::Collective::kTransfer));
  std::optional<ffi::Tensor> source, target;
  std::optional<TensorView> source_view, target_view;
  if (x != nullptr) source_view.emplace(source.emplace(Download(*x)));
  // With what it has already, where nothing is received.
  if (out != nullptr) target_view.emplace(target.emplace(Download(*out)));
  device_->Wait();
  host_->CallBegins(call());
  host_->Transfer(plan, x == nullptr ? nullptr : &*source_view,
                  out == nullptr ? nullptr : &*target_view);
  if (out != nullptr) Upload(*target, *out);
}

void DeviceCommunicator::FillGaps(const SegmentPlan& plan, TensorView out) {
  if (plan.gaps.empty()) return;
  device_->Enter(abi::NameOf(abi::Collective::kSegmentExchange));
  const ffi::Tensor target = Download(out);
  device_->Wait();
  host_->FillGaps(plan, target);
  Upload(target, out);
}

}  // namespace distir::runtime::cpu
