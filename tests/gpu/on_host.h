/*!
 * \file tests/gpu/on_host.h
 * \brief What stands in for CUDA (cuda_on_host.cc) and for NCCL (nccl_on_host.cc) share: streams,
 * device memory, faults, and what was misused.
 */
#ifndef DISTIR_TESTS_GPU_ON_HOST_H_
#define DISTIR_TESTS_GPU_ON_HOST_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace on_host {

constexpr int kErrorMemoryAllocation = 2;
constexpr int kErrorInvalidDevice = 101;
constexpr int kErrorInvalidHandle = 400;
constexpr int kErrorIllegalAddress = 700;
constexpr int kErrorPeerAccessUnsupported = 217;
constexpr int kErrorPeerAccessAlreadyEnabled = 704;
constexpr int kErrorPeerAccessNotEnabled = 705;
constexpr int kErrorTooManyPeers = 711;
constexpr int kErrorSystemDriverMismatch = 803;
constexpr int kErrorStreamCaptureUnsupported = 900;
constexpr int kErrorStreamCaptureInvalidated = 901;
constexpr int kErrorStreamCaptureUnmatched = 903;
constexpr int kErrorStreamCaptureImplicit = 906;

/*! \brief The value of an environment variable. */
std::string Environment(const char* name, const char* otherwise);

/*! \brief Whether a fault of this kind is to happen now. */
bool Faulty(const char* kind);

/*! \brief Notes what CUDA or NCCL would answer with a crash or a hang; tests look at it. */
void Misused(const std::string& what);

/*! \brief Counts something that tests ask for by its name. */
void Count(const char* what);

/*! \brief What cudaStreamIsCapturing says of a stream. */
enum class Capture { kNone, kActive, kInvalidated };

/*!
 * \brief A queue of a device, worked off in order by a thread of its own.
 *
 * As in CUDA, what is enqueued on the legacy stream comes after all that was enqueued on the
 * device's other streams before, and before all that is enqueued on them later, except on streams
 * that were created as non-blocking.
 */
class Queue {
 public:
  Queue(int device, bool is_legacy, bool blocks_legacy);

  /*! \brief Returns the number of the work in this queue. */
  int64_t Enqueue(std::function<void()> work);
  bool Idle();
  /*! \brief Waits for the work of this number, and all before it. */
  void Wait(int64_t number);
  void WaitForAll();

  const int device;
  const bool is_legacy;
  const bool blocks_legacy;
  bool destroyed = false;
  Capture capture = Capture::kNone;
  std::vector<std::function<void()>> captured;  // what the graph will run, in order

 private:
  struct Item {
    std::function<void()> work;
    std::vector<std::pair<Queue*, int64_t>> after;
  };
  void Run();

  std::deque<Item> items_;
  int64_t num_enqueued_ = 0;
  int64_t num_done_ = 0;
  bool running_ = false;
};

/*!
 * \brief The queue of a stream, null for the legacy one of the current device. Null, if the handle
 *        is no stream of the current device: CUDA's error is kErrorInvalidHandle.
 */
Queue* FindQueue(void* stream);

/*!
 * \brief The error of a call that uses a queue; 0 if there is none. What uses the null stream
 * spoils the captures of the streams that wait for it, and what waits for a captured queue its own.
 */
int CaptureError(Queue* queue, bool waits);

/*!
 * \brief Enqueues work that touches memory of the stream's device: its address and bytes. Returns
 *        CUDA's error if it cannot be; work that touches other memory breaks the device.
 */
int EnqueueOn(void* stream, std::vector<std::pair<const void*, size_t>> touched,
              std::function<void()> work);

/*! \brief The device of the calling thread. */
int CurrentDevice();

/*! \brief The error after which nothing works on a device; 0 if there is none. */
int StickyError(int device);
/*! \brief A kernel of the device has met an error. */
void Break(int device);

/*! \brief Memory of a device, null if there is not so much of it. */
void* Allocate(int device, size_t bytes);
void Free(void* data);
/*! \brief Lets kernels of a device use memory of another one; an error of CUDA if it cannot. */
int EnablePeer(int device, int other);
/*! \brief Whether all of this is memory of the device, or of one that it may reach. */
bool IsOn(int device, const void* data, size_t bytes);
/*! \brief Takes memory that has no address, as communicators do; whether there is so much. */
bool Reserve(int device, int64_t bytes);

}  // namespace on_host

#endif  // DISTIR_TESTS_GPU_ON_HOST_H_
