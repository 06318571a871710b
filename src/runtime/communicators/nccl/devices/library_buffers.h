/*!
 * \file runtime/communicators/nccl/devices/library_buffers.h
 * \brief Cache of device memory for a library that communicates from it.
 *
 * It is cudaMalloc's and not that of CUDA's pool, which not every library can register with a
 * network card or share between processes. Memory that a library still has when a worker ends is
 * freed when the library gives it back, by whichever thread.
 */
#ifndef DISTIR_RUNTIME_COMMUNICATORS_NCCL_DEVICES_LIBRARY_BUFFERS_H_
#define DISTIR_RUNTIME_COMMUNICATORS_NCCL_DEVICES_LIBRARY_BUFFERS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace distir::runtime::nccl {

class LibraryBuffers : public std::enable_shared_from_this<LibraryBuffers> {
 public:
  LibraryBuffers() = default;
  ~LibraryBuffers();
  LibraryBuffers(const LibraryBuffers&) = delete;
  LibraryBuffers& operator=(const LibraryBuffers&) = delete;

  /*! \brief At least so many bytes on the current device. \throws RuntimeError without memory. */
  std::shared_ptr<char> New(int64_t num_bytes);

 private:
  std::mutex mutex_;
  std::map<int64_t, std::vector<char*>> free_;  // by size
};

}  // namespace distir::runtime::nccl

#endif  // DISTIR_RUNTIME_COMMUNICATORS_NCCL_DEVICES_LIBRARY_BUFFERS_H_
