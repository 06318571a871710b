// Owns the CUDA stream of a worker, and allocates tensors in its order.
#include "runtime/communicators/nccl/devices/worker_stream.h"

#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

#include <map>
#include <mutex>
#include <utility>

#include "runtime/communicators/nccl/devices/device_memory.h"
#include "runtime/communicators/nccl/devices/staging.h"
#include "runtime/communicators/nccl/library.h"
#include "support/error.h"
#include "support/functions.h"

namespace distir::runtime::nccl {

namespace ffi = tvm::ffi;

namespace {

/*! \brief Makes a device the current one for a while; errors are those of what comes next. */
class OnDevice {
 public:
  explicit OnDevice(int device) {
    Cuda().cudaGetDevice(&before_);
    if (before_ != device) Cuda().cudaSetDevice(device);
    changed_ = before_ != device;
  }
  ~OnDevice() {
    if (changed_) Cuda().cudaSetDevice(before_);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

struct FromPool {
  std::shared_ptr<const WorkerStream> owner;
  Stream stream;

  void AllocData(DLTensor* tensor) {
    const size_t bytes = ffi::GetDataSize(*tensor);
    tensor->data = nullptr;
    if (bytes == 0) return;
    CheckCuda(Cuda().cudaMallocAsync(&tensor->data, bytes, stream),
              "allocating " + std::to_string(bytes) + " bytes on CUDA device " +
                  std::to_string(owner->device()));
  }
  void FreeData(DLTensor* tensor) {
    if (tensor->data == nullptr) return;
    const OnDevice device(owner->device());
    Cuda().cudaFreeAsync(tensor->data, stream);
  }
};

/*! \brief The stream of a device on which results are read. */
Stream ReadingStream(int device) {
  static std::mutex mutex;
  static auto* streams = new std::map<int, Stream>();  // they end with the process
  const std::lock_guard<std::mutex> lock(mutex);
  Stream& stream = (*streams)[device];
  if (stream == nullptr) {
    CheckCuda(Cuda().cudaStreamCreateWithFlags(&stream, kCudaStreamDefault),
              "cudaStreamCreateWithFlags");
  }
  return stream;
}

}  // namespace

WorkerStream::WorkerStream(int device) : device_(device) {
  CheckCuda(Cuda().cudaSetDevice(device), "cudaSetDevice");
  KeepFreedBuffers(device);
  CheckCuda(Cuda().cudaStreamCreateWithFlags(&own_, kCudaStreamDefault),
            "cudaStreamCreateWithFlags");
  TVM_FFI_ICHECK_EQ(TVMFFIEnvSetStream(kDLCUDA, device, own_, nullptr), 0);
}

WorkerStream::~WorkerStream() {
  // TVM's current stream is left as it is: this may be the end of the thread, and what TVM keeps
  // for the thread gone.
  const OnDevice device(device_);
  Cuda().cudaStreamDestroy(own_);
}

Stream WorkerStream::Enter() const {
  int current = -1;
  CheckCuda(Cuda().cudaGetDevice(&current), "cudaGetDevice");
  if (current != device_) CheckCuda(Cuda().cudaSetDevice(device_), "cudaSetDevice");
  return TVMFFIEnvGetStream(kDLCUDA, device_);
}

Stream WorkerStream::EnterUncaptured(const char* operation) const {
  const Stream stream = Enter();
  int status = kCudaStreamCaptureStatusNone;
  CheckCuda(Cuda().cudaStreamIsCapturing(stream, &status), "cudaStreamIsCapturing");
  DISTIR_REQUIRE(status == kCudaStreamCaptureStatusNone, RuntimeError)
      << operation << " cannot be captured into a CUDA graph: a replay would read memory that is "
      << "gone; build the program without relax.backend.use_cuda_graph";
  return stream;
}

ffi::Tensor WorkerStream::NewTensor(ffi::ShapeView shape, DLDataType dtype) const {
  const Stream stream = Enter();
  return ffi::Tensor::FromNDAlloc(FromPool{shared_from_this(), stream}, shape, dtype,
                                  DLDevice{kDLCUDA, device_});
}

Stream WorkerStream::EnterOwn() const {
  CheckCuda(Cuda().cudaSetDevice(device_), "cudaSetDevice");
  return own_;
}

ffi::Tensor CopyToDevice(const ffi::Tensor& tensor, const WorkerStream& worker, Staging* staging) {
  const Stream stream = worker.EnterUncaptured("a copy to the device");
  ffi::Tensor result = worker.NewTensor(tensor.shape(), tensor.dtype());
  const auto bytes = static_cast<int64_t>(ffi::GetDataSize(*tensor.GetDLTensorPtr()));
  if (tensor.device().device_type == kDLCUDA) {
    CopyOnDevice(DataOf(tensor), result.data_ptr(), bytes, stream);
  } else {
    staging->Copy(DataOf(tensor), result.data_ptr(), bytes, stream);
  }
  return result;
}

ffi::Tensor CopyToHost(const ffi::Tensor& tensor) {
  DISTIR_REQUIRE(tensor.defined(), TypeError) << "copy_to_host takes a tensor, not None";
  static const ffi::Function allocate =
      ffi::Function::GetGlobalRequired("runtime.TVMTensorAllocWithScope");
  ffi::Tensor result = allocate(ffi::Shape(tensor.shape()), tensor.dtype(), DLDevice{kDLCPU, 0},
                                ffi::Optional<ffi::String>())
                           .cast<ffi::Tensor>();
  const size_t bytes = ffi::GetDataSize(*tensor.GetDLTensorPtr());
  if (bytes == 0) return result;
  const OnDevice device(tensor.device().device_id);
  const Stream stream = ReadingStream(tensor.device().device_id);
  const auto* source = static_cast<const char*>(tensor.data_ptr()) + tensor.byte_offset();
  CheckCuda(
      Cuda().cudaMemcpyAsync(result.data_ptr(), source, bytes, kCudaMemcpyDeviceToHost, stream),
      "reading a tensor of CUDA device " + std::to_string(tensor.device().device_id));
  CheckCuda(Cuda().cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  return result;
}

TVM_FFI_STATIC_INIT_BLOCK() { support::Functions().def("distir.runtime.copy_to_host", CopyToHost); }

}  // namespace distir::runtime::nccl
