/*!
 * \file runtime/communicators/worker_device.h
 * \brief The GPU of one worker, for backends that communicate in host memory.
 *
 * Such a backend does not know GPUs, and what drives a GPU does not know backends: this is what
 * they agree on. Everything that is enqueued is done in order, behind the worker's kernels and in
 * front of its next ones. Used by that worker's thread only, on which it is made and ends.
 *
 * Example, x and y on the GPU:
 * \code
 *   device->Enter("all_reduce");
 *   device->CopyToHost(x, host, num_bytes);
 *   device->Wait();                            // now host has what kernels have written to x
 *   ... host is changed ...
 *   device->CopyToDevice(host, y, num_bytes);  // host is free again, kernels that follow see y
 * \endcode
 */
#ifndef DISTIR_RUNTIME_COMMUNICATORS_WORKER_DEVICE_H_
#define DISTIR_RUNTIME_COMMUNICATORS_WORKER_DEVICE_H_

#include <tvm/ffi/container/tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/communicators/library_collectives.h"
#include "runtime/kernels/strided_copy.h"

namespace distir::runtime {

struct WorkerSet;

class WorkerDevice {
 public:
  virtual ~WorkerDevice() = default;

  virtual DLDevice device() const = 0;

  /*! \brief Keeps other sessions from the device. \throws RuntimeError if one of them has it. */
  virtual void Join() = 0;

  /*! \brief Before anything is enqueued for an operation. \throws RuntimeError if it cannot be. */
  virtual void Enter(const char* operation) = 0;
  /*! \brief Waits until all that was enqueued is done. \throws RuntimeError if any of it failed. */
  virtual void Wait() = 0;

  /*! \brief Enqueues a copy; the target is to be read after Wait. */
  virtual void CopyToHost(const char* source, char* target, int64_t num_bytes) = 0;
  /*! \brief Enqueues a copy; the source may be changed when it returns. */
  virtual void CopyToDevice(const char* source, char* target, int64_t num_bytes) = 0;
  /*! \brief Enqueues a copy from memory of the device to other memory of it. */
  virtual void CopyOnDevice(const BoxCopy& copy, const char* source, char* target) = 0;

  /*! \brief A tensor on the device, which may outlive the worker. */
  virtual tvm::ffi::Tensor NewTensor(tvm::ffi::ShapeView shape, DLDataType dtype) = 0;
  /*!
   * \brief Memory of the device for a library that reads and writes it by itself. It is used again
   *        after its end, so work that is enqueued on it has to be waited for before the library
   *        gets it.
   */
  virtual std::shared_ptr<char> NewBuffer(int64_t num_bytes) = 0;

  /*! \brief Copies tensors as Communicator::ToDevice and ToHost. */
  virtual tvm::ffi::Tensor ToDevice(const tvm::ffi::Tensor& tensor) = 0;
  virtual tvm::ffi::Tensor ToHost(const tvm::ffi::Tensor& tensor) = 0;
};

/*! \brief Makes the device of the session's worker that this thread is; `wait` is its wait. */
using WorkerDeviceFactory = std::unique_ptr<WorkerDevice> (*)(const WorkerSet& workers,
                                                              WaitUntil wait);

/*! \brief Registers a kind of devices; the returned bool lets a static initialise from it. */
bool RegisterWorkerDevice(const std::string& kind, WorkerDeviceFactory factory);

/*!
 * \brief The device of a worker.
 * \param kind "cuda".
 * \throws ValueError if there are no devices of this kind, RuntimeError if the worker has none.
 */
std::unique_ptr<WorkerDevice> MakeWorkerDevice(const std::string& kind, const WorkerSet& workers,
                                               WaitUntil wait);

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_COMMUNICATORS_WORKER_DEVICE_H_
