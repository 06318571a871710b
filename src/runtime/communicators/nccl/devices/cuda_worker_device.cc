// Drives the CUDA device of a worker whose backend communicates in host memory.
#include "runtime/communicators/nccl/devices/cuda_worker_device.h"

#include <algorithm>
#include <utility>

#include "runtime/communicators/nccl/devices/cuda_devices.h"
#include "runtime/communicators/nccl/devices/device_memory.h"
#include "runtime/communicators/nccl/library.h"
#include "support/error.h"

namespace distir::runtime::nccl {

namespace {

int DeviceOfOwn(const WorkerSet& workers) {
  WorkerSet threads = workers;
  threads.own_rank = -1;  // those of a copy of the script are threads, with a device each
  const std::vector<int> devices = ChooseCudaDevices(threads);
  const std::vector<int>& here = workers.ranks_here;
  const auto found = std::find(here.begin(), here.end(), workers.own_rank);
  TVM_FFI_ICHECK(found != here.end()) << "the worker is not one of its host";
  return devices[found - here.begin()];
}

std::unique_ptr<WorkerDevice> MakeCudaWorkerDevice(const WorkerSet& workers, WaitUntil wait) {
  return std::make_unique<CudaWorkerDevice>(workers, std::move(wait));
}

[[maybe_unused]] const bool kRegistered = RegisterWorkerDevice("cuda", MakeCudaWorkerDevice);

}  // namespace

CudaWorkerDevice::CudaWorkerDevice(const WorkerSet& workers, WaitUntil wait)
    : session_(workers.session),
      aborted_(workers.aborted),
      wait_(std::move(wait)),
      stream_(std::make_shared<WorkerStream>(DeviceOfOwn(workers))),
      staging_([this](int64_t) { Wait(); }) {}

CudaWorkerDevice::~CudaWorkerDevice() {
  try {
    // Not TVM's current stream: the thread may be about to end, and what TVM keeps for it gone.
    WaitFor(stream_->EnterOwn());
  } catch (...) {  // somebody knows: the step that failed, or whoever has ended the session
    staging_.Abandon();
  }
}

void CudaWorkerDevice::Join() {
  lock_ = std::make_unique<DeviceLock>(stream_->device(), session_, false, aborted_);
}

void CudaWorkerDevice::Wait() { WaitFor(stream_->Enter()); }

void CudaWorkerDevice::WaitFor(Stream stream) {
  wait_([] { return std::string("the queue of its GPU"); },
        [stream] {
          const int result = Cuda().cudaStreamQuery(stream);
          if (result == kCudaErrorNotReady) return false;
          CheckCuda(result, "the device");
          return true;
        });
}

void CudaWorkerDevice::CopyToHost(const char* source, char* target, int64_t num_bytes) {
  if (num_bytes == 0) return;
  // Such a copy makes the host wait inside of CUDA, where nothing ends it if a kernel never does.
  Wait();
  CheckCuda(Cuda().cudaMemcpyAsync(target, source, static_cast<size_t>(num_bytes),
                                   kCudaMemcpyDeviceToHost, stream_->Enter()),
            "copying from the device");
}

void CudaWorkerDevice::CopyToDevice(const char* source, char* target, int64_t num_bytes) {
  staging_.Copy(source, target, num_bytes, stream_->Enter());
}

void CudaWorkerDevice::CopyOnDevice(const BoxCopy& copy, const char* source, char* target) {
  CopyBoxOnDevice(copy, source, target, stream_->Enter());
}

std::shared_ptr<char> CudaWorkerDevice::NewBuffer(int64_t num_bytes) {
  stream_->Enter();
  return buffers_->New(num_bytes);
}

tvm::ffi::Tensor CudaWorkerDevice::ToDevice(const tvm::ffi::Tensor& tensor) {
  return nccl::CopyToDevice(tensor, *stream_, &staging_);
}

tvm::ffi::Tensor CudaWorkerDevice::ToHost(const tvm::ffi::Tensor& tensor) {
  Enter("a copy to the host");
  Wait();  // which can be given up, unlike a wait of CUDA's
  return nccl::CopyToHost(tensor);
}

}  // namespace distir::runtime::nccl
