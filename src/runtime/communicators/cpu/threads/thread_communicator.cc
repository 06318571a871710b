// Runs the collectives of one thread on buffers that all members see.
#include "runtime/communicators/cpu/threads/thread_communicator.h"

#include "abi/collective.h"
#include "runtime/communicators/cpu/direct_work.h"
#include "runtime/kernels/strided_copy.h"

namespace distir::runtime::cpu {

namespace {

class ThreadGroup : public Group {
 public:
  ThreadGroup(std::vector<int> ranks, int position, std::shared_ptr<MeetingPlace> place)
      : Group(std::move(ranks), position), place(std::move(place)) {}
  const std::shared_ptr<MeetingPlace> place;
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

// Runs `work(buffers of all members)` while all members' buffers are valid.
template <typename Work>
void ThreadCommunicator::Meet(Group* group, const char* operation, TensorView x, TensorView out,
                              int64_t argument0, int64_t argument1, Work work) {
  static_assert(noexcept(work(nullptr)), "peers rely on this worker until it leaves");
  const CollectiveCall call(operation, backend_->step(rank_), x.dtype(), x.shape().data(), x.ndim(),
                            argument0, argument1);
  const Buffers mine{DataOf(x), DataOf(out)};
  if (group->size() == 1) {
    work(&mine);
    return;
  }
  Rendezvous& rendezvous = static_cast<ThreadGroup*>(group)->place->rendezvous;
  work(rendezvous.Enter(group->position, call, mine));
  rendezvous.Leave();
}

void ThreadCommunicator::AllReduce(Group* group, TensorView x, ReduceKind kind, TensorView out) {
  Meet(group, abi::NameOf(abi::Collective::kAllReduce), x, out, static_cast<int64_t>(kind), 0,
       AllReduceWork(x, kind, group->size(), group->position));
}

void ThreadCommunicator::AllGather(Group* group, TensorView x, int dim, TensorView out) {
  Meet(group, abi::NameOf(abi::Collective::kAllGather), x, out, dim, 0,
       AllGatherWork(x, dim, out, group->size(), group->position));
}

void ThreadCommunicator::ReduceScatter(Group* group, TensorView x, int dim, ReduceKind kind,
                                       TensorView out) {
  Meet(group, abi::NameOf(abi::Collective::kReduceScatter), x, out, dim, static_cast<int64_t>(kind),
       ReduceScatterWork(x, dim, kind, out, group->size(), group->position));
}

void ThreadCommunicator::AllToAll(Group* group, TensorView x, int split_dim, int concat_dim,
                                  TensorView out) {
  Meet(group, abi::NameOf(abi::Collective::kAllToAll), x, out, split_dim, concat_dim,
       AllToAllWork(x, split_dim, concat_dim, out, group->size(), group->position));
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
