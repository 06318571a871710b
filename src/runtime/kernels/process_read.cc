// Copies a box out of the memory of another process.
#include "runtime/kernels/process_read.h"

#include <sys/uio.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <vector>

#include "support/functions.h"

namespace distir::runtime {

namespace {

// Fits in the second level of the caches.
constexpr int64_t kBufferBytes = 256 << 10;

// Ranges that the system takes at a time (UIO_MAXIOV).
constexpr size_t kMostRanges = 1024;

// Largest gap between two rows that is read, too: a range of its own would take longer.
constexpr int64_t kLargestGap = 4096;

class ProcessReader {
 public:
  ProcessReader(pid_t process, int64_t result_bytes)
      : process_(process), result_bytes_(result_bytes), buffer_(new char[kBufferBytes]) {}

  void Read(const MemoryPlane& plane) {
    if (plane.row_bytes > kBufferBytes) {
      for (int64_t row = 0; row < plane.rows; ++row) {
        for (int64_t at = 0; at < plane.row_bytes; at += kBufferBytes) {
          const int64_t size = std::min(kBufferBytes, plane.row_bytes - at);
          Add({plane.source + row * plane.source_pitch + at, size,
               plane.target + row * plane.target_pitch + at, size, size, 1});
        }
      }
      return;
    }
    const int64_t pitch = IsDense(plane) ? plane.source_pitch : plane.row_bytes;
    const int64_t most = IsDense(plane) ? plane.rows : static_cast<int64_t>(kMostRanges);
    const int64_t step = std::clamp(kBufferBytes / std::max<int64_t>(pitch, 1), int64_t{1}, most);
    for (int64_t row = 0; row < plane.rows; row += step) {
      MemoryPlane part = plane;
      part.source += row * plane.source_pitch;
      part.target += row * plane.target_pitch;
      part.rows = std::min(step, plane.rows - row);
      Add(part);
    }
  }

  /*! \brief Copies what has been added. \return As ReadProcess. */
  int Finish() {
    Flush();
    return error_;
  }

 private:
  /*! \brief Rows in the buffer, and where they belong. */
  struct Filled {
    int64_t begin;
    int64_t pitch;
    MemoryPlane plane;
  };

  static bool IsDense(const MemoryPlane& plane) {
    return plane.source_pitch - plane.row_bytes <= kLargestGap;
  }

  /*! \brief Adds rows that fit into an empty buffer. */
  void Add(const MemoryPlane& plane) {
    const bool is_one = plane.rows == 1 || IsDense(plane);
    const int64_t pitch = is_one ? plane.source_pitch : plane.row_bytes;
    const int64_t bytes = (plane.rows - 1) * pitch + plane.row_bytes;
    const size_t ranges = is_one ? 1 : plane.rows;
    if (filled_bytes_ + bytes > kBufferBytes || ranges_.size() + ranges > kMostRanges) Flush();
    for (size_t i = 0; i < ranges; ++i) {
      void* begin = const_cast<char*>(plane.source + i * plane.source_pitch);
      ranges_.push_back({begin, static_cast<size_t>(is_one ? bytes : plane.row_bytes)});
    }
    filled_.push_back({filled_bytes_, pitch, plane});
    filled_bytes_ += bytes;
  }

  void Flush() {
    const iovec local{buffer_.get(), static_cast<size_t>(filled_bytes_)};
    if (error_ == 0 && filled_bytes_ > 0) {
      const ssize_t read = process_vm_readv(process_, &local, 1, ranges_.data(), ranges_.size(), 0);
      if (read != filled_bytes_) error_ = read < 0 ? errno : EFAULT;
    }
    for (const Filled& each : error_ == 0 ? filled_ : std::vector<Filled>()) {
      const MemoryPlane& plane = each.plane;
      BoxCopy({plane.rows, plane.row_bytes}, {each.pitch, 1}, {plane.target_pitch, 1}, 1,
              result_bytes_)
          .Run(buffer_.get() + each.begin, plane.target);
    }
    ranges_.clear();
    filled_.clear();
    filled_bytes_ = 0;
  }

  const pid_t process_;
  const int64_t result_bytes_;
  const std::unique_ptr<char[]> buffer_;
  std::vector<iovec> ranges_;  // of the other process
  std::vector<Filled> filled_;
  int64_t filled_bytes_ = 0;
  int error_ = 0;
};

/*! \brief True if this process can read a byte of another one. */
bool CanRead(int64_t process, int64_t address) {
  char byte = 0;
  const iovec local{&byte, 1};
  const iovec remote{reinterpret_cast<void*>(address), 1};
  return process_vm_readv(static_cast<pid_t>(process), &local, 1, &remote, 1, 0) == 1;
}

}  // namespace

int ReadProcess(pid_t process, const BoxCopy& copy, const char* source, char* target,
                int64_t result_bytes) {
  ProcessReader reader(process, result_bytes);
  copy.ForEachPlane(source, target, [&](const MemoryPlane& plane) { reader.Read(plane); });
  return reader.Finish();
}

TVM_FFI_STATIC_INIT_BLOCK() {
  support::Functions().def("distir.runtime.can_read_process", CanRead);
}

}  // namespace distir::runtime
