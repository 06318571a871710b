// Appends to tensors where they lie.
#include "runtime/append.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/kernels/format_list.h"
#include "runtime/kernels/parallel.h"
#include "runtime/kernels/strided_copy.h"
#include "support/error.h"
#include "support/functions.h"

namespace distir::runtime {

namespace ffi = tvm::ffi;

namespace {

// Room of a new tensor, as a part of what it holds: all of it is copied once in so many bytes.
constexpr int64_t kRoomDivisor = 8;
constexpr int64_t kLeastRoom = 16;  // times what is added
constexpr size_t kMostKeptBytes = size_t{256} << 20;
constexpr DLDevice kHost = {kDLCPU, 0};

/*! \brief Memory of a tensor and of the longer ones that were made of it. */
class GrowingBuffer : public std::enable_shared_from_this<GrowingBuffer> {
 public:
  static std::shared_ptr<GrowingBuffer> Make(int64_t bytes) {
    auto buffer = std::shared_ptr<GrowingBuffer>(new GrowingBuffer(bytes));
    std::lock_guard<std::mutex> lock(Mutex());
    All()[buffer->data()] = buffer;
    return buffer;
  }
  ~GrowingBuffer() {
    std::lock_guard<std::mutex> lock(Mutex());
    All().erase(data());
  }

  /*! \brief The buffer that a tensor fills as far as anything has, with room for more bytes, which
   * are the caller's from now on; nullptr where there is none. */
  static std::shared_ptr<GrowingBuffer> Extend(const char* data, int64_t bytes, int64_t more) {
    std::shared_ptr<GrowingBuffer> found;  // released behind the lock, which its end takes
    std::lock_guard<std::mutex> lock(Mutex());
    const auto at = All().find(data);
    if (at == All().end()) return nullptr;
    found = at->second.lock();
    if (found == nullptr || found->filled_ != bytes || found->capacity_ - bytes < more)
      return nullptr;
    found->filled_ += more;
    return found;
  }

  /*! \brief Its first elements as a tensor. */
  ffi::Tensor View(ffi::ShapeView shape, DLDataType dtype) {
    return ffi::Tensor::FromNDAlloc(Owner{shared_from_this()}, shape, dtype, kHost);
  }

  char* data() const { return DataOf(storage_); }
  void Fill(int64_t bytes) { filled_ = bytes; }

 private:
  struct Owner {
    std::shared_ptr<GrowingBuffer> buffer;
    void AllocData(DLTensor* tensor) { tensor->data = buffer->data(); }
    void FreeData(DLTensor*) {}
  };

  explicit GrowingBuffer(int64_t bytes)
      : storage_(ExtendedTensors().NewTensor(ffi::Shape({bytes}), DLDataType{kDLUInt, 8, 1})),
        capacity_(bytes) {}

  static std::mutex& Mutex() {
    static auto* mutex = new std::mutex;
    return *mutex;
  }
  static std::unordered_map<const char*, std::weak_ptr<GrowingBuffer>>& All() {
    static auto* all = new std::unordered_map<const char*, std::weak_ptr<GrowingBuffer>>;
    return *all;
  }

  const ffi::Tensor storage_;
  const int64_t capacity_;
  int64_t filled_ = 0;
};

void Check(const ffi::Tensor& tensor, const ffi::Tensor& added, int64_t axis) {
  bool fits = tensor.ndim() == added.ndim() && tensor.dtype() == added.dtype() && axis >= 0 &&
              axis < tensor.ndim();
  for (int64_t d = 0; fits && d < tensor.ndim(); ++d)
    fits = d == axis || tensor.size(d) == added.size(d);
  DISTIR_REQUIRE(fits, ValueError)
      << "append: " << FormatList(added.shape()) << " does not fit behind "
      << FormatList(tensor.shape()) << " along dimension " << axis;
  for (const ffi::Tensor& each : {tensor, added}) {
    DISTIR_REQUIRE(each.device().device_type == kDLCPU && each.IsContiguous(), ValueError)
        << "append: a tensor of shape " << FormatList(each.shape())
        << " is not contiguous in host memory";
  }
}

}  // namespace

ResultMemory& ExtendedTensors() {
  static const auto* memory =
      new std::shared_ptr<ResultMemory>(std::make_shared<ResultMemory>(kMostKeptBytes));
  return **memory;
}

ffi::Tensor Append(const ffi::Tensor& tensor, const ffi::Tensor& added, int64_t axis) {
  Check(tensor, added, axis);
  std::vector<int64_t> extents(tensor.shape().begin(), tensor.shape().end());
  extents[axis] += added.size(axis);
  const ffi::Shape shape(extents.begin(), extents.end());
  const int64_t all = CheckedBytes(shape, tensor.dtype());
  const int64_t before = CheckedBytes(tensor.shape(), tensor.dtype());
  const int64_t more = all - before;
  int64_t blocks = 1;
  for (int64_t d = 0; d < axis; ++d) blocks *= extents[d];
  if (blocks == 1) {
    std::shared_ptr<GrowingBuffer> buffer = GrowingBuffer::Extend(DataOf(tensor), before, more);
    if (buffer == nullptr) {
      buffer = GrowingBuffer::Make(all + std::max(all / kRoomDivisor, kLeastRoom * more));
      if (before > 0) std::memcpy(buffer->data(), DataOf(tensor), before);
      buffer->Fill(all);
    }
    if (more > 0) std::memcpy(buffer->data() + before, DataOf(added), more);
    return buffer->View(shape, tensor.dtype());
  }
  ffi::Tensor joined = ExtendedTensors().NewTensor(shape, tensor.dtype());
  if (all == 0) return joined;
  RunInParts(static_cast<double>(all), [&](int64_t part, int64_t parts) {
    const int64_t old_bytes = before / blocks, new_bytes = more / blocks;
    for (int64_t i = blocks * part / parts; i < blocks * (part + 1) / parts; ++i) {
      char* target = DataOf(joined) + i * (old_bytes + new_bytes);
      if (old_bytes > 0) std::memcpy(target, DataOf(tensor) + i * old_bytes, old_bytes);
      if (new_bytes > 0) std::memcpy(target + old_bytes, DataOf(added) + i * new_bytes, new_bytes);
    }
  });
  return joined;
}

namespace {

TVM_FFI_STATIC_INIT_BLOCK() { support::Functions().def("distir.runtime.append", Append); }

}  // namespace

}  // namespace distir::runtime
