// Holds session, rank, device and resolved descriptors of the current thread.
#include "runtime/session/worker_context.h"

#include <tvm/ffi/error.h>

#include "runtime/session/session_state.h"

namespace distir::runtime {

namespace {

std::unique_ptr<WorkerContext>& ThreadContext() {
  thread_local std::unique_ptr<WorkerContext> context;
  return context;
}

}  // namespace

WorkerContext::WorkerContext(std::shared_ptr<SessionState> session, int rank)
    : session_(std::move(session)),
      rank_(rank),
      device_id_(session_->device_ids()[rank]),
      memory_(session_->backend().DeviceOf(rank)),
      communicator_(session_->backend().Connect(rank)) {}

WorkerContext* WorkerContext::CurrentOrNull() { return ThreadContext().get(); }

WorkerContext& WorkerContext::Current() {
  WorkerContext* context = CurrentOrNull();
  if (context == nullptr) {
    TVM_FFI_THROW(RuntimeError) << "distir.runtime collectives run on the workers of a session; "
                                   "this thread is not one (load the executable into a Session)";
  }
  return *context;
}

WorkerContext& WorkerContext::Enter(const std::shared_ptr<SessionState>& session, int rank) {
  std::unique_ptr<WorkerContext>& context = ThreadContext();
  if (context == nullptr || context->session_ != session) {
    context.reset(new WorkerContext(session, rank));
  }
  return *context;
}

void WorkerContext::Leave() { ThreadContext().reset(); }

RankOf WorkerContext::MakeRankOf() const {
  return [session = session_.get()](int64_t device_id) { return session->RankOf(device_id); };
}

void WorkerContext::OpenPartition(const tvm::ffi::String& groups) {
  communicator_->OpenPartition(ParsePartition(groups, MakeRankOf()));
}

Group* WorkerContext::FindGroup(const tvm::ffi::String& groups) {
  std::unique_ptr<Group>& group = groups_[groups];
  if (group == nullptr) {
    GroupDescriptor mine = ParseGroups(groups, device_id_, MakeRankOf());
    group = communicator_->OpenGroup(std::move(mine.ranks), mine.position);
  }
  return group.get();
}

const TransferPlan& WorkerContext::FindTransferPlan(const tvm::ffi::String& plan) {
  std::unique_ptr<TransferPlan>& found = plans_[plan];
  if (found == nullptr) {
    found = std::make_unique<TransferPlan>(ParseTransferPlan(plan, device_id_, MakeRankOf()));
  }
  return *found;
}

const SegmentPlan& WorkerContext::FindSegmentPlan(const tvm::ffi::String& plan) {
  std::unique_ptr<SegmentPlan>& found = segment_plans_[plan];
  if (found == nullptr) {
    found = std::make_unique<SegmentPlan>(ParseSegmentPlan(plan, device_id_, MakeRankOf()));
  }
  return *found;
}

}  // namespace distir::runtime
