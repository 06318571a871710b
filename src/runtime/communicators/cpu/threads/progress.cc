// Tracks the state of workers, and detects waits that cannot end.
#include "runtime/communicators/cpu/threads/progress.h"

#include <sstream>
#include <utility>

namespace distir::runtime::cpu {

Progress::Progress(std::vector<int> device_ids)
    : device_ids_(std::move(device_ids)), workers_(device_ids_.size()) {}

void Progress::StepBegins(int rank, int64_t step) {
  std::lock_guard<std::mutex> lock(mutex_);
  workers_[rank].step.store(step, std::memory_order_relaxed);
}

void Progress::StepEnds(int rank, int64_t step) {
  std::lock_guard<std::mutex> lock(mutex_);
  workers_[rank].finished_step = step;
}

void Progress::WaitBegins(int rank, const Waiting* waiting) {
  std::lock_guard<std::mutex> lock(mutex_);
  workers_[rank].waiting = waiting;
}

void Progress::WaitEnds(int rank) {
  std::lock_guard<std::mutex> lock(mutex_);
  workers_[rank].waiting = nullptr;
}

std::string Progress::WaitOf(int rank) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const Waiting* waiting = workers_[rank].waiting;
  return waiting == nullptr ? "" : waiting->Describe();
}

std::string Progress::FindDeadlock(int rank) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const int64_t step = this->step(rank);
  std::ostringstream others;
  for (size_t r = 0; r < workers_.size(); ++r) {
    const Worker& worker = workers_[r];
    const bool finished = worker.finished_step >= step;
    const bool blocked = !finished && worker.step.load(std::memory_order_relaxed) == step &&
                         worker.waiting != nullptr && !worker.waiting->Satisfied();
    if (!finished && !blocked) return "";
    if (static_cast<int>(r) == rank) continue;
    others << "; device " << device_ids_[r];
    if (finished) {
      others << " has finished its program";
    } else {
      others << " waits in " << worker.waiting->Describe();
    }
  }
  return workers_[rank].waiting->Describe() +
         " can never complete, the programs of the workers disagree" + others.str();
}

}  // namespace distir::runtime::cpu
