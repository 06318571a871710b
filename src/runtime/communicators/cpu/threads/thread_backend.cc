// Registers the backend "cpu", whose workers are threads.
#include "runtime/communicators/cpu/threads/thread_backend.h"

#include <string>
#include <utility>

#include "runtime/communicators/cpu/threads/thread_communicator.h"

namespace distir::runtime::cpu {

ThreadBackend::ThreadBackend(std::vector<int> device_ids)
    : device_ids_(std::move(device_ids)), progress_(device_ids_) {}

std::unique_ptr<Communicator> ThreadBackend::Connect(int rank) {
  return std::make_unique<ThreadCommunicator>(shared_from_this(), rank);
}

void ThreadBackend::Abort() noexcept {
  aborted_.store(true, std::memory_order_seq_cst);
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto& entry : places_) entry.second->rendezvous.Wake();
  for (auto& entry : mailboxes_) entry.second->Wake();
}

std::shared_ptr<MeetingPlace> ThreadBackend::FindMeetingPlace(const std::vector<int>& ranks) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::shared_ptr<MeetingPlace>& found = places_[ranks];
  if (found == nullptr) {
    std::vector<int> devices;
    for (int rank : ranks) devices.push_back(device_ids_[rank]);
    found.reset(new MeetingPlace{{ranks, std::move(devices), &progress_, &aborted_},
                                 {static_cast<int>(ranks.size()), results_}});
  }
  return found;
}

Mailbox* ThreadBackend::FindMailbox(int64_t channel, int source, int target) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::unique_ptr<Mailbox>& found = mailboxes_[{channel, source, target}];
  if (found == nullptr) {
    std::string name = "channel " + std::to_string(channel) + " from device " +
                       std::to_string(device_ids_[source]) + " to device " +
                       std::to_string(device_ids_[target]);
    found = std::make_unique<Mailbox>(std::move(name), &progress_, &aborted_);
  }
  return found.get();
}

namespace {

std::shared_ptr<Backend> MakeThreadBackend(WorkerSet workers) {
  return std::make_shared<ThreadBackend>(std::move(workers.device_ids));
}

[[maybe_unused]] const bool kRegistered = RegisterBackend("cpu", MakeThreadBackend);

}  // namespace

}  // namespace distir::runtime::cpu
