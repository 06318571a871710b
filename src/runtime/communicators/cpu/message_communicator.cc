// Runs collectives as messages in chunks and rounds.
#include "runtime/communicators/cpu/message_communicator.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <cstring>

#include "abi/collective.h"
#include "runtime/communicators/cpu/chunks.h"
#include "runtime/communicators/cpu/direct_work.h"
#include "runtime/communicators/cpu/packed_collective.h"
#include "runtime/kernels/format_list.h"
#include "runtime/kernels/strided_copy.h"

namespace distir::runtime::cpu {

namespace {

// Largest message: a part of the second-level cache, so that receivers read it from there.
constexpr int64_t kChunkBytes = 128 << 10;
// Up to here each member reduces everything by itself: the work costs less than one more wait. Of
// two members each would read as many bytes in two rounds, so they always do.
constexpr int64_t kSmallBytes = 16 << 10;
// From here on members that see each other's tensors work on them, which costs two more messages.
constexpr int64_t kDirectBytes = 256 << 10;

// Places of a member's operand and result; -1 if others do not see them.
struct Places {
  int64_t x, out;
};

// An all-reduce in steps, each cut into a part for every member; in bytes of the tensor.
class Parts {
 public:
  Parts(int64_t count, int64_t step, int num_members, int64_t element_bytes)
      : count_(count), step_(step), num_members_(num_members), element_bytes_(element_bytes) {}

  int64_t num_steps() const { return (count_ + step_ - 1) / step_; }
  int64_t offset(int64_t step, int member) const {
    return (step * step_ + Begin(step, member)) * element_bytes_;
  }
  int64_t bytes(int64_t step, int member) const {
    return (Begin(step, member + 1) - Begin(step, member)) * element_bytes_;
  }

 private:
  int64_t Begin(int64_t step, int member) const {
    return PartBegin(std::min(step_, count_ - step * step_), num_members_, member);
  }

  const int64_t count_, step_;
  const int num_members_;
  const int64_t element_bytes_;
};

class MessageGroup : public Group {
 public:
  MessageGroup(std::vector<int> ranks, int position, uint64_t scope)
      : Group(std::move(ranks), position), scope(scope) {
    // Members begin with their neighbour, so that they do not all turn to the same one at a time.
    for (int i = 1; i < size(); ++i) {
      others.push_back((position + i) % size());
      other_ranks.push_back(this->ranks[others.back()]);
    }
  }
  const uint64_t scope;
  std::vector<int> others;       // positions
  std::vector<int> other_ranks;  // the same, as ranks
};

// FNV-1a of what names a group or a channel.
uint64_t ScopeOf(uint64_t kind, const std::vector<int64_t>& name) {
  uint64_t hash = 14695981039346656037u;
  auto mix = [&hash](uint64_t value) {
    for (int i = 0; i < 8; ++i, value >>= 8) hash = (hash ^ (value & 0xff)) * 1099511628211u;
  };
  mix(kind);
  for (int64_t each : name) mix(static_cast<uint64_t>(each));
  return hash;
}

// A member that is not what it should be may call the same and send less.
void CheckSize(const Message& message, int64_t num_bytes, int device) {
  if (message.header.num_bytes == num_bytes) return;
  TVM_FFI_THROW(ValueError) << "device " << device << " sent " << message.header.num_bytes
                            << " bytes of " << message.header.call.Describe() << ", " << num_bytes
                            << " are expected";
}

}  // namespace

// One collective of a group, as one member sees it: its messages, checked as they arrive.
class MessageCommunicator::Conversation {
 public:
  Conversation(MessageCommunicator* me, Group* group, const char* operation, const TensorView& x,
               int64_t argument0, int64_t argument1)
      : transport_(me->transport_.get()),
        device_ids_(me->device_ids_),
        group_(*static_cast<MessageGroup*>(group)),
        describe_([this] { return DescribeWait(); }) {
    header_.scope = group_.scope;
    header_.call = CollectiveCall(operation, transport_->step(), x.dtype(), x.shape().data(),
                                  x.ndim(), argument0, argument1);
  }
  Conversation(const Conversation&) = delete;
  Conversation& operator=(const Conversation&) = delete;

  const std::vector<int>& others() const { return group_.others; }

  char* Reserve(int64_t num_bytes) {
    header_.num_bytes = num_bytes;
    return transport_->Reserve(header_);
  }
  void PostTo(int position) { transport_->Post({group_.ranks[position]}, describe_); }
  void PostToAll() { transport_->Post(group_.other_ranks, describe_); }

  // The next message of a member, which has to have so many bytes.
  Message Take(int position, int64_t num_bytes) {
    Message message = transport_->Take(group_.ranks[position], group_.scope, describe_);
    const CollectiveCall& call = message.header.call;
    const int other = device_ids_[group_.ranks[position]];
    if (!call.Matches(header_.call)) {
      const int mine = device_ids_[group_.ranks[group_.position]];
      if (group_.position < position) ThrowDisagreement(mine, header_.call, other, call);
      ThrowDisagreement(other, call, mine, header_.call);
    }
    CheckSize(message, num_bytes, other);
    return message;
  }
  void Release(const Message& message) { transport_->Release(message); }
  // Waits for all others to make this call.
  void Meet() {
    Reserve(0);
    PostToAll();
    for (int j : others()) Release(Take(j, 0));
  }
  const Describe& describe() const { return describe_; }

 private:
  std::string DescribeWait() const {
    std::vector<int> devices;
    for (int rank : group_.ranks) devices.push_back(device_ids_[rank]);
    return std::string(header_.call.operation) + " over devices " + FormatList(devices);
  }

  Transport* const transport_;
  const std::vector<int>& device_ids_;
  const MessageGroup& group_;
  MessageHeader header_;
  const Describe describe_;
};

// Equal boxes that move between members: each is packed, sent and unpacked chunk by chunk.
class MessageCommunicator::Round {
 public:
  Round(std::vector<int64_t> extent, std::vector<int64_t> source_strides,
        std::vector<int64_t> target_strides, int64_t element_bytes)
      : extent_(std::move(extent)),
        source_strides_(std::move(source_strides)),
        target_strides_(std::move(target_strides)),
        element_bytes_(element_bytes) {}

  static constexpr int kToAll = -1;  // all other members
  void Send(int position, const char* source) { sends_.emplace_back(position, source); }
  void Receive(int position, char* target) { receives_.emplace_back(position, target); }
  // Copies the part that a member sends to itself.
  void Copy(const char* source, char* target) const {
    BoxCopy(extent_, source_strides_, target_strides_, element_bytes_).Run(source, target);
  }

  void Run(Conversation* conversation) const {
    const int64_t result_bytes = NumElements(extent_) * element_bytes_;
    ForEachChunk(extent_, kChunkBytes / element_bytes_, [&](const Chunk& chunk) {
      const std::vector<int64_t> packed = RowMajorStrides(chunk.extent, element_bytes_);
      const BoxCopy pack(chunk.extent, source_strides_, packed, element_bytes_);
      const BoxCopy unpack(chunk.extent, packed, target_strides_, element_bytes_, result_bytes);
      const int64_t num_bytes = NumElements(chunk.extent) * element_bytes_;
      for (const auto& [position, source] : sends_) {
        pack.Run(source + chunk.Offset(source_strides_), conversation->Reserve(num_bytes));
        if (position == kToAll) {
          conversation->PostToAll();
        } else {
          conversation->PostTo(position);
        }
      }
      for (const auto& [position, target] : receives_) {
        const Message message = conversation->Take(position, num_bytes);
        unpack.Run(message.bytes, target + chunk.Offset(target_strides_));
        conversation->Release(message);
      }
    });
  }

 private:
  const std::vector<int64_t> extent_, source_strides_, target_strides_;
  const int64_t element_bytes_;
  std::vector<std::pair<int, const char*>> sends_;
  std::vector<std::pair<int, char*>> receives_;
};

std::unique_ptr<Group> MessageCommunicator::OpenGroup(std::vector<int> ranks, int position) {
  const uint64_t scope = ScopeOf(0, std::vector<int64_t>(ranks.begin(), ranks.end()));
  return std::make_unique<MessageGroup>(std::move(ranks), position, scope);
}

// The collective on the members' own memory. Returns false, on all members alike, if it is small or
// they do not all see what it takes: the operands, and where a member writes to others the results.
template <typename MakeWork>
bool MessageCommunicator::MeetDirectly(Group* group, const char* operation, TensorView x,
                                       TensorView out, int64_t argument0, int64_t argument1,
                                       bool writes_to_others, MakeWork make_work) {
  const int n = group->size(), position = group->position;
  const int64_t element_bytes = ElementBytes(x.dtype());
  const int64_t num_bytes = std::max(x.numel(), out.numel()) * element_bytes;
  if (n == 1 || num_bytes < kDirectBytes || !transport_->SeeTensors(group->ranks)) return false;
  auto work = make_work();
  static_assert(noexcept(work(nullptr)), "peers rely on this worker until all are done");
  Conversation conversation(this, group, operation, x, argument0, argument1);
  Places mine{transport_->PlaceOf(DataOf(x)), transport_->PlaceOf(DataOf(out))};
  if (!writes_to_others) mine.out = 0;
  std::memcpy(conversation.Reserve(sizeof(mine)), &mine, sizeof(mine));
  conversation.PostToAll();
  std::vector<Buffers> members(n);
  bool all_seen = mine.x >= 0 && mine.out >= 0;
  for (int j : conversation.others()) {
    const Message message = conversation.Take(j, sizeof(Places));
    Places places;
    std::memcpy(&places, message.bytes, sizeof(places));
    conversation.Release(message);
    const bool is_seen = places.x >= 0 && places.out >= 0;
    all_seen = all_seen && is_seen;
    if (!is_seen) continue;
    members[j].x = transport_->At(group->ranks[j], places.x, x.numel() * element_bytes);
    if (writes_to_others)
      members[j].out = transport_->At(group->ranks[j], places.out, out.numel() * element_bytes);
  }
  if (!all_seen) return false;
  members[position] = {DataOf(x), DataOf(out)};
  work(members.data());
  conversation.Meet();
  return true;
}

// The collective by the library that carries messages between hosts. Returns false, on all members
// alike, if it does not have the group or does not take the call. Members meet before, so that a
// library is never given calls that disagree.
template <typename MakePacked>
bool MessageCommunicator::ByLibrary(Group* group, const char* operation, TensorView x,
                                    const LibraryCall& call, int64_t argument0, int64_t argument1,
                                    MakePacked make_packed) {
  if (library_ == nullptr || group->size() == 1 || !library_->Takes(group->ranks, call))
    return false;
  Conversation conversation(this, group, operation, x, argument0, argument1);
  conversation.Meet();
  const PackedCollective packed = make_packed();
  packed.Run(library_.get(), group->ranks, wait_, conversation.describe());
  library_bytes_ += packed.LeastBytes(group->size());
  return true;
}

void MessageCommunicator::Join(const std::string&) {
  if (library_ != nullptr) library_->Join(wait_);
}

void MessageCommunicator::OpenPartition(const std::vector<std::vector<int>>& groups) {
  if (library_ != nullptr) library_->Open(groups, wait_);
}

void MessageCommunicator::AllReduce(Group* group, TensorView x, ReduceKind kind, TensorView out) {
  if (MeetDirectly(group, abi::NameOf(abi::Collective::kAllReduce), x, out,
                   static_cast<int64_t>(kind), 0, true,
                   [&] { return AllReduceWork(x, kind, group->size(), group->position); }))
    return;
  const int64_t element_bytes = ElementBytes(x.dtype());
  const int64_t count = x.numel();
  const int64_t result_bytes = count * element_bytes;
  const LibraryCall call{LibraryOperation::kAllReduce, x.dtype(), kind, result_bytes};
  if (ByLibrary(group, abi::NameOf(abi::Collective::kAllReduce), x, call,
                static_cast<int64_t>(kind), 0, [&] { return PackedAllReduce(call, x, out); }))
    return;
  const int n = group->size(), position = group->position;
  // A result that is reduced in parts is sent on from the cache.
  const bool in_parts = n > 2 && result_bytes > kSmallBytes;
  const ReduceFunction reduce = FindReduceFunction(
      x.dtype(), kind, in_parts ? ResultSize::kCached : ResultSizeOf(result_bytes));
  const char* source = DataOf(x);
  char* target = DataOf(out);
  Conversation conversation(this, group, abi::NameOf(abi::Collective::kAllReduce), x,
                            static_cast<int64_t>(kind), 0);
  std::vector<const void*> sources(n);
  std::vector<Message> messages(n);
  // Reduces what all have sent and, of this member, what `own` points at.
  auto reduce_taken = [&](const char* own, int64_t size, void* result) {
    for (int j : conversation.others()) {
      messages[j] = conversation.Take(j, size * element_bytes);
      sources[j] = messages[j].bytes;
    }
    sources[position] = own;
    reduce(sources.data(), n, 0, size, &result, 1);
    for (int j : conversation.others()) conversation.Release(messages[j]);
  };
  // Data that others need next is sent before this member waits for its own.
  if (!in_parts) {
    const int64_t chunk = kChunkBytes / element_bytes;
    const int64_t num_chunks = std::max<int64_t>(1, (count + chunk - 1) / chunk);
    auto size_of = [&](int64_t k) { return std::min(chunk, count - k * chunk); };
    auto send = [&](int64_t k) {
      if (n == 1 || k == num_chunks) return;
      const int64_t num_bytes = size_of(k) * element_bytes;
      char* bytes = conversation.Reserve(num_bytes);
      if (num_bytes != 0) std::memcpy(bytes, source + k * chunk * element_bytes, num_bytes);
      conversation.PostToAll();
    };
    send(0);
    for (int64_t k = 0; k < num_chunks; ++k) {
      send(k + 1);
      const int64_t offset = k * chunk * element_bytes;
      reduce_taken(source + offset, size_of(k), target + offset);
    }
    return;
  }
  const Parts parts(count, kChunkBytes / element_bytes * n, n, element_bytes);
  auto send_parts = [&](int64_t step) {
    if (step == parts.num_steps()) return;
    for (int j : conversation.others()) {
      const int64_t num_bytes = parts.bytes(step, j);
      std::memcpy(conversation.Reserve(num_bytes), source + parts.offset(step, j), num_bytes);
      conversation.PostTo(j);
    }
  };
  auto take_results = [&](int64_t step) {
    if (step < 0) return;
    for (int j : conversation.others()) {
      const Message message = conversation.Take(j, parts.bytes(step, j));
      BoxCopy({parts.bytes(step, j)}, {1}, {1}, 1, result_bytes)
          .Run(message.bytes, target + parts.offset(step, j));
      conversation.Release(message);
    }
  };
  send_parts(0);
  for (int64_t step = 0; step < parts.num_steps(); ++step) {
    send_parts(step + 1);
    const int64_t num_bytes = parts.bytes(step, position);
    char* mine = target + parts.offset(step, position);
    reduce_taken(source + parts.offset(step, position), num_bytes / element_bytes, mine);
    std::memcpy(conversation.Reserve(num_bytes), mine, num_bytes);
    conversation.PostToAll();
    take_results(step - 1);
  }
  take_results(parts.num_steps() - 1);
}

void MessageCommunicator::AllGather(Group* group, TensorView x, int dim, TensorView out) {
  const int64_t element_bytes = ElementBytes(x.dtype());
  const std::vector<int64_t> extent = ShapeOf(x);
  const std::vector<int64_t> out_strides = RowMajorStrides(ShapeOf(out), element_bytes);
  const int64_t block_bytes = extent[dim] * out_strides[dim];
  if (MeetDirectly(group, abi::NameOf(abi::Collective::kAllGather), x, out, dim, 0, false,
                   [&] { return AllGatherWork(x, dim, out, group->size(), group->position); }))
    return;
  const LibraryCall call{LibraryOperation::kAllGather, x.dtype(), ReduceKind::kSum,
                         out.numel() * element_bytes};
  if (ByLibrary(group, abi::NameOf(abi::Collective::kAllGather), x, call, dim, 0,
                [&] { return PackedAllGather(call, x, dim, out, group->size()); }))
    return;
  Conversation conversation(this, group, abi::NameOf(abi::Collective::kAllGather), x, dim, 0);
  Round round(extent, RowMajorStrides(extent, element_bytes), out_strides, element_bytes);
  if (group->size() > 1) round.Send(Round::kToAll, DataOf(x));
  round.Copy(DataOf(x), DataOf(out) + group->position * block_bytes);
  for (int j : conversation.others()) round.Receive(j, DataOf(out) + j * block_bytes);
  round.Run(&conversation);
}

void MessageCommunicator::ReduceScatter(Group* group, TensorView x, int dim, ReduceKind kind,
                                        TensorView out) {
  if (MeetDirectly(group, abi::NameOf(abi::Collective::kReduceScatter), x, out, dim,
                   static_cast<int64_t>(kind), false, [&] {
                     return ReduceScatterWork(x, dim, kind, out, group->size(), group->position);
                   }))
    return;
  const int64_t element_bytes = ElementBytes(x.dtype());
  const ReduceFunction reduce =
      FindReduceFunction(x.dtype(), kind, ResultSizeOf(out.numel() * element_bytes));
  const int n = group->size(), position = group->position;
  const std::vector<int64_t> x_strides = RowMajorStrides(ShapeOf(x), element_bytes);
  std::vector<int64_t> extent = ShapeOf(x);
  extent[dim] /= n;
  const int64_t block_bytes = extent[dim] * x_strides[dim];
  const LibraryCall call{LibraryOperation::kReduceScatter, x.dtype(), kind,
                         x.numel() * element_bytes};
  if (ByLibrary(group, abi::NameOf(abi::Collective::kReduceScatter), x, call, dim,
                static_cast<int64_t>(kind),
                [&] { return PackedReduceScatter(call, x, dim, out, n); }))
    return;
  Conversation conversation(this, group, abi::NameOf(abi::Collective::kReduceScatter), x, dim,
                            static_cast<int64_t>(kind));
  std::vector<const void*> sources(n);
  std::vector<Message> messages(n);
  std::vector<char> own;
  char* target = DataOf(out);  // chunks are contiguous in it, one after the other
  ForEachChunk(extent, kChunkBytes / element_bytes, [&](const Chunk& chunk) {
    const BoxCopy pack(chunk.extent, x_strides, RowMajorStrides(chunk.extent, element_bytes),
                       element_bytes);
    const char* source = DataOf(x) + chunk.Offset(x_strides);
    const int64_t count = NumElements(chunk.extent);
    for (int j : conversation.others()) {
      pack.Run(source + j * block_bytes, conversation.Reserve(count * element_bytes));
      conversation.PostTo(j);
    }
    own.resize(count * element_bytes);
    pack.Run(source + position * block_bytes, own.data());
    sources[position] = own.data();
    for (int j : conversation.others()) {
      messages[j] = conversation.Take(j, count * element_bytes);
      sources[j] = messages[j].bytes;
    }
    void* result = target;
    reduce(sources.data(), n, 0, count, &result, 1);
    for (int j : conversation.others()) conversation.Release(messages[j]);
    target += count * element_bytes;
  });
}

void MessageCommunicator::AllToAll(Group* group, TensorView x, int split_dim, int concat_dim,
                                   TensorView out) {
  if (MeetDirectly(group, abi::NameOf(abi::Collective::kAllToAll), x, out, split_dim, concat_dim,
                   false, [&] {
                     return AllToAllWork(x, split_dim, concat_dim, out, group->size(),
                                         group->position);
                   }))
    return;
  const int64_t element_bytes = ElementBytes(x.dtype());
  const int position = group->position;
  const std::vector<int64_t> x_strides = RowMajorStrides(ShapeOf(x), element_bytes);
  const std::vector<int64_t> out_strides = RowMajorStrides(ShapeOf(out), element_bytes);
  std::vector<int64_t> piece = ShapeOf(x);
  piece[split_dim] /= group->size();
  const int64_t x_step = piece[split_dim] * x_strides[split_dim];
  const int64_t out_step = piece[concat_dim] * out_strides[concat_dim];
  const LibraryCall call{LibraryOperation::kAllToAll, x.dtype(), ReduceKind::kSum,
                         x.numel() * element_bytes};
  if (ByLibrary(group, abi::NameOf(abi::Collective::kAllToAll), x, call, split_dim, concat_dim,
                [&] { return PackedAllToAll(call, x, split_dim, concat_dim, out, group->size()); }))
    return;
  Conversation conversation(this, group, abi::NameOf(abi::Collective::kAllToAll), x, split_dim,
                            concat_dim);
  Round round(piece, x_strides, out_strides, element_bytes);
  round.Copy(DataOf(x) + position * x_step, DataOf(out) + position * out_step);
  for (int j : conversation.others()) {
    round.Send(j, DataOf(x) + j * x_step);
    round.Receive(j, DataOf(out) + j * out_step);
  }
  round.Run(&conversation);
}

namespace {

std::string ChannelName(const TransferPlan& plan, int source_device, int target_device) {
  return "channel " + std::to_string(plan.channel) + " from device " +
         std::to_string(source_device) + " to device " + std::to_string(target_device);
}

MessageHeader TransferHeader(const TransferPlan& plan, const MemoryBox& box) {
  MessageHeader header;
  header.scope = ScopeOf(1, {plan.channel});
  header.call =
      CollectiveCall(abi::NameOf(abi::Collective::kTransfer), box.call, box.dtype,
                     box.extent.data(), static_cast<int>(box.extent.size()), plan.channel, 0);
  return header;
}

}  // namespace

void MessageCommunicator::SendBox(const TransferPlan& plan, int peer, const MemoryBox& box) {
  const int64_t element_bytes = ElementBytes(box.dtype);
  MessageHeader header = TransferHeader(plan, box);
  ForEachChunk(box.extent, kChunkBytes / element_bytes, [&](const Chunk& chunk) {
    header.num_bytes = NumElements(chunk.extent) * element_bytes;
    BoxCopy(chunk.extent, box.byte_strides, RowMajorStrides(chunk.extent, element_bytes),
            element_bytes)
        .Run(box.data + chunk.Offset(box.byte_strides), transport_->Reserve(header));
    transport_->Post({peer}, [&] {
      return "send on " + ChannelName(plan, device_ids_[rank_], device_ids_[peer]);
    });
  });
}

void MessageCommunicator::ReceiveBox(const TransferPlan& plan, int peer, const MemoryBox& box) {
  const int64_t element_bytes = ElementBytes(box.dtype);
  const MessageHeader header = TransferHeader(plan, box);
  auto name = [&] { return ChannelName(plan, device_ids_[peer], device_ids_[rank_]); };
  ForEachChunk(box.extent, kChunkBytes / element_bytes, [&](const Chunk& chunk) {
    const Message message =
        transport_->Take(peer, header.scope, [&] { return "recv on " + name(); });
    const CollectiveCall& sent = message.header.call;
    if (!sent.Matches(header.call)) {
      TVM_FFI_THROW(ValueError) << "the programs of the workers disagree on " << name() << ": "
                                << sent.Describe() << " was sent, " << header.call.Describe()
                                << " is expected"
                                << (sent.step != box.call ? " of another call" : "");
    }
    CheckSize(message, NumElements(chunk.extent) * element_bytes, device_ids_[peer]);
    BoxCopy(chunk.extent, RowMajorStrides(chunk.extent, element_bytes), box.byte_strides,
            element_bytes)
        .Run(message.bytes, box.data + chunk.Offset(box.byte_strides));
    transport_->Release(message);
  });
}

void MessageCommunicator::Transfer(const TransferPlan& plan, const TensorView* x,
                                   const TensorView* out) {
  MoveBoxes(
      plan, call(), rank_, x, out,
      [&](int peer, const MemoryBox& box) { SendBox(plan, peer, box); },
      [&](int peer, const MemoryBox& box) { ReceiveBox(plan, peer, box); });
}

}  // namespace distir::runtime::cpu
