// Copies boxes between strided layouts.
#include "runtime/kernels/strided_copy.h"

#include <tvm/ffi/dtype.h>
#include <tvm/ffi/error.h>

#include <algorithm>
#include <cstring>

#include "runtime/kernels/format_list.h"
#include "runtime/kernels/streaming_store.h"

namespace distir::runtime {

int64_t ElementBytes(DLDataType dtype) {
  // As tensors are allocated: what takes a part of a byte is packed.
  const int64_t bits = static_cast<int64_t>(dtype.bits) * dtype.lanes;
  if (bits <= 0 || bits % 8 != 0) {
    TVM_FFI_THROW(TypeError) << "dtype " << tvm::ffi::DLDataTypeToString(dtype)
                             << " does not fill whole bytes; the runtime cannot move it";
  }
  return bits / 8;
}

int64_t NumElements(const std::vector<int64_t>& extents) {
  int64_t count = 1;
  for (int64_t extent : extents) count *= extent;
  return count;
}

int64_t CheckedBytes(tvm::ffi::ShapeView shape, DLDataType dtype) {
  constexpr int64_t kMost = int64_t{1} << 59;  // tensors count their bits in 64 bits
  const int64_t element_bytes = ElementBytes(dtype);
  int64_t bytes = element_bytes;  // also the strides of an empty tensor have to be numbers
  bool is_empty = false;
  for (int64_t size : shape) {
    is_empty = is_empty || size == 0;
    if (size < 0 || (size > 0 && bytes > kMost / size)) {
      TVM_FFI_THROW(ValueError) << "there is no tensor of shape " << FormatList(shape);
    }
    bytes *= std::max<int64_t>(size, 1);
  }
  return is_empty ? 0 : bytes;
}

std::vector<int64_t> ShapeOf(const tvm::ffi::TensorView& tensor) {
  tvm::ffi::ShapeView shape = tensor.shape();
  return std::vector<int64_t>(shape.begin(), shape.end());
}

std::vector<int64_t> RowMajorStrides(const std::vector<int64_t>& shape, int64_t element_bytes) {
  std::vector<int64_t> strides(shape.size());
  int64_t stride = element_bytes;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= shape[i];
  }
  return strides;
}

char* DataOf(const tvm::ffi::TensorView& tensor) {
  return static_cast<char*>(tensor.data_ptr()) + tensor.byte_offset();
}

// Of shorter runs the ends, which are not whole lines, are too many.
constexpr int64_t kStreamedRun = 1024;

BoxCopy::BoxCopy(const std::vector<int64_t>& extents, const std::vector<int64_t>& source_strides,
                 const std::vector<int64_t>& target_strides, int64_t element_bytes,
                 int64_t result_bytes)
    : run_bytes_(element_bytes) {
  if (NumElements(extents) == 0) {
    run_bytes_ = 0;
    return;
  }
  std::vector<Dim> inner_first;
  for (size_t i = extents.size(); i-- > 0;) {
    Dim dim{extents[i], source_strides[i], target_strides[i]};
    if (dim.extent == 1) continue;
    if (inner_first.empty() && dim.source_stride == run_bytes_ && dim.target_stride == run_bytes_) {
      run_bytes_ *= dim.extent;
      continue;
    }
    if (!inner_first.empty()) {
      Dim& inner = inner_first.back();
      if (dim.source_stride == inner.source_stride * inner.extent &&
          dim.target_stride == inner.target_stride * inner.extent) {
        inner.extent *= dim.extent;
        continue;
      }
    }
    inner_first.push_back(dim);
  }
  result_bytes = std::max(result_bytes, NumElements(extents) * element_bytes);
  streams_ = result_bytes >= kStreamedBytes && run_bytes_ >= kStreamedRun;
  dims_.assign(inner_first.rbegin(), inner_first.rend());
}

namespace {

template <typename Element>
void CopyElements(const char* source, int64_t source_stride, char* target, int64_t target_stride,
                  int64_t count) noexcept {
  for (int64_t i = 0; i < count; ++i) {
    Element element;
    std::memcpy(&element, source + i * source_stride, sizeof(Element));
    std::memcpy(target + i * target_stride, &element, sizeof(Element));
  }
}

}  // namespace

void BoxCopy::Run(const void* source, void* target) const noexcept {
  if (run_bytes_ == 0) return;
  RunDim(0, static_cast<const char*>(source), static_cast<char*>(target));
  if (streams_) FinishStreaming();
}

void BoxCopy::RunDim(size_t dim, const char* source, char* target) const noexcept {
  if (dim == dims_.size()) {
    if (streams_) return StreamCopy(source, run_bytes_, target);
    std::memcpy(target, source, static_cast<size_t>(run_bytes_));
    return;
  }
  const Dim& d = dims_[dim];
  if (dim + 1 == dims_.size()) {
    // A call of memcpy for one element costs more than the element.
    switch (run_bytes_) {
      case 1:
        return CopyElements<uint8_t>(source, d.source_stride, target, d.target_stride, d.extent);
      case 2:
        return CopyElements<uint16_t>(source, d.source_stride, target, d.target_stride, d.extent);
      case 4:
        return CopyElements<uint32_t>(source, d.source_stride, target, d.target_stride, d.extent);
      case 8:
        return CopyElements<uint64_t>(source, d.source_stride, target, d.target_stride, d.extent);
      default:
        break;
    }
  }
  for (int64_t i = 0; i < d.extent; ++i) {
    RunDim(dim + 1, source + i * d.source_stride, target + i * d.target_stride);
  }
}

}  // namespace distir::runtime
