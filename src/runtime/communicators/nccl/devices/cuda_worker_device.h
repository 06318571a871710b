/*!
 * \file runtime/communicators/nccl/devices/cuda_worker_device.h
 * \brief The CUDA device of a worker whose backend communicates in host memory (worker_device.h).
 *        Registered under the name "cuda".
 *
 * It is chosen, locked and driven as that of NCCL's workers. Data for the device goes through
 * pinned memory (staging.h); what comes from it is copied to memory that is not pinned, once all
 * that comes before is done.
 */
#ifndef DISTIR_RUNTIME_COMMUNICATORS_NCCL_DEVICES_CUDA_WORKER_DEVICE_H_
#define DISTIR_RUNTIME_COMMUNICATORS_NCCL_DEVICES_CUDA_WORKER_DEVICE_H_

#include <functional>
#include <memory>
#include <string>

#include "runtime/communicators/communicator.h"
#include "runtime/communicators/nccl/devices/device_lock.h"
#include "runtime/communicators/nccl/devices/library_buffers.h"
#include "runtime/communicators/nccl/devices/staging.h"
#include "runtime/communicators/nccl/devices/worker_stream.h"
#include "runtime/communicators/worker_device.h"

namespace distir::runtime::nccl {

class CudaWorkerDevice : public WorkerDevice {
 public:
  /*! \throws RuntimeError if the machine has no such device; ValueError as ChooseCudaDevices. */
  CudaWorkerDevice(const WorkerSet& workers, WaitUntil wait);
  ~CudaWorkerDevice() override;

  DLDevice device() const final { return {kDLCUDA, stream_->device()}; }
  void Join() final;
  void Enter(const char* operation) final { stream_->EnterUncaptured(operation); }
  void Wait() final;
  void CopyToHost(const char* source, char* target, int64_t num_bytes) final;
  void CopyToDevice(const char* source, char* target, int64_t num_bytes) final;
  void CopyOnDevice(const BoxCopy& copy, const char* source, char* target) final;
  tvm::ffi::Tensor NewTensor(tvm::ffi::ShapeView shape, DLDataType dtype) final {
    return stream_->NewTensor(shape, dtype);
  }
  std::shared_ptr<char> NewBuffer(int64_t num_bytes) final;
  tvm::ffi::Tensor ToDevice(const tvm::ffi::Tensor& tensor) final;
  tvm::ffi::Tensor ToHost(const tvm::ffi::Tensor& tensor) final;

 private:
  void WaitFor(Stream stream);

  const std::string session_;
  const std::function<bool()> aborted_;
  const WaitUntil wait_;
  std::unique_ptr<DeviceLock> lock_;
  const std::shared_ptr<const WorkerStream> stream_;
  const std::shared_ptr<LibraryBuffers> buffers_ = std::make_shared<LibraryBuffers>();
  Staging staging_;
};

}  // namespace distir::runtime::nccl

#endif  // DISTIR_RUNTIME_COMMUNICATORS_NCCL_DEVICES_CUDA_WORKER_DEVICE_H_
