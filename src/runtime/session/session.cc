// Runs steps on disco's workers in order, and closes sessions.
#include "runtime/session/session.h"

#include <tvm/ffi/container/map.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/reflection/registry.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/session/step.h"
#include "runtime/session/worker_context.h"
#include "support/functions.h"

namespace distir::runtime {

namespace ffi = tvm::ffi;

namespace {

ffi::Function DiscoFunction(const char* name) {
  std::optional<ffi::Function> found = ffi::Function::GetGlobal(name);
  if (!found.has_value()) {
    TVM_FFI_THROW(RuntimeError) << "this TVM has no global function " << name
                                << "; it was built without disco (libtvm_runtime_extra)";
  }
  return *std::move(found);
}

std::vector<int> CheckDeviceIds(const ffi::Shape& device_ids) {
  std::vector<int> ids(device_ids.begin(), device_ids.end());
  if (ids.empty()) TVM_FFI_THROW(ValueError) << "a session needs at least one device";
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0) TVM_FFI_THROW(ValueError) << "device id " << ids[i] << " is negative";
    if (i > 0 && ids[i - 1] >= ids[i]) {
      TVM_FFI_THROW(ValueError) << "device ids must ascend; " << ids[i] << " follows "
                                << ids[i - 1];
    }
  }
  return ids;
}

// Interval at which a worker that waits for its turn checks for failures, in seconds.
constexpr double kTurnSlice = 0.1;

void AwaitTurn(SessionState* session, JobObj* job, int rank) {
  if (job->after[rank] == nullptr) return;
  while (!session->failed() && !job->after[rank]->WaitFor(job->finishers, kTurnSlice)) {
  }
  job->after[rank] = nullptr;
}

std::vector<ffi::ObjectPtr<JobObj>> EarlierJobs(
    const ffi::Array<ffi::Optional<ffi::ObjectRef>>& given, size_t num_workers) {
  std::vector<ffi::ObjectPtr<JobObj>> jobs;
  for (const ffi::Optional<ffi::ObjectRef>& job : given) {
    jobs.push_back(job.has_value() ? ffi::Any(job.value()).cast<ffi::ObjectPtr<JobObj>>()
                                   : nullptr);
  }
  jobs.resize(num_workers);
  return jobs;
}

void RunOnWorker(JobObj* job, WorkerContext* worker) {
  const int rank = worker->rank();
  AwaitTurn(&worker->session(), job, rank);
  ffi::Array<ffi::Any>& arguments = job->arguments[rank];
  if (ffi::ObjectPtr<JobObj> earlier = std::move(job->continues[rank]); earlier != nullptr) {
    for (const ffi::Any& kept : earlier->TakeKept(rank)) arguments.push_back(kept);
  }
  job->times[rank] = RunStep(worker, {job->step, job->call}, job->name, job->functions[rank],
                             arguments, &job->results[rank]);
  // The arguments of the step are freed before the controller hears of its end.
  job->functions[rank] = std::nullopt;
  arguments = ffi::Array<ffi::Any>();
}

// The entry of every step on a worker. Nothing may leave it: disco would end the process.
void GuardedCall(int64_t session_id, int64_t step) noexcept {
  std::shared_ptr<SessionState> session = SessionState::Find(session_id);
  if (session == nullptr) return;
  ffi::ObjectPtr<JobObj> job = session->FetchJob(step);
  if (job == nullptr) return;
  int rank = -1;
  try {
    static const ffi::Function worker_rank = DiscoFunction("runtime.disco.worker_rank");
    rank = worker_rank().cast<int>();
    RunOnWorker(job.get(), &WorkerContext::Enter(session, rank));
  } catch (...) {
    session->Fail(DescribeCurrentException(rank, job->name, ""));
  }
  job->WorkerDone(rank);
}

// Tells the workers to give back what they have, behind all that they were told before.
void DismissWorkers(const ffi::Any& disco, const ffi::Any& leave) noexcept {
  try {
    static const ffi::Function call = DiscoFunction("runtime.disco.SessionCallPacked");
    call(disco, 0, 0, leave);
  } catch (...) {  // their threads then do it when they end
  }
}

}  // namespace

SessionObj::SessionObj(const ffi::String& workers, const ffi::Shape& device_ids,
                       const ffi::String& ccl)
    : owner_(getpid()) {
  if (workers != "threads") {
    TVM_FFI_THROW(ValueError) << "workers \"" << workers
                              << "\" are not supported; known are "
                                 "\"threads\"";
  }
  const ffi::Function make_session = DiscoFunction("runtime.disco.SessionThreaded");
  const ffi::Function get_function = DiscoFunction("runtime.disco.SessionGetGlobalFunc");
  // A worker that looks up a missing function ends the process, so it is looked up here first.
  DiscoFunction("runtime.disco.worker_rank");
  DiscoFunction("distir.runtime.guarded_call");
  DiscoFunction("distir.runtime.leave");
  state_ = std::make_shared<SessionState>(CheckDeviceIds(device_ids), ccl);
  disco_ = std::make_unique<Disco>();
  disco_->session = make_session(state_->num_workers(), 1);
  disco_->guarded_call = get_function(disco_->session, "distir.runtime.guarded_call");
  disco_->leave = get_function(disco_->session, "distir.runtime.leave");
  SessionState::Register(state_);
}

SessionObj::~SessionObj() {
  if (IsFork()) {
    // Its threads, and whoever holds its locks, are in the other process.
    [[maybe_unused]] Disco* kept = disco_.release();
    [[maybe_unused]] auto* kept_state = new std::shared_ptr<SessionState>(std::move(state_));
  } else if (IsOwnWorker()) {
    // A thread cannot join itself; the workers stay until the process ends.
    [[maybe_unused]] Disco* kept = disco_.release();
  } else {
    Close();
  }
}

ffi::ObjectPtr<JobObj> SessionObj::Submit(const ffi::String& name,
                                          const ffi::Array<ffi::Optional<ffi::Function>>& functions,
                                          const ffi::Array<ffi::Array<ffi::Any>>& arguments,
                                          const QueuedBehind& queued) {
  const size_t num_workers = state_->device_ids().size();
  if (functions.size() != num_workers || arguments.size() != num_workers) {
    TVM_FFI_THROW(ValueError) << "a job needs functions and arguments for each of the "
                              << num_workers << " workers";
  }
  static const ffi::Function call = DiscoFunction("runtime.disco.SessionCallPacked");
  auto job = ffi::make_object<JobObj>();
  job->name = name;
  job->functions.assign(functions.begin(), functions.end());
  job->arguments.assign(arguments.begin(), arguments.end());
  job->results.resize(num_workers);
  job->times.resize(num_workers);
  job->continues = EarlierJobs(queued.continues, num_workers);
  job->after = EarlierJobs(queued.after, num_workers);
  job->keeps.resize(num_workers);
  for (int64_t rank : queued.keeps) job->keeps[rank] = true;
  job->finishers.assign(queued.finishers.begin(), queued.finishers.end());

  CheckNotOwnWorker("start a step of");
  std::lock_guard<std::mutex> lock(mutex_);
  if (disco_ == nullptr) TVM_FFI_THROW(RuntimeError) << "the session is closed";
  job->step = next_step_++;
  job->call = job->step;
  if (queued.call.has_value())
    job->call = ffi::Any(queued.call.value()).cast<ffi::ObjectPtr<JobObj>>()->call;
  state_->AddJob(job);
  call(disco_->session, 0, 0, disco_->guarded_call, state_->id(), job->step);
  return job;
}

bool SessionObj::IsFork() const { return getpid() != owner_; }

bool SessionObj::IsOwnWorker() const {
  WorkerContext* worker = WorkerContext::CurrentOrNull();
  return worker != nullptr && &worker->session() == state_.get();
}

void SessionObj::CheckNotOwnWorker(const char* action) const {
  if (IsOwnWorker()) {
    TVM_FFI_THROW(RuntimeError) << "worker " << WorkerContext::Current().rank() << " cannot "
                                << action << " its own session; it would wait for itself";
  }
}

void SessionObj::Close() {
  if (IsFork()) return;
  CheckNotOwnWorker("close");
  std::lock_guard<std::mutex> lock(mutex_);
  if (disco_ == nullptr) return;  // closed, or left alone, when a thread waits for its workers
  DismissWorkers(disco_->session, disco_->leave);
  disco_.reset();  // the last reference: disco tells its threads to end and joins them
  state_->backend().WorkersEnded();
}

int SessionObj::NumRunning(const JobObj& job) const {
  int running = 0;
  for (int rank = 0; rank < state_->num_workers(); ++rank)
    running += !job.Done(rank) && state_->backend().WaitOf(rank).empty();
  return running;
}

void SessionObj::FailStalled(const JobObj& job, const std::string& why) {
  int stalled = -1;
  std::string wait;
  for (int rank = 0; rank < state_->num_workers(); ++rank) {
    if (job.Done(rank)) continue;
    std::string its_wait = state_->backend().WaitOf(rank);
    if (stalled >= 0 && !its_wait.empty()) continue;
    stalled = rank;
    wait = std::move(its_wait);
    if (wait.empty()) break;
  }
  if (stalled < 0) return;
  const std::string operation = state_->operator_name(stalled).Get();
  const std::string message = wait.empty() ? why : why + "; it waits in " + wait;
  state_->Fail(Failure{stalled, job.name, operation, "TimeoutError", message, ""});
}

namespace {

// Sessions that were left alone, whose workers still run something.
std::atomic<int64_t> num_left_alone{0};

}  // namespace

void SessionObj::Abandon() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (disco_ == nullptr) return;
  Disco* disco = disco_.release();
  try {
    ++num_left_alone;
    // Joins the workers, which takes as long as what they run.
    std::thread([disco, state = state_] {
      DismissWorkers(disco->session, disco->leave);
      std::unique_ptr<Disco>(disco).reset();
      state->backend().WorkersEnded();
      --num_left_alone;
    }).detach();
  } catch (const std::system_error&) {  // there is no thread for it, so they stay
    --num_left_alone;
  }
}

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = tvm::ffi::reflection;
  using SessionPtr = ffi::Arc<SessionObj>;
  using JobPtr = ffi::Arc<JobObj>;
  refl::ObjectDef<SessionObj>(refl::init(false));
  support::Functions()
      .def("distir.runtime.backends",
           []() {
             ffi::Array<ffi::String> names;
             for (const std::string& name : BackendNames()) names.push_back(name);
             return names;
           })
      .def("distir.runtime.guarded_call",
           [](int64_t session_id, int64_t step) { GuardedCall(session_id, step); })
      .def("distir.runtime.leave", []() { WorkerContext::Leave(); })
      .def("distir.runtime.session_open",
           [](const ffi::String& workers, const ffi::Shape& device_ids, const ffi::String& ccl) {
             return ffi::make_object<SessionObj>(workers, device_ids, ccl);
           })
      .def("distir.runtime.session_device_type",
           [](const SessionPtr& session) {
             return static_cast<int64_t>(session->state().backend().DeviceOf(0).device_type);
           })
      .def("distir.runtime.session_submit",
           [](const SessionPtr& session, const ffi::String& name,
              const ffi::Array<ffi::Optional<ffi::Function>>& functions,
              const ffi::Array<ffi::Array<ffi::Any>>& arguments) {
             return session->Submit(name, functions, arguments, {});
           })
      .def("distir.runtime.session_submit_queued",
           [](const SessionPtr& session, const ffi::String& name,
              const ffi::Array<ffi::Optional<ffi::Function>>& functions,
              const ffi::Array<ffi::Array<ffi::Any>>& arguments,
              const ffi::Optional<ffi::ObjectRef>& call,
              const ffi::Array<ffi::Optional<ffi::ObjectRef>>& continues, const ffi::Shape& keeps,
              const ffi::Array<ffi::Optional<ffi::ObjectRef>>& after, const ffi::Shape& finishers) {
             return session->Submit(name, functions, arguments,
                                    {call, continues, keeps, after, finishers});
           })
      .def("distir.runtime.session_abort",
           [](const SessionPtr& session, const ffi::String& why) {
             session->state().Fail(Failure{-1, "", "", "RuntimeError", why, ""});
           })
      .def("distir.runtime.session_check_not_worker",
           [](const SessionPtr& session, const ffi::String& action) {
             session->CheckNotOwnWorker(action.c_str());
           })
      .def("distir.runtime.session_stalled",
           [](const SessionPtr& session, const JobPtr& job, const ffi::String& why) {
             session->FailStalled(*job, why);
           })
      .def("distir.runtime.session_num_running",
           [](const SessionPtr& session, const JobPtr& job) { return session->NumRunning(*job); })
      .def("distir.runtime.session_abandon", [](const SessionPtr& session) { session->Abandon(); })
      .def("distir.runtime.num_sessions_left_alone", []() -> int64_t { return num_left_alone; })
      .def("distir.runtime.session_failure",
           [](const SessionPtr& session) -> ffi::Optional<ffi::Map<ffi::String, ffi::Any>> {
             std::optional<Failure> failure = session->state().failure();
             if (!failure.has_value()) return std::nullopt;
             return FailureToMap(*failure, session->state());
           })
      .def("distir.runtime.session_close", [](const SessionPtr& session) { session->Close(); });
}

}  // namespace distir::runtime
