// Allocates and copies device memory in the order of a stream.
#include "runtime/communicators/nccl/devices/device_memory.h"

#include <cstdint>
#include <limits>

#include "runtime/communicators/nccl/library.h"

namespace distir::runtime::nccl {

namespace {

// cudaMemcpy2D refuses pitches above the attribute cudaDevAttrMaxPitch, which is this on every GPU.
constexpr int64_t kMaxPitch = std::numeric_limits<int32_t>::max();

// Nor does it take rows that overlap, or lie in descending order.
bool IsPitch(int64_t pitch, int64_t row_bytes) { return pitch >= row_bytes && pitch <= kMaxPitch; }

}  // namespace

StreamBuffer::StreamBuffer(int64_t bytes, Stream stream) : stream_(stream) {
  if (bytes == 0) return;
  void* data = nullptr;
  CheckCuda(Cuda().cudaMallocAsync(&data, static_cast<size_t>(bytes), stream), "cudaMallocAsync");
  data_ = static_cast<char*>(data);
}

StreamBuffer::StreamBuffer(StreamBuffer&& other) noexcept
    : data_(other.data_), stream_(other.stream_) {
  other.data_ = nullptr;
}

StreamBuffer::~StreamBuffer() {
  if (data_ != nullptr) Cuda().cudaFreeAsync(data_, stream_);
}

void KeepFreedBuffers(int device) {
  void* pool = nullptr;
  CheckCuda(Cuda().cudaDeviceGetDefaultMemPool(&pool, device), "cudaDeviceGetDefaultMemPool");
  uint64_t threshold = std::numeric_limits<uint64_t>::max();
  CheckCuda(Cuda().cudaMemPoolSetAttribute(pool, kCudaMemPoolAttrReleaseThreshold, &threshold),
            "cudaMemPoolSetAttribute");
}

void CopyOnDevice(const void* source, void* target, int64_t bytes, Stream stream) {
  if (bytes == 0) return;
  CheckCuda(Cuda().cudaMemcpyAsync(target, source, static_cast<size_t>(bytes),
                                   kCudaMemcpyDeviceToDevice, stream),
            "cudaMemcpyAsync");
}

void CopyBoxOnDevice(const BoxCopy& copy, const char* source, char* target, Stream stream) {
  copy.ForEachPlane(source, target, [stream](const MemoryPlane& plane) {
    if (plane.rows == 1) {
      CopyOnDevice(plane.source, plane.target, plane.row_bytes, stream);
    } else if (!IsPitch(plane.source_pitch, plane.row_bytes) ||
               !IsPitch(plane.target_pitch, plane.row_bytes)) {
      for (int64_t row = 0; row < plane.rows; ++row) {
        CopyOnDevice(plane.source + row * plane.source_pitch,
                     plane.target + row * plane.target_pitch, plane.row_bytes, stream);
      }
    } else {
      CheckCuda(Cuda().cudaMemcpy2DAsync(
                    plane.target, static_cast<size_t>(plane.target_pitch), plane.source,
                    static_cast<size_t>(plane.source_pitch), static_cast<size_t>(plane.row_bytes),
                    static_cast<size_t>(plane.rows), kCudaMemcpyDeviceToDevice, stream),
                "cudaMemcpy2DAsync");
    }
  });
}

}  // namespace distir::runtime::nccl
