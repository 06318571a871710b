/*!
 * \file runtime/communicators/cpu/processes/worker_process.cc
 * \brief Functions for Python in worker processes and in their controller.
 *
 * Both hold the shared memory of the session's workers on their host: the worker as a member, the
 * controller to end what waits and to see what each worker is doing, also one that is stopped or
 * gone. On another host than the controller's, the host's agent has this part.
 */
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/object.h>
#include <tvm/ffi/reflection/registry.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/communicators/cpu/processes/carried_peers.h"
#include "runtime/communicators/cpu/processes/peer_sockets.h"
#include "runtime/communicators/cpu/processes/process_backend.h"
#include "runtime/communicators/cpu/processes/shared_memory.h"
#include "runtime/session/session_state.h"
#include "runtime/session/shard.h"
#include "runtime/session/step.h"
#include "runtime/session/worker_context.h"
#include "support/descriptor.h"
#include "support/functions.h"

namespace distir::runtime::cpu {

namespace ffi = tvm::ffi;

namespace {

// The controller's view of its workers.
class ProcessBoardObj : public ffi::Object {
 public:
  ProcessBoardObj(int num_workers, size_t bytes_in_flight) : memory(num_workers, bytes_in_flight) {}
  SharedMemory memory;

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("distir.runtime.ProcessBoard", ProcessBoardObj, ffi::Object);
};

// The one worker that this process is.
class ProcessWorkerObj : public ffi::Object {
 public:
  ProcessWorkerObj(int descriptor, const std::vector<Peer>& peers, const std::string& ccl,
                   WorkerSet workers, const std::string& device) {
    const int rank = workers.own_rank;
    std::vector<int> ids = workers.device_ids;
    const int n = static_cast<int>(ids.size());
    auto memory = std::make_shared<SharedMemory>(descriptor, n);
    std::vector<SharedText*> names;
    for (int r = 0; r < n; ++r) names.push_back(&memory->status(r).operator_name);
    std::shared_ptr<Backend> collectives;
    workers.aborted = [memory] { return memory->aborted(); };
    if (ccl != "cpu") {
      WorkerStatus* status = &memory->status(rank);
      workers.waits_for = [memory, status](const std::string& what) {
        if (!what.empty()) status->wait.Set(what);
        status->waiting.store(what.empty() ? kAwake : kForDevice, std::memory_order_seq_cst);
      };
      collectives = MakeBackend(ccl, workers);
    }
    std::shared_ptr<MessageCarrier> carrier;
    if (collectives != nullptr) carrier = collectives->Carrier(rank, memory);
    ConnectPeers connect_peers;
    if (carrier != nullptr) {
      const std::set<int> here(workers.ranks_here.begin(), workers.ranks_here.end());
      connect_peers = [carrier, here](Room room, std::function<void()> wake) {
        return std::make_unique<CarriedPeers>(carrier, here, room, std::move(wake));
      };
    } else if (!peers.empty()) {
      connect_peers = [&peers](Room room, std::function<void()> wake) {
        return std::make_unique<PeerSockets>(peers, room, std::move(wake));
      };
    }
    backend = std::make_shared<ProcessBackend>(memory, workers, connect_peers,
                                               std::move(collectives), carrier != nullptr, device);
    state = std::make_shared<SessionState>(std::move(ids), backend, std::move(names));
    worker = &WorkerContext::Enter(state, rank);
  }

  std::shared_ptr<ProcessBackend> backend;
  std::shared_ptr<SessionState> state;
  WorkerContext* worker;

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("distir.runtime.ProcessWorker", ProcessWorkerObj, ffi::Object);
};

// True if this process gives back what it has opened, which may take longer than its controller's
// end.
std::atomic<bool> is_leaving{false};

// Time that a busy process, or one that frees its memory, outlives its controller.
constexpr std::chrono::seconds kBusyAfterController{3};
constexpr std::chrono::seconds kLeavingAfterController{4};

// Time that a process outlives all workers of other hosts: their session is over, and the process
// that started this one cannot say so, as it may be stopped.
constexpr std::chrono::seconds kAfterPeers{10};

// Ends this process soon after its controller is gone, whatever it is doing: when the other end of
// the control channel is closed, or the controller's process has ended; and after the workers of
// all other hosts, if there are any. Then it has the controller go on, if that is stopped.
void ExitWithController(int control_number, int64_t controller, const ffi::Shape& peers) {
  const int control = support::Descriptor::CopyOf(control_number).Release();
  const int process =
      controller > 0 ? static_cast<int>(syscall(SYS_pidfd_open, controller, 0)) : -1;
  std::vector<pollfd> watched{{control, POLLRDHUP, 0}, {process, POLLIN, 0}};  // -1 is passed over
  for (int64_t peer : peers) watched.push_back({static_cast<int>(peer), POLLRDHUP, 0});
  std::thread([watched, process]() mutable {
    size_t there = watched.size() - 2;
    std::optional<std::chrono::steady_clock::time_point> end;
    while (watched[0].revents == 0 && watched[1].revents == 0) {
      int timeout = -1;
      if (end.has_value()) {
        const auto left = *end - std::chrono::steady_clock::now();
        if (left.count() <= 0) {
          // A stopped process must continue to see that its session is over; then it ends.
          if (process >= 0) syscall(SYS_pidfd_send_signal, process, SIGCONT, nullptr, 0);
          break;
        }
        timeout = 1 + static_cast<int>(
                          std::chrono::duration_cast<std::chrono::milliseconds>(left).count());
      }
      if (poll(watched.data(), watched.size(), timeout) <= 0) continue;
      for (size_t i = 2; i < watched.size(); ++i) {
        if (watched[i].fd < 0 || watched[i].revents == 0) continue;
        watched[i] = {-1, 0, 0};
        // A worker that leaves closes its connections itself, and their numbers may be reused.
        if (--there == 0 && !is_leaving) end = std::chrono::steady_clock::now() + kAfterPeers;
      }
    }
    // The main thread ends the process in order, if it is not busy.
    std::this_thread::sleep_for(kBusyAfterController);
    if (is_leaving) std::this_thread::sleep_for(kLeavingAfterController);
    _exit(1);
  }).detach();
}

void CheckRank(int rank, const SharedMemory& memory) {
  if (rank < 0 || rank >= memory.num_workers()) {
    TVM_FFI_THROW(ValueError) << "there is no worker " << rank << " of " << memory.num_workers();
  }
}

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = tvm::ffi::reflection;
  using BoardPtr = ffi::Arc<ProcessBoardObj>;
  using WorkerPtr = ffi::Arc<ProcessWorkerObj>;
  refl::ObjectDef<ProcessBoardObj>(refl::init(false));
  refl::ObjectDef<ProcessWorkerObj>(refl::init(false));
  support::Functions()
      .def("distir.runtime.process_board",
           // With what workers may have in flight, if that is less than the machine's memory.
           [](int num_workers, ffi::Optional<int64_t> bytes_in_flight) {
             const size_t memory = PhysicalMemory();
             return ffi::make_object<ProcessBoardObj>(
                 num_workers,
                 std::min(memory, static_cast<size_t>(bytes_in_flight.value_or(memory))));
           })
      .def("distir.runtime.process_board_descriptor",
           // Another one of the same memory, which belongs to the caller.
           [](const BoardPtr& board) {
             return support::Descriptor::CopyOf(board->memory.descriptor()).Release();
           })
      .def("distir.runtime.process_board_abort",
           [](const BoardPtr& board) { board->memory.Abort(-1); })
      // (what it runs, what it waits for or "")
      .def("distir.runtime.process_board_status",
           [](const BoardPtr& board, int rank) {
             CheckRank(rank, board->memory);
             const WorkerStatus& status = board->memory.status(rank);
             const bool waits = status.waiting.load(std::memory_order_seq_cst) != kAwake;
             return ffi::Array<ffi::String>(
                 {status.operator_name.Get(), waits ? status.wait.Get() : std::string()});
           })
      // (whether it waits for messages, number of the wait, per rank the messages that it has sent
      // there, per rank those of there that it has seen)
      .def("distir.runtime.process_board_progress",
           [](const BoardPtr& board, int rank) {
             const SharedMemory& memory = board->memory;
             CheckRank(rank, memory);
             const WorkerStatus& status = memory.status(rank);
             const uint32_t kind = status.waiting.load(std::memory_order_seq_cst);
             std::vector<int64_t> result{kind == kForMessage || kind == kForSpace ? 1 : 0};
             auto add = [&result](const std::atomic<uint64_t>& count) {
               result.push_back(static_cast<int64_t>(count.load(std::memory_order_seq_cst)));
             };
             add(status.num_waits);
             for (int r = 0; r < memory.num_workers(); ++r) add(memory.ring(rank, r).num_written);
             for (int r = 0; r < memory.num_workers(); ++r) add(memory.ring(r, rank).num_read);
             return ffi::Shape(result);
           })
      .def("distir.runtime.process_worker",
           [](int descriptor, int rank, const ffi::Shape& device_ids, const ffi::Shape& sockets,
              const ffi::Array<ffi::Bytes>& keys, const ffi::Shape& ranks_here,
              const ffi::String& ccl, const ffi::Shape& host_of, const ffi::String& session,
              bool bitwise, const ffi::String& device) {
             std::vector<Peer> peers;
             for (size_t other = 0; other < sockets.size(); ++other) {
               // Both ends take the one of the higher rank for the one that has connected.
               peers.push_back({static_cast<int>(sockets[other]), std::string(keys[other]),
                                rank > static_cast<int>(other)});
             }
             WorkerSet workers;
             workers.device_ids.assign(device_ids.begin(), device_ids.end());
             workers.ranks_here.assign(ranks_here.begin(), ranks_here.end());
             workers.own_rank = rank;
             workers.host_of.assign(host_of.begin(), host_of.end());
             workers.session = session;
             workers.bitwise = bitwise;
             return ffi::make_object<ProcessWorkerObj>(descriptor, peers, ccl, std::move(workers),
                                                       device);
           })
      .def("distir.runtime.process_worker_device",
           [](const WorkerPtr& worker) { return worker->worker->memory(); })
      .def("distir.runtime.process_worker_run",
           // (what it returned, when it began, had received the last value and ended)
           [](const WorkerPtr& worker, int64_t step, int64_t call, const ffi::String& name,
              const ffi::Optional<ffi::Function>& function, const ffi::Array<ffi::Any>& arguments) {
             ffi::Any result;
             const WorkTime time =
                 RunStep(worker->worker, {step, call}, name, function, arguments, &result);
             return ffi::Array<ffi::Any>({result, time.begin, time.received, time.end});
           })
      .def("distir.runtime.process_worker_new_argument",
           [](const WorkerPtr& worker, const ffi::Shape& shape, DLDataType dtype) {
             return NewArgument(shape, dtype, &worker->worker->communicator());
           })
      .def("distir.runtime.process_worker_to_device",
           [](const WorkerPtr& worker, const ffi::Tensor& tensor) {
             return worker->worker->communicator().ToDevice(tensor);
           })
      .def("distir.runtime.process_worker_leave",
           [](const WorkerPtr& worker) {
             is_leaving = true;
             worker->worker = nullptr;
             WorkerContext::Leave();
           })
      .def("distir.runtime.process_worker_fail",
           [](const WorkerPtr& worker, const ffi::String& name, const ffi::String& kind,
              const ffi::String& message, const ffi::String& backtrace) {
             worker->state->Fail(
                 Failure{worker->worker->rank(), name, "", kind, message, backtrace});
           })
      .def("distir.runtime.process_worker_failure",
           [](const WorkerPtr& worker) -> ffi::Optional<ffi::Map<ffi::String, ffi::Any>> {
             std::optional<Failure> failure = worker->state->failure();
             if (!failure.has_value()) return std::nullopt;
             ffi::Map<ffi::String, ffi::Any> map = FailureToMap(*failure, *worker->state);
             map.Set("first", worker->backend->aborted_first());
             return map;
           })
      .def("distir.runtime.exit_with_controller", ExitWithController);
}

}  // namespace

}  // namespace distir::runtime::cpu
