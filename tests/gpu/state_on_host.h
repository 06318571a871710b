/*!
 * \file tests/gpu/state_on_host.h
 * \brief All that the stand-in of CUDA keeps: the streams and memory of its devices, faults, and
 * what was misused.
 */
#ifndef DISTIR_TESTS_GPU_STATE_ON_HOST_H_
#define DISTIR_TESTS_GPU_STATE_ON_HOST_H_

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "on_host.h"

namespace on_host {

constexpr int kMostDevices = 64;

// All of it is never freed: threads of streams outlive main.
struct State {
  std::mutex mutex;
  std::condition_variable changed;                                        // of any queue
  std::vector<std::vector<std::unique_ptr<Queue>>> queues{kMostDevices};  // the first is legacy
  std::map<const char*, std::pair<int, size_t>> memory;                   // device and bytes
  std::map<const char*, size_t> pinned;
  int64_t used[kMostDevices] = {};
  int sticky[kMostDevices] = {};
  std::string fault = Environment("CUDA_ON_HOST_FAULT", "");
  std::map<std::string, int> counts;
  std::string misuse;
  std::set<std::pair<int, int>> peers;  // who may use the memory of whom
};

State& Everything();

extern std::atomic<bool> blocking;  // an operation has ended when the call that enqueues it returns
extern thread_local int current_device;

int NumDevices();
int64_t Limit();  // of a device's memory, in bytes
Queue* LegacyQueue(int device);
bool CanReach(int device, int other);
/*! \brief The error of new memory that is not in the order of a stream. */
int CaptureErrorOfAllocation();

}  // namespace on_host

#endif  // DISTIR_TESTS_GPU_STATE_ON_HOST_H_
