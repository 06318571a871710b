#include "runtime/cpu/thread_communicator.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <cstring>

#include "runtime/strided_copy.h"

namespace distir::runtime::cpu {

namespace {

// Parts of an all-reduce begin at multiples of this, so that no two members write to one cache
// line.
constexpr int64_t kPartAlignment = 64;

class ThreadGroup : public Group {
 public:
  ThreadGroup(std::vector<int> ranks, int position, std::shared_ptr<MeetingPlace> place)
      : Group(std::move(ranks), position), place(std::move(place)) {}
  const std::shared_ptr<MeetingPlace> place;
};

// Elements before, in and after `dim`: a row-major tensor is [outer, size, inner].
struct DimView {
  DimView(const std::vector<int64_t>& shape, int dim) : outer(1), size(shape[dim]), inner(1) {
    for (int i = 0; i < dim; ++i) outer *= shape[i];
    for (size_t i = dim + 1; i < shape.size(); ++i) inner *= shape[i];
  }
  int64_t outer, size, inner;
};

}  // namespace

std::unique_ptr<Group> ThreadCommunicator::OpenGroup(std::vector<int> ranks, int position) {
  std::shared_ptr<MeetingPlace> place = backend_->FindMeetingPlace(ranks);
  return std::make_unique<ThreadGroup>(std::move(ranks), position, std::move(place));
}

tvm::ffi::Tensor ThreadCommunicator::SharedResult(Group* group, tvm::ffi::ShapeView shape,
                                                  DLDataType dtype) {
  MeetingPlace& place = *static_cast<ThreadGroup*>(group)->place;
  return place.result.Take(place.rendezvous.num_passed(), shape, dtype);
}

// Runs `work(calls of all members)` while all members' buffers are valid.
template <typename Work>
void ThreadCommunicator::Meet(Group* group, const char* operation, TensorView x, TensorView out,
                              int64_t argument0, int64_t argument1, Work work) {
  static_assert(noexcept(work(nullptr)), "peers rely on this worker until it leaves");
  MemberCall call(operation, backend_->step(rank_), x.dtype(), x.shape().data(), x.ndim(),
                  argument0, argument1);
  call.x = DataOf(x);
  call.out = DataOf(out);
  if (group->size() == 1) {
    work(&call);
    return;
  }
  Rendezvous& rendezvous = static_cast<ThreadGroup*>(group)->place->rendezvous;
  work(rendezvous.Enter(group->position, call));
  rendezvous.Leave();
}

void ThreadCommunicator::AllReduce(Group* group, TensorView x, ReduceKind kind, TensorView out) {
  const int64_t element_bytes = ElementBytes(x.dtype());
  const int64_t count = x.numel();
  const ReduceFunction reduce =
      FindReduceFunction(x.dtype(), kind, ResultSizeOf(count * element_bytes));
  const int n = group->size(), position = group->position;
  const int64_t units = (count + kPartAlignment - 1) / kPartAlignment;
  const int64_t begin = units * position / n * kPartAlignment;
  const int64_t end = std::min(count, units * (position + 1) / n * kPartAlignment);
  std::vector<const void*> sources(n);
  std::vector<void*> outs(n);
  Meet(group, "all_reduce", x, out, static_cast<int64_t>(kind), 0,
       [&](const MemberCall* calls) noexcept {
         int num_outs = 0;
         for (int j = 0; j < n; ++j) {
           sources[j] = calls[j].x;
           // Members begin with their own result, so that they do not all write to the same one.
           void* part = calls[(position + j) % n].out + begin * element_bytes;
           const auto end_of_outs = outs.begin() + num_outs;
           if (std::find(outs.begin(), end_of_outs, part) == end_of_outs) outs[num_outs++] = part;
         }
         if (begin < end) reduce(sources.data(), n, begin, end - begin, outs.data(), num_outs);
       });
}

void ThreadCommunicator::AllGather(Group* group, TensorView x, int dim, TensorView out) {
  const int64_t element_bytes = ElementBytes(x.dtype());
  const std::vector<int64_t> extent = ShapeOf(x);
  const std::vector<int64_t> out_strides = RowMajorStrides(ShapeOf(out), element_bytes);
  const BoxCopy copy(extent, RowMajorStrides(extent, element_bytes), out_strides, element_bytes);
  const int64_t block_bytes = extent[dim] * out_strides[dim];
  const int n = group->size(), position = group->position;
  Meet(group, "all_gather", x, out, dim, 0, [&](const MemberCall* calls) noexcept {
    char* out = calls[position].out;
    int num_sharers = 0, index = 0;  // of those that write this output, and mine among them
    for (int j = 0; j < n; ++j) {
      if (calls[j].out != out) continue;
      if (j < position) ++index;
      ++num_sharers;
    }
    // Members begin with their own block, so that they do not all read the same one at a time.
    for (int i = 0; i < n; ++i) {
      const int j = (position + i) % n;
      if (j % num_sharers == index) copy.Run(calls[j].x, out + j * block_bytes);
    }
  });
}

void ThreadCommunicator::ReduceScatter(Group* group, TensorView x, int dim, ReduceKind kind,
                                       TensorView out) {
  const int64_t element_bytes = ElementBytes(x.dtype());
  const ReduceFunction reduce =
      FindReduceFunction(x.dtype(), kind, ResultSizeOf(out.numel() * element_bytes));
  const int n = group->size(), position = group->position;
  const DimView view(ShapeOf(x), dim);
  const int64_t run = view.size / n * view.inner;
  std::vector<const void*> sources(n);
  Meet(group, "reduce_scatter", x, out, dim, static_cast<int64_t>(kind),
       [&](const MemberCall* calls) noexcept {
         for (int j = 0; j < n; ++j) sources[j] = calls[j].x;
         for (int64_t o = 0; o < view.outer; ++o) {
           void* target = calls[position].out + o * run * element_bytes;
           reduce(sources.data(), n, (o * n + position) * run, run, &target, 1);
         }
       });
}

void ThreadCommunicator::AllToAll(Group* group, TensorView x, int split_dim, int concat_dim,
                                  TensorView out) {
  const int64_t element_bytes = ElementBytes(x.dtype());
  const int n = group->size(), position = group->position;
  const std::vector<int64_t> x_strides = RowMajorStrides(ShapeOf(x), element_bytes);
  const std::vector<int64_t> out_strides = RowMajorStrides(ShapeOf(out), element_bytes);
  std::vector<int64_t> piece = ShapeOf(x);
  piece[split_dim] /= n;
  const BoxCopy copy(piece, x_strides, out_strides, element_bytes);
  const int64_t x_offset = position * piece[split_dim] * x_strides[split_dim];
  const int64_t out_step = piece[concat_dim] * out_strides[concat_dim];
  Meet(group, "all_to_all", x, out, split_dim, concat_dim, [&](const MemberCall* calls) noexcept {
    for (int i = 0; i < n; ++i) {
      const int j = (position + i) % n;
      copy.Run(calls[j].x + x_offset, calls[position].out + j * out_step);
    }
  });
}

void ThreadCommunicator::Permute(Group* group, TensorView x, int source, int, TensorView out) {
  const int64_t element_bytes = ElementBytes(x.dtype());
  const std::vector<int64_t> strides = RowMajorStrides(ShapeOf(x), element_bytes);
  const BoxCopy copy(ShapeOf(x), strides, strides, element_bytes);
  const int position = group->position;
  Meet(group, "permute", x, out, 0, 0,
       [&](const MemberCall* calls) noexcept { copy.Run(calls[source].x, calls[position].out); });
}

void ThreadCommunicator::Slice(const Group& group, TensorView x, int dim, TensorView out) {
  CopySlice(group, x, dim, out);
}

void ThreadCommunicator::Transfer(const TransferPlan& plan, const TensorView* x,
                                  const TensorView* out) {
  MoveBoxes(
      plan, call(), rank_, x, out,
      [&](int peer, const MemoryBox& box) {
        backend_->FindMailbox(plan.channel, rank_, peer)->Send(box);
      },
      [&](int peer, const MemoryBox& box) {
        backend_->FindMailbox(plan.channel, peer, rank_)->Receive(rank_, box);
      });
}

}  // namespace distir::runtime::cpu
