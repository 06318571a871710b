// Runs the collectives of one worker by NCCL, with packing of strided blocks.
#include "runtime/communicators/nccl/nccl_communicator.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>

#include "abi/collective.h"
#include "runtime/communicators/nccl/data_type.h"
#include "runtime/communicators/nccl/devices/device_memory.h"
#include "runtime/communicators/nccl/library.h"
#include "runtime/plan/segment_plan.h"
#include "support/error.h"

namespace distir::runtime::nccl {

namespace {

using TensorView = Communicator::TensorView;

// Groups use the buffers, threads and connections of the communicator that they are split from.
// NCCL asks for operations of them to be issued one after the other: a worker has one thread, and
// one stream. To end one of them ends all, which is what is done here anyway.
constexpr int kSplitShareBuffers = 1;

class NcclGroup : public Group {
 public:
  using Group::Group;
  Connection* connection = nullptr;  // found when it is needed: slices do without
};

int64_t BytesOf(const TensorView& tensor) { return tensor.numel() * ElementBytes(tensor.dtype()); }

/*! \brief The blocks into which a dimension of a row-major tensor is cut, each seen as packed. */
class Blocks {
 public:
  Blocks(const TensorView& tensor, int dim, int count)
      : data_(DataOf(tensor)),
        element_bytes_(ElementBytes(tensor.dtype())),
        extent_(ShapeOf(tensor)),
        strides_(RowMajorStrides(extent_, element_bytes_)) {
    extent_[dim] /= count;
    step_ = extent_[dim] * strides_[dim];
    packed_strides_ = RowMajorStrides(extent_, element_bytes_);
    bytes_ = NumElements(extent_) * element_bytes_;
    int64_t outer = 1;
    for (int i = 0; i < dim; ++i) outer *= extent_[i];
    contiguous_ = outer == 1 || count == 1;
  }

  /*! \brief Bytes of one block. */
  int64_t bytes() const { return bytes_; }
  /*! \brief True if the blocks lie one after the other. */
  bool contiguous() const { return contiguous_; }
  char* block(int index) const { return data_ + index * step_; }

  void Pack(int index, char* packed, Stream stream) const {
    CopyBoxOnDevice(BoxCopy(extent_, strides_, packed_strides_, element_bytes_), block(index),
                    packed, stream);
  }
  void Unpack(const char* packed, int index, Stream stream) const {
    CopyBoxOnDevice(BoxCopy(extent_, packed_strides_, strides_, element_bytes_), packed,
                    block(index), stream);
  }

 private:
  char* data_;
  int64_t element_bytes_;
  std::vector<int64_t> extent_;  // of one block
  std::vector<int64_t> strides_;
  std::vector<int64_t> packed_strides_;
  int64_t step_;
  int64_t bytes_;
  bool contiguous_;
};

/*! \brief Sends and receives that make progress together. */
class Exchange {
 public:
  void Send(const char* data, int64_t bytes, int peer) { sends_.push_back({data, bytes, peer}); }
  void Receive(char* data, int64_t bytes, int peer) { receives_.push_back({data, bytes, peer}); }

  void Run(Connection* connection, const char* operation, Stream stream) const {
    if (sends_.empty() && receives_.empty()) return;
    connection->Run(operation, [&](Comm comm) {
      int failed = Nccl().ncclGroupStart();
      if (failed != kNcclSuccess) return failed;
      for (const Part<const char>& part : sends_) {
        if (failed != kNcclSuccess) break;
        failed = Nccl().ncclSend(part.data, static_cast<size_t>(part.bytes), kNcclInt8, part.peer,
                                 comm, stream);
      }
      for (const Part<char>& part : receives_) {
        if (failed != kNcclSuccess) break;
        failed = Nccl().ncclRecv(part.data, static_cast<size_t>(part.bytes), kNcclInt8, part.peer,
                                 comm, stream);
      }
      const int ended = Nccl().ncclGroupEnd();
      return failed != kNcclSuccess ? failed : ended;
    });
  }

 private:
  template <typename Byte>
  struct Part {
    Byte* data;
    int64_t bytes;
    int peer;
  };
  std::vector<Part<const char>> sends_;
  std::vector<Part<char>> receives_;
};

/*! \brief A box of a local tensor that is sent or received. */
struct Box {
  Box(const TransferPiece& piece, const std::vector<int64_t>& units, const TensorView& tensor)
      : element_bytes(ElementBytes(tensor.dtype())), data(DataOf(tensor)) {
    const std::vector<int64_t> shape = ShapeOf(tensor);
    ElementBox box = ScalePiece(piece, units, shape);
    extent = std::move(box.extent);
    strides = RowMajorStrides(shape, element_bytes);
    packed_strides = RowMajorStrides(extent, element_bytes);
    for (size_t i = 0; i < shape.size(); ++i) data += box.begin[i] * strides[i];
    for (size_t i = 0; i < piece.steps.size(); ++i) strides[i] *= piece.steps[i];
  }
  BoxCopy Packing() const { return BoxCopy(extent, strides, packed_strides, element_bytes); }
  BoxCopy Unpacking() const { return BoxCopy(extent, packed_strides, strides, element_bytes); }
  int64_t bytes() const { return NumElements(extent) * element_bytes; }

  int64_t element_bytes;
  char* data;
  std::vector<int64_t> extent;
  std::vector<int64_t> strides;
  std::vector<int64_t> packed_strides;
};

}  // namespace

/*! \brief A wait for the device: looks often at first, and gives up when it makes no sense. */
class NcclCommunicator::Wait {
 public:
  explicit Wait(NcclCommunicator* communicator) : communicator_(communicator) {}

  /*! \brief Throws if a worker has failed or NCCL has met an error. */
  void Check() const {
    communicator_->backend_->SeesAbort();
    for (const std::shared_ptr<Connection>& connection : communicator_->connections_)
      connection->CheckHealth("waiting for collectives");
  }

  /*! \brief Lets some time pass. \throws RuntimeError if it has taken too long. */
  void Pass() {
    // Most steps end soon after the host has enqueued them; then sleeping would only add to them.
    constexpr int kYields = 10000;
    constexpr std::chrono::microseconds kSleep{20};
    const std::chrono::milliseconds timeout = communicator_->backend_->timeout();
    if (timeout.count() != 0 && std::chrono::steady_clock::now() - begin_ >= timeout) {
      FailAsTooLong(
          "what the worker of rank " + std::to_string(communicator_->rank_) + " has enqueued",
          timeout);
    }
    if (++looks_ < kYields) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kSleep);
    }
  }

 private:
  NcclCommunicator* communicator_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  int64_t looks_ = 0;
};

NcclCommunicator::NcclCommunicator(std::shared_ptr<NcclBackend> backend, int rank)
    : backend_(std::move(backend)),
      rank_(rank),
      stream_(std::make_shared<WorkerStream>(backend_->CudaDeviceOf(rank))),
      staging_([this, wait = std::optional<Wait>()](int64_t looks) mutable {
        if (looks == 0) wait.emplace(this);
        wait->Check();
        wait->Pass();
      }),
      all_ranks_(backend_->num_workers()) {
  std::iota(all_ranks_.begin(), all_ranks_.end(), 0);
}

NcclCommunicator::~NcclCommunicator() {
  try {
    // Not TVM's current stream: the thread may be about to end, and what TVM keeps for it gone.
    WaitForDevice(stream_->EnterOwn());
  } catch (...) {  // somebody knows: the step that failed, or whoever has ended the session
    EndTogether(connections_);
    staging_.Abandon();
  }
  // All members destroy their communicators in the same order, because NCCL may wait for them;
  // what they were split from comes last.
  for (; !connections_.empty(); connections_.pop_back()) connections_.back()->Close();
}

std::string NcclCommunicator::MakeAddress() {
  UniqueId id;
  CheckNccl(Nccl().ncclGetUniqueId(&id), "ncclGetUniqueId");
  return std::string(id.internal, sizeof(id.internal)) + DescribeNccl();
}

void NcclCommunicator::Join(const std::string& address) {
  UniqueId id;
  TVM_FFI_ICHECK_GE(address.size(), sizeof(id.internal));
  std::copy_n(address.begin(), sizeof(id.internal), id.internal);
  // Ranks of different versions do not understand each other, and may wait for ever.
  const std::string theirs = address.substr(sizeof(id.internal));
  const std::string ours = DescribeNccl();
  DISTIR_REQUIRE(theirs.substr(0, theirs.find(' ')) == ours.substr(0, ours.find(' ')), RuntimeError)
      << "this worker has NCCL " << ours << ", another one of the session has NCCL " << theirs
      << "; all need the same version: install the same distir-ext[cuda] on all hosts, or name the "
         "file in DISTIR_EXT_NCCL_LIBRARY";
  lock_ = std::make_unique<DeviceLock>(backend_->CudaDeviceOf(rank_), address.substr(0, sizeof(id)),
                                       backend_->are_processes(),
                                       [this] { return backend_->SeesAbort(); });
  const int size = static_cast<int>(all_ranks_.size());
  connections_.push_back(
      backend_->Open(rank_, backend_->Describe(all_ranks_), [id, size, rank = rank_](Comm* comm) {
        Config config{sizeof(Config), kNcclMagic,     kNcclVersionOfConfig,
                      kNcclUndefined, kNcclUndefined, kNcclUndefined,
                      kNcclUndefined, nullptr,        kSplitShareBuffers};
        return Nccl().ncclCommInitRankConfig(comm, size, id, rank, &config);
      }));
  everybody_ = connections_.back();
  open_[all_ranks_] = everybody_.get();
}

void NcclCommunicator::OpenPartition(const std::vector<std::vector<int>>& groups) {
  // All workers take the same way, as NCCL needs it.
  if (groups == std::vector<std::vector<int>>{all_ranks_} || !partitions_.insert(groups).second)
    return;
  TVM_FFI_ICHECK(everybody_ != nullptr) << "groups are opened after Join";
  everybody_->CheckHealth("opening groups");
  int color = kNcclSplitNoColor, key = 0;
  for (size_t i = 0; i < groups.size(); ++i) {
    const auto mine = std::find(groups[i].begin(), groups[i].end(), rank_);
    if (mine == groups[i].end()) continue;
    color = static_cast<int>(i);
    key = static_cast<int>(mine - groups[i].begin());
  }
  const bool is_member = color != kNcclSplitNoColor;
  const std::string description =
      is_member ? backend_->Describe(groups[color]) : "groups of other devices";
  std::shared_ptr<Connection> connection =
      backend_->Open(rank_, description, [parent = everybody_, color, key](Comm* comm) {
        return parent->Use(
            [&](Comm from) { return Nccl().ncclCommSplit(from, color, key, comm, nullptr); });
      });
  if (!is_member) return;
  connections_.push_back(std::move(connection));
  // All members keep the first one, if they are a group of several partitions.
  open_.emplace(groups[color], connections_.back().get());
}

std::unique_ptr<Group> NcclCommunicator::OpenGroup(std::vector<int> ranks, int position) {
  return std::make_unique<NcclGroup>(std::move(ranks), position);
}

Connection* NcclCommunicator::Find(Group* group) {
  Connection*& connection = static_cast<NcclGroup*>(group)->connection;
  if (connection == nullptr) {
    const auto found = open_.find(group->ranks);
    DISTIR_REQUIRE(found != open_.end(), RuntimeError)
        << "the group of " << backend_->Describe(group->ranks)
        << " is not open: workers open a program's groups when it is loaded, and the signature of "
           "this executable does not list it; build it again with dx.build";
    connection = found->second;
  }
  return connection;
}

void NcclCommunicator::AllReduce(Group* group, TensorView x, ReduceKind kind, TensorView out) {
  const Reduction reduction = FindReduction(x.dtype(), kind);
  if (x.numel() == 0) return;
  const Stream stream = stream_->EnterUncaptured(abi::NameOf(abi::Collective::kAllReduce));
  Find(group)->Run(abi::NameOf(abi::Collective::kAllReduce), [&](Comm comm) {
    return Nccl().ncclAllReduce(DataOf(x), DataOf(out), static_cast<size_t>(x.numel()),
                                reduction.dtype, reduction.operation, comm, stream);
  });
}

void NcclCommunicator::AllGather(Group* group, TensorView x, int dim, TensorView out) {
  if (x.numel() == 0) return;
  const Stream stream = stream_->EnterUncaptured(abi::NameOf(abi::Collective::kAllGather));
  const Blocks blocks(out, dim, group->size());
  const StreamBuffer packed(blocks.contiguous() ? 0 : BytesOf(out), stream);
  char* gathered = blocks.contiguous() ? DataOf(out) : packed.data();
  Find(group)->Run(abi::NameOf(abi::Collective::kAllGather), [&](Comm comm) {
    return Nccl().ncclAllGather(DataOf(x), gathered, static_cast<size_t>(blocks.bytes()), kNcclInt8,
                                comm, stream);
  });
  if (blocks.contiguous()) return;
  for (int i = 0; i < group->size(); ++i)
    blocks.Unpack(packed.data() + i * blocks.bytes(), i, stream);
}

void NcclCommunicator::ReduceScatter(Group* group, TensorView x, int dim, ReduceKind kind,
                                     TensorView out) {
  const Reduction reduction = FindReduction(x.dtype(), kind);
  if (x.numel() == 0) return;
  const Stream stream = stream_->EnterUncaptured(abi::NameOf(abi::Collective::kReduceScatter));
  const Blocks blocks(x, dim, group->size());
  const StreamBuffer packed(blocks.contiguous() ? 0 : BytesOf(x), stream);
  if (!blocks.contiguous()) {
    for (int i = 0; i < group->size(); ++i)
      blocks.Pack(i, packed.data() + i * blocks.bytes(), stream);
  }
  const char* source = blocks.contiguous() ? DataOf(x) : packed.data();
  Find(group)->Run(abi::NameOf(abi::Collective::kReduceScatter), [&](Comm comm) {
    return Nccl().ncclReduceScatter(source, DataOf(out), static_cast<size_t>(out.numel()),
                                    reduction.dtype, reduction.operation, comm, stream);
  });
}

void NcclCommunicator::AllToAll(Group* group, TensorView x, int split_dim, int concat_dim,
                                TensorView out) {
  if (x.numel() == 0) return;
  const Stream stream = stream_->EnterUncaptured(abi::NameOf(abi::Collective::kAllToAll));
  const Blocks sent(x, split_dim, group->size());
  const Blocks received(out, concat_dim, group->size());
  const StreamBuffer packed(sent.contiguous() ? 0 : BytesOf(x), stream);
  const StreamBuffer unpacked(received.contiguous() ? 0 : BytesOf(out), stream);
  Exchange exchange;
  for (int i = 0; i < group->size(); ++i) {
    char* source = sent.block(i);
    if (!sent.contiguous()) sent.Pack(i, source = packed.data() + i * sent.bytes(), stream);
    exchange.Send(source, sent.bytes(), i);
    exchange.Receive(
        received.contiguous() ? received.block(i) : unpacked.data() + i * received.bytes(),
        received.bytes(), i);
  }
  exchange.Run(Find(group), abi::NameOf(abi::Collective::kAllToAll), stream);
  if (received.contiguous()) return;
  for (int i = 0; i < group->size(); ++i)
    received.Unpack(unpacked.data() + i * received.bytes(), i, stream);
}

void NcclCommunicator::Slice(const Group& group, TensorView x, int dim, TensorView out) {
  if (out.numel() == 0) return;
  Blocks(x, dim, group.size())
      .Pack(group.position, DataOf(out),
            stream_->EnterUncaptured(abi::NameOf(abi::Collective::kSlice)));
}

void NcclCommunicator::Transfer(const TransferPlan& plan, const TensorView* x,
                                const TensorView* out) {
  TVM_FFI_ICHECK(everybody_ != nullptr) << "transfers come after Join";
  const Stream stream = stream_->EnterUncaptured(abi::NameOf(abi::Collective::kTransfer));
  std::vector<StreamBuffer> buffers;
  Exchange exchange;
  std::vector<Box> own;  // what this worker sends to itself, in the order of the plan
  for (const TransferPiece& piece : plan.sends) {
    Box box(piece, plan.source_units, *x);
    if (box.bytes() == 0) continue;
    if (piece.peer == rank_) {
      own.push_back(std::move(box));
      continue;
    }
    const BoxCopy packing = box.Packing();
    const char* source = box.data;
    if (!packing.contiguous()) {
      buffers.emplace_back(box.bytes(), stream);
      CopyBoxOnDevice(packing, box.data, buffers.back().data(), stream);
      source = buffers.back().data();
    }
    exchange.Send(source, box.bytes(), piece.peer);
  }
  size_t num_own = 0;
  std::vector<std::pair<Box, const char*>> to_unpack;
  for (const TransferPiece& piece : plan.receives) {
    Box box(piece, plan.target_units, *out);
    if (box.bytes() == 0) continue;
    if (piece.peer == rank_) {
      TVM_FFI_ICHECK_LT(num_own, own.size());
      const Box& source = own[num_own++];
      DISTIR_REQUIRE(source.extent == box.extent && source.element_bytes == box.element_bytes,
                     ValueError)
          << "a worker sends itself another box than it expects";
      CopyBoxOnDevice(BoxCopy(box.extent, source.strides, box.strides, box.element_bytes),
                      source.data, box.data, stream);
      continue;
    }
    char* target = box.data;
    const int64_t bytes = box.bytes();
    if (!box.Unpacking().contiguous()) {
      buffers.emplace_back(bytes, stream);
      target = buffers.back().data();
      to_unpack.emplace_back(std::move(box), target);
    }
    exchange.Receive(target, bytes, piece.peer);
  }
  exchange.Run(everybody_.get(), abi::NameOf(abi::Collective::kTransfer), stream);
  for (const auto& [box, packed] : to_unpack)
    CopyBoxOnDevice(box.Unpacking(), packed, box.data, stream);
}

void NcclCommunicator::FillGaps(const SegmentPlan& plan, TensorView out) {
  std::vector<int64_t> extent = ShapeOf(out);
  const int64_t element_bytes = ElementBytes(out.dtype());
  const std::vector<int64_t> strides = RowMajorStrides(extent, element_bytes);
  int64_t longest = 0;
  for (const auto& [begin, end] : plan.gaps) longest = std::max(longest, end - begin);
  extent[plan.dim] = longest;
  const int64_t bytes = NumElements(extent) * element_bytes;
  if (bytes == 0) return;
  const Stream stream = stream_->EnterUncaptured(abi::NameOf(abi::Collective::kSegmentExchange));
  const std::array<char, 8> element = StoredFill(plan, out.dtype());
  // One element, then every copy doubles what there is.
  const StreamBuffer filled(bytes, stream);
  staging_.Copy(element.data(), filled.data(), element_bytes, stream);
  for (int64_t done = element_bytes; done < bytes; done *= 2)
    CopyOnDevice(filled.data(), filled.data() + done, std::min(done, bytes - done), stream);
  for (const auto& [begin, end] : plan.gaps) {
    extent[plan.dim] = end - begin;
    CopyBoxOnDevice(BoxCopy(extent, RowMajorStrides(extent, element_bytes), strides, element_bytes),
                    filled.data(), DataOf(out) + begin * strides[plan.dim], stream);
  }
}

void NcclCommunicator::Synchronize() {
  backend_->SetWaiting(rank_, true);
  try {
    WaitForDevice(stream_->Enter());
    backend_->SetWaiting(rank_, false);
  } catch (...) {
    backend_->SetWaiting(rank_, false);
    // Freeing memory of the GPU waits for what is enqueued, and the error may free some on its way.
    EndTogether(connections_);
    throw;
  }
}

void NcclCommunicator::WaitForDevice(Stream stream) {
  for (Wait wait(this);; wait.Pass()) {
    const int result = Cuda().cudaStreamQuery(stream);
    wait.Check();
    if (result == kCudaErrorNotReady) continue;
    CheckCuda(result, "the device");
    return;
  }
}

tvm::ffi::Tensor NcclCommunicator::ToDevice(const tvm::ffi::Tensor& tensor) {
  return CopyToDevice(tensor, *stream_, &staging_);
}

tvm::ffi::Tensor NcclCommunicator::ToHost(const tvm::ffi::Tensor& tensor) {
  stream_->EnterUncaptured("a copy to the host");
  Synchronize();  // which can be given up, unlike a wait of CUDA's
  return CopyToHost(tensor);
}

}  // namespace distir::runtime::nccl
