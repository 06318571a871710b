/*!
 * \file runtime/communicators/nccl/devices/device_memory.h
 * \brief Buffers and copies in device memory, in the order of a stream.
 *
 * Nothing here waits for the device.
 */
#ifndef DISTIR_RUNTIME_COMMUNICATORS_NCCL_DEVICES_DEVICE_MEMORY_H_
#define DISTIR_RUNTIME_COMMUNICATORS_NCCL_DEVICES_DEVICE_MEMORY_H_

#include <cstdint>

#include "runtime/communicators/nccl/abi.h"
#include "runtime/kernels/strided_copy.h"

namespace distir::runtime::nccl {

/*!
 * \brief Memory for what is enqueued between its construction and its destruction. It is given
 *        back in the order of the stream, so it may be destroyed while work on it is pending.
 */
class StreamBuffer {
 public:
  StreamBuffer(int64_t bytes, Stream stream);
  ~StreamBuffer();
  StreamBuffer(StreamBuffer&& other) noexcept;
  StreamBuffer(const StreamBuffer&) = delete;
  StreamBuffer& operator=(const StreamBuffer&) = delete;
  StreamBuffer& operator=(StreamBuffer&&) = delete;

  char* data() const { return data_; }

 private:
  char* data_ = nullptr;
  Stream stream_;
};

/*! \brief Keeps freed buffers of a device for the next ones, instead of returning them. */
void KeepFreedBuffers(int device);

void CopyOnDevice(const void* source, void* target, int64_t bytes, Stream stream);

/*! \brief Copies a box; strides of any sign, zero repeats. */
void CopyBoxOnDevice(const BoxCopy& copy, const char* source, char* target, Stream stream);

}  // namespace distir::runtime::nccl

#endif  // DISTIR_RUNTIME_COMMUNICATORS_NCCL_DEVICES_DEVICE_MEMORY_H_
