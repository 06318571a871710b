/*!
 * \file runtime/communicators/nccl/devices/worker_stream.h
 * \brief The CUDA stream of one worker, and tensors in the order of it.
 *
 * TVM's default is the legacy null stream, which waits for all others of a device. Each worker
 * makes a stream of its own TVM's current one. It is a blocking one: TVM reads conditions and
 * shapes by copies on the null stream, which come in order with such streams only.
 *
 * Tensors come from CUDA's pool, in which memory is given back in the order of the stream. TVM's
 * own allocation asks the driver each time (cudaMemGetInfo, cudaMalloc), and its cudaFree waits for
 * the whole device and throws in a destructor once the device has met an error.
 */
#ifndef DISTIR_RUNTIME_COMMUNICATORS_NCCL_DEVICES_WORKER_STREAM_H_
#define DISTIR_RUNTIME_COMMUNICATORS_NCCL_DEVICES_WORKER_STREAM_H_

#include <tvm/ffi/container/tensor.h>

#include <memory>

#include "runtime/communicators/nccl/abi.h"

namespace distir::runtime::nccl {

class Staging;

class WorkerStream : public std::enable_shared_from_this<WorkerStream> {
 public:
  /*! \brief Makes the stream, and TVM's current one of the calling thread. */
  explicit WorkerStream(int device);
  ~WorkerStream();
  WorkerStream(const WorkerStream&) = delete;
  WorkerStream& operator=(const WorkerStream&) = delete;

  int device() const { return device_; }

  /*!
   * \brief TVM's current stream, with this worker's device as the current one: what the worker has
   *        called since may have changed it, and memory would come from another device.
   */
  Stream Enter() const;

  /*! \brief Enters the stream of the worker, whatever TVM's current one is. */
  Stream EnterOwn() const;

  /*!
   * \brief Enters the stream for an operation that cannot be part of a CUDA graph.
   * \throws RuntimeError if the stream is being captured.
   */
  Stream EnterUncaptured(const char* operation) const;

  /*! \brief A tensor, which may outlive the worker. Freeing it never throws. */
  tvm::ffi::Tensor NewTensor(tvm::ffi::ShapeView shape, DLDataType dtype) const;

 private:
  const int device_;
  Stream own_ = nullptr;
};

/*! \brief A copy on the worker's GPU of a tensor of the host or of that GPU, which is enqueued. */
tvm::ffi::Tensor CopyToDevice(const tvm::ffi::Tensor& tensor, const WorkerStream& stream,
                              Staging* staging);

/*! \brief A copy in host memory of a tensor on a GPU, on which nothing is pending. */
tvm::ffi::Tensor CopyToHost(const tvm::ffi::Tensor& tensor);

}  // namespace distir::runtime::nccl

#endif  // DISTIR_RUNTIME_COMMUNICATORS_NCCL_DEVICES_WORKER_STREAM_H_
