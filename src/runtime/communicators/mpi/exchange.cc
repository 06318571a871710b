// Sends and receives the messages of a session with non-blocking MPI calls.
#include "runtime/communicators/mpi/exchange.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "support/error.h"

namespace distir::runtime::mpi {

namespace {

// Every MPI has tags up to here.
constexpr int kMostTags = 32768;

// Interval at which sent messages are looked after while no worker waits.
constexpr std::chrono::microseconds kLook{100};

// Number of messages that are matched before those that workers wait for have their turn.
constexpr int kTurn = 16;

struct Sessions {
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<Exchange>> by_name;
};

Sessions& AllSessions() {
  static auto* sessions = new Sessions();  // threads use it until the process exits
  return *sessions;
}

// Here, since a thread of what other files know would be a symbol that the library shows.
void Start(std::function<void()> work) {
  std::thread([work = std::move(work)] { work(); }).detach();
}

}  // namespace

// Looks after sends that no worker looks after; keeps what they lie in.
class Background {
 public:
  static Background& Get() {
    static auto* background = new Background();  // its thread runs until the process exits
    return *background;
  }

  void LookAfter(const std::shared_ptr<Exchange>& exchange) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!exchanges_.insert(exchange).second) return;
    }
    changed_.notify_one();
  }

 private:
  Background() {
    Start([this] { Run(); });
  }

  void Run() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return !exchanges_.empty(); });
      const std::vector<std::shared_ptr<Exchange>> all(exchanges_.begin(), exchanges_.end());
      lock.unlock();
      std::this_thread::sleep_for(kLook);
      for (const std::shared_ptr<Exchange>& each : all) {
        try {
          each->Progress();
        } catch (...) {  // the next worker that looks gets it again
        }
      }
      lock.lock();
      for (const std::shared_ptr<Exchange>& each : all)
        if (each->num_sends_.load() == 0) exchanges_.erase(each);
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<std::shared_ptr<Exchange>> exchanges_;
};

std::shared_ptr<Exchange> Exchange::Of(const WorkerSet& workers) {
  Sessions& sessions = AllSessions();
  const std::lock_guard<std::mutex> lock(sessions.mutex);
  std::weak_ptr<Exchange>& known = sessions.by_name[workers.session];
  std::shared_ptr<Exchange> exchange = known.lock();
  if (exchange == nullptr) known = exchange = std::make_shared<Exchange>(workers);
  return exchange;
}

Exchange::Exchange(const WorkerSet& workers)
    : mpi_(KeptLibrary()),
      host_of_(workers.host_of),
      groups_(mpi_, host_of_),
      receivers_(workers.host_of.size()),
      receives_(mpi_.size()) {
  ranks_of_.resize(mpi_.size());
  for (size_t rank = 0; rank < host_of_.size(); ++rank) {
    const int host = host_of_[rank];
    DISTIR_REQUIRE(host >= 0 && host < mpi_.size(), RuntimeError)
        << "the session has more hosts than the " << mpi_.size() << " copies that MPI has started";
    lane_of_.push_back(static_cast<int>(ranks_of_[host].size()));
    ranks_of_[host].push_back(static_cast<int>(rank));
    num_lanes_ = std::max(num_lanes_, static_cast<int>(ranks_of_[host].size()));
  }
  for (const std::vector<int>& ranks : ranks_of_) {
    DISTIR_REQUIRE(!ranks.empty(), RuntimeError) << "ccl=\"mpi\" needs workers on all of the "
                                                 << mpi_.size() << " copies that MPI has started";
  }
  DISTIR_REQUIRE(ranks_of_[mpi_.rank()] == workers.ranks_here, RuntimeError)
      << "rank " << mpi_.rank() << " of MPI is another host of the session than the " << mpi_.rank()
      << "th; hosts are given in the order of MPI's ranks";
  DISTIR_REQUIRE(num_lanes_ * num_lanes_ <= kMostTags, RuntimeError)
      << "ccl=\"mpi\" takes at most 181 workers on a host, not " << num_lanes_;
  const std::lock_guard<std::mutex> lock(mpi_.mutex);
  mpi_.Check(mpi_.call.MPI_Comm_idup(mpi_.handle(mpi_.abi.world), &comm_, &duplicating_),
             "MPI_Comm_idup");
}

Exchange::~Exchange() {
  const bool is_unused = ready_ && !failed_ && groups_.idle() && sends_.empty() &&
                         std::all_of(receives_.begin(), receives_.end(),
                                     [](const auto& each) { return each.empty(); });
  if (!is_unused) return;  // MPI still has it
  const std::unique_lock<std::mutex> lock(mpi_.mutex, std::try_to_lock);
  if (!lock.owns_lock() || mpi_.IsFinalized()) return;
  groups_.Free();
  mpi_.call.MPI_Comm_free(&comm_);
}

bool Exchange::Ready() {
  const std::lock_guard<std::mutex> lock(mpi_.mutex);
  CheckFailed();
  if (!ready_) ready_ = Test(&duplicating_);
  return ready_;
}

void Exchange::Add(int rank, MessageReceiver receiver) {
  const std::lock_guard<std::mutex> lock(mpi_.mutex);
  receivers_[rank] = std::move(receiver);
}

void Exchange::Remove(int rank) noexcept {
  const std::lock_guard<std::mutex> lock(mpi_.mutex);
  receivers_[rank] = MessageReceiver();
}

void Exchange::Send(int source, int target, const char* bytes, int64_t num_bytes,
                    std::atomic<uint32_t>* unsent, std::shared_ptr<void> memory) {
  {
    const std::lock_guard<std::mutex> lock(mpi_.mutex);
    CheckFailed();
    Sending sending{nullptr, unsent, std::move(memory)};
    const int tag = lane_of_[target] * num_lanes_ + lane_of_[source];
    const int result = mpi_.call.MPI_Isend(bytes, Count(num_bytes), mpi_.byte(), host_of_[target],
                                           tag, comm_, &sending.request);
    if (result != kSuccess) Fail("MPI_Isend", result);
    if (Test(&sending.request)) {
      unsent->fetch_sub(1, std::memory_order_release);
      return;
    }
    sends_.push_back(std::move(sending));
    num_sends_.store(static_cast<int64_t>(sends_.size()));
  }
  Background::Get().LookAfter(shared_from_this());
}

void Exchange::Progress() {
  // The holder of the lock looks for all.
  const std::unique_lock<std::mutex> lock(mpi_.mutex, std::try_to_lock);
  if (!lock.owns_lock()) return;
  CheckFailed();
  if (!ready_) return;
  TestSends();
  Match();
  for (std::deque<Receiving>& each : receives_) TestReceives(&each);
}

bool Exchange::OpenGroups(const std::vector<std::vector<int>>& groups) {
  const std::lock_guard<std::mutex> lock(mpi_.mutex);
  CheckFailed();
  return groups_.Open(comm_, groups, [this](Handle* request) { return Test(request); });
}

Handle Exchange::GroupCommunicator(const std::vector<int>& ranks) {
  const std::lock_guard<std::mutex> lock(mpi_.mutex);
  return groups_.Find(ranks);
}

Handle Exchange::Start(const std::function<int(Handle* request)>& start) {
  const std::lock_guard<std::mutex> lock(mpi_.mutex);
  CheckFailed();
  Handle request = nullptr;
  const int result = start(&request);
  if (result != kSuccess) Fail("a collective", result);
  return request;
}

bool Exchange::Done(Handle* request) {
  const std::unique_lock<std::mutex> lock(mpi_.mutex, std::try_to_lock);
  if (!lock.owns_lock()) return false;
  CheckFailed();
  return Test(request);
}

void Exchange::GiveUp(Handle request, std::shared_ptr<const void> memory) {
  {
    const std::lock_guard<std::mutex> lock(mpi_.mutex);
    sends_.push_back({request, nullptr, std::move(memory)});
    num_sends_.store(static_cast<int64_t>(sends_.size()));
  }
  Background::Get().LookAfter(shared_from_this());
}

void Exchange::TestSends() {
  if (sends_.empty()) return;
  auto is_sent = [this](Sending& sending) {
    if (!Test(&sending.request)) return false;
    if (sending.unsent != nullptr) sending.unsent->fetch_sub(1, std::memory_order_release);
    return true;
  };
  sends_.erase(std::remove_if(sends_.begin(), sends_.end(), is_sent), sends_.end());
  num_sends_.store(static_cast<int64_t>(sends_.size()));
}

void Exchange::Match() {
  for (int i = 0; i < kTurn; ++i) {
    int found = 0, num_bytes = 0;
    Handle message = nullptr;
    Status status{};
    int result = mpi_.call.MPI_Improbe(mpi_.abi.any_source, mpi_.abi.any_tag, comm_, &found,
                                       &message, &status);
    if (result != kSuccess) Fail("MPI_Improbe", result);
    if (found == 0) return;
    result = mpi_.call.MPI_Get_count(&status, mpi_.byte(), &num_bytes);
    if (result != kSuccess) Fail("MPI_Get_count", result);
    const int host = mpi_.source(status), tag = mpi_.tag(status);
    const int source = ranks_of_.at(host).at(tag % num_lanes_);
    const int target = ranks_of_[mpi_.rank()].at(tag / num_lanes_);
    Receiving receiving{nullptr, source, target, nullptr, num_bytes, {}};
    const MessageReceiver& receiver = receivers_[target];
    if (receiver.begin != nullptr) receiving.bytes = receiver.begin(source, num_bytes);
    if (receiving.bytes == nullptr) receiving.discarded.resize(std::max(num_bytes, 1));
    char* to = receiving.bytes == nullptr ? receiving.discarded.data() : receiving.bytes;
    result = mpi_.call.MPI_Imrecv(to, num_bytes, mpi_.byte(), &message, &receiving.request);
    if (result != kSuccess) Fail("MPI_Imrecv", result);
    receives_[host].push_back(std::move(receiving));
    if (receives_[host].size() == 1) TestReceives(&receives_[host]);
  }
}

// In the order in which they were sent: one that is there waits for those before it.
void Exchange::TestReceives(std::deque<Receiving>* receives) {
  while (!receives->empty() && Test(&receives->front().request)) {
    const Receiving& done = receives->front();
    const MessageReceiver& receiver = receivers_[done.target];
    if (done.bytes != nullptr && receiver.end != nullptr)
      receiver.end(done.source, done.bytes, done.num_bytes);
    receives->pop_front();
  }
}

bool Exchange::Test(Handle* request) {
  int done = 0;
  Status status{};
  const int result = mpi_.call.MPI_Test(request, &done, &status);
  if (result != kSuccess) Fail("MPI_Test", result);
  return done != 0;
}

void Exchange::Fail(const char* function, int result) {
  failed_ = true;
  try {
    mpi_.Check(result, function);
  } catch (const tvm::ffi::Error& error) {
    why_failed_ = error.message();
  }
  CheckFailed();
  TVM_FFI_UNREACHABLE();
}

void Exchange::CheckFailed() const {
  // A worker may still be leaving while its process exits.
  DISTIR_REQUIRE(!mpi_.ended(), ConnectionError) << "MPI has been finalized";
  if (failed_) TVM_FFI_THROW(ConnectionError) << why_failed_;
}

}  // namespace distir::runtime::mpi
