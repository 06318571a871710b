/*!
 * \file tests/gpu/on_host.h
 * \brief What stands in for CUDA (cuda_on_host.cc) and for NCCL (nccl_on_host.cc) share: streams
 * and faults.
 */
#ifndef DISTIR_TESTS_GPU_ON_HOST_H_
#define DISTIR_TESTS_GPU_ON_HOST_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace on_host {

/*! \brief The value of an environment variable. */
std::string Environment(const char* name, const char* otherwise);

/*! \brief Whether a fault of this kind is to happen now. */
bool Faulty(const char* kind);

/*! \brief A device's only stream: a thread that runs what is enqueued, in order. */
class DeviceStream {
 public:
  void Enqueue(std::function<void()> work);
  bool Idle();
  void Wait();

 private:
  void Run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  int num_pending_ = 0;
  bool running_ = false;
};

DeviceStream& StreamOf(int device);

/*! \brief The device of the calling thread. */
int CurrentDevice();

}  // namespace on_host

#endif  // DISTIR_TESTS_GPU_ON_HOST_H_
