// Registers the backend "nccl", and watches its communicators.
#include "runtime/communicators/nccl/nccl_backend.h"

#include <algorithm>
#include <cstdlib>
#include <set>
#include <utility>

#include "runtime/communicators/nccl/devices/cuda_devices.h"
#include "runtime/communicators/nccl/library.h"
#include "runtime/communicators/nccl/nccl_communicator.h"
#include "runtime/kernels/format_list.h"
#include "support/error.h"

namespace distir::runtime::nccl {

namespace {

constexpr const char* kTimeoutVariable = "DISTIR_EXT_NCCL_TIMEOUT";
constexpr std::chrono::seconds kDefaultTimeout{600};

// Interval at which workers inside NCCL are checked.
constexpr std::chrono::milliseconds kLookAtStreams{20};

std::chrono::milliseconds ReadTimeout() {
  const char* text = std::getenv(kTimeoutVariable);
  if (text == nullptr) return kDefaultTimeout;
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  DISTIR_REQUIRE(end != text && *end == '\0' && seconds >= 0 && seconds <= 1e9, ValueError)
      << kTimeoutVariable << " is \"" << text << "\"; it must be a number of seconds";
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

std::shared_ptr<Backend> MakeNcclBackend(WorkerSet workers) {
  Nccl();  // if it cannot be loaded, the session does not begin
  const std::chrono::milliseconds timeout = ReadTimeout();
  std::vector<int> devices = ChooseCudaDevices(workers);
  return std::make_shared<NcclBackend>(std::move(workers), std::move(devices), timeout);
}

[[maybe_unused]] const bool kRegistered = RegisterBackend("nccl", MakeNcclBackend);

}  // namespace

NcclBackend::NcclBackend(WorkerSet workers, std::vector<int> cuda_devices,
                         std::chrono::milliseconds timeout)
    : workers_(std::move(workers)),
      cuda_devices_(std::move(cuda_devices)),
      timeout_(timeout),
      claim_(cuda_devices_),
      waits_(std::make_unique<std::atomic<bool>[]>(workers_.device_ids.size())),
      inside_(std::make_unique<std::atomic<bool>[]>(workers_.device_ids.size())),
      watch_([this] { Watch(); }) {}

NcclBackend::~NcclBackend() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  watch_.join();
}

void NcclBackend::Watch() {
  std::set<int> inside;  // ranks that are said to wait because of this
  std::unique_lock<std::mutex> lock(mutex_);
  while (!changed_.wait_for(lock, kLookAtStreams, [this] { return stopped_; })) {
    const std::vector<Opened> opened = connections_;
    lock.unlock();
    std::set<int> still_inside;
    for (const Opened& each : opened) {
      const std::shared_ptr<Connection> connection = each.connection.lock();
      if (connection == nullptr) continue;
      const auto time = connection->TimeInside();
      if (time < kLookAtStreams) continue;
      still_inside.insert(each.rank);
      if (timeout_.count() == 0 || time < timeout_) continue;
      connection->TakesTooLong(timeout_);
      EndTogether({connection});
    }
    for (int rank : still_inside)
      if (inside.count(rank) == 0) SetInside(rank, true);
    for (int rank : inside)
      if (still_inside.count(rank) == 0) SetInside(rank, false);
    inside = std::move(still_inside);
    if (!inside.empty()) SeesAbort();
    lock.lock();
  }
}

int NcclBackend::CudaDeviceOf(int rank) const {
  const std::vector<int>& here = workers_.ranks_here;
  const auto found = std::lower_bound(here.begin(), here.end(), rank);
  TVM_FFI_ICHECK(found != here.end() && *found == rank);
  return cuda_devices_[found - here.begin()];
}

std::string NcclBackend::Describe(const std::vector<int>& ranks) const {
  std::vector<int> devices;
  for (int rank : ranks) devices.push_back(workers_.device_ids[rank]);
  return "devices " + FormatList(devices);
}

std::unique_ptr<Communicator> NcclBackend::Connect(int rank) {
  return std::make_unique<NcclCommunicator>(shared_from_this(), rank);
}

std::shared_ptr<Connection> NcclBackend::Open(int rank, const std::string& description,
                                              std::function<int(Comm*)> make) {
  const Patience patience{timeout_, [this] { return SeesAbort(); }};
  const Comm comm =
      MakeComm(CudaDeviceOf(rank), "connecting " + description, patience, std::move(make));
  if (comm == nullptr) return nullptr;
  auto connection = std::make_shared<Connection>(comm, description);
  std::lock_guard<std::mutex> lock(mutex_);
  connections_.push_back({rank, connection});
  if (aborted_) EndTogether({connection});
  return connection;
}

void NcclBackend::SetWaiting(int rank, bool waits) {
  waits_[rank].store(waits, std::memory_order_relaxed);
  TellWait(rank);
}

void NcclBackend::SetInside(int rank, bool is_inside) {
  inside_[rank].store(is_inside, std::memory_order_relaxed);
  TellWait(rank);
}

void NcclBackend::TellWait(int rank) {
  if (!workers_.waits_for) return;
  const std::lock_guard<std::mutex> lock(waits_mutex_);
  workers_.waits_for(WaitOf(rank));
}

std::string NcclBackend::WaitOf(int rank) const {
  if (waits_[rank].load(std::memory_order_relaxed)) return "the queue of its GPU";
  return inside_[rank].load(std::memory_order_relaxed) ? "NCCL" : "";
}

bool NcclBackend::SeesAbort() noexcept {
  if (!aborted_ && workers_.aborted && workers_.aborted()) Abort();
  return aborted_;
}

void NcclBackend::Abort() noexcept {
  std::vector<Opened> connections;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    aborted_ = true;
    connections.swap(connections_);
  }
  claim_.Ending();
  std::vector<std::shared_ptr<Connection>> open;
  for (const Opened& each : connections)
    if (std::shared_ptr<Connection> connection = each.connection.lock())
      open.push_back(std::move(connection));
  EndTogether(std::move(open));
}

}  // namespace distir::runtime::nccl
