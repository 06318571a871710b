// distir.runtime.einsum(a, b, "bsd,dn->bsn", out): a contraction of two tensors in host memory.
#include "runtime/kernels/einsum.h"

#include <tvm/ffi/dtype.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/string.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include "runtime/kernels/blas.h"
#include "runtime/kernels/contraction.h"
#include "runtime/kernels/floats/stored_float.h"
#include "runtime/kernels/format_list.h"
#include "runtime/kernels/parallel.h"
#include "runtime/kernels/small_integer.h"
#include "runtime/kernels/strided_copy.h"
#include "support/functions.h"

namespace distir::runtime {

namespace ffi = tvm::ffi;
using ffi::String;
using ffi::TensorView;

namespace {

// Pieces of a matrix are whole blocks of the rows that kernels of BLAS compute at a time.
constexpr int64_t kPieceMultiple = 16;

// ---- subscripts

template <typename... Parts>
[[noreturn]] void Fail(const String& subscripts, const Parts&... parts) {
  std::ostringstream text;
  text << "einsum \"" << std::string(subscripts) << "\": ";
  (text << ... << parts);
  TVM_FFI_THROW(ValueError) << text.str();
  TVM_FFI_UNREACHABLE();
}

constexpr const char* kNames[] = {"a", "b", "out"};

}  // namespace

std::vector<ContractionAxis> ReadContractionAxes(const String& subscripts,
                                                 const std::array<TensorView, 3>& tensors) {
  const std::string text = subscripts;
  const size_t comma = text.find(',');
  const size_t arrow = text.find("->");
  if (comma == std::string::npos || arrow == std::string::npos || comma > arrow)
    Fail(subscripts, "it is not of the form \"ab,bc->ac\"");
  const std::array<std::string, 3> labels = {
      text.substr(0, comma), text.substr(comma + 1, arrow - comma - 1), text.substr(arrow + 2)};
  std::string known;
  std::vector<ContractionAxis> axes;
  for (Operand operand : {kLeft, kRight, kResult}) {
    const TensorView& tensor = tensors[operand];
    if (!tensor.IsContiguous()) Fail(subscripts, kNames[operand], " is not contiguous");
    if (static_cast<int>(labels[operand].size()) != tensor.ndim()) {
      Fail(subscripts, kNames[operand], " of shape ", FormatList(tensor.shape()), " has not ",
           labels[operand].size(), " dimensions");
    }
    int64_t stride = 1;
    for (int d = tensor.ndim() - 1; d >= 0; --d) {
      const char label = labels[operand][d];
      if (labels[operand].find(label) != static_cast<size_t>(d))
        Fail(subscripts, kNames[operand], " has \"", label, "\" more than once");
      size_t index = known.find(label);
      if (index == std::string::npos) {
        index = known.size();
        known += label;
        axes.emplace_back();
      }
      ContractionAxis& axis = axes[index];
      const int64_t size = tensor.size(d);
      // Operands of size 1 are stretched; the result is not.
      const bool is_stretched = operand != kResult && size == 1;
      if (size != axis.extent && !is_stretched && (operand == kResult || axis.extent != 1)) {
        Fail(subscripts, kNames[operand], " of shape ", FormatList(tensor.shape()), " has ", size,
             " for \"", label, "\", which has ", axis.extent);
      }
      if (!is_stretched) axis.extent = size;
      if (size != 1) axis.strides[operand] = stride;
      stride *= size;
    }
  }
  return axes;
}

namespace {

// ---- dtypes that are computed in float32

template <typename Type>
void Widen(const void* from, int64_t count, float* to) {
  const auto* stored = static_cast<const typename Type::Stored*>(from);
  for (int64_t i = 0; i < count; ++i) to[i] = Type::Load(stored[i]);
}

template <typename Type>
void Narrow(const float* from, int64_t count, void* to) {
  auto* stored = static_cast<typename Type::Stored*>(to);
  for (int64_t i = 0; i < count; ++i) stored[i] = Type::Store(from[i]);
}

bool IsFloat(DLDataType dtype, int bits) {
  return dtype.code == kDLFloat && dtype.bits == bits && dtype.lanes == 1;
}
bool IsBFloat16(DLDataType dtype) {
  return dtype.code == kDLBfloat && dtype.bits == 16 && dtype.lanes == 1;
}
bool IsInt8(DLDataType dtype) {
  return dtype.code == kDLInt && dtype.bits == 8 && dtype.lanes == 1;
}
bool IsUInt8(DLDataType dtype) {
  return dtype.code == kDLUInt && dtype.bits == 8 && dtype.lanes == 1;
}
bool IsInt32(DLDataType dtype) {
  return dtype.code == kDLInt && dtype.bits == 32 && dtype.lanes == 1;
}
/*! \brief True for dtypes that are computed in float32. */
bool IsSmall(DLDataType dtype) {
  return IsFloat(dtype, 16) || IsBFloat16(dtype) || IsInt8(dtype) || IsUInt8(dtype);
}

// ---- computation

template <typename T>
class Contraction {
 public:
  Contraction(const ContractionPlan& plan, const T* left, const T* right, T* result)
      : plan_(plan), left_(left), right_(right), result_(result) {
    for (const ContractionAxis& axis : plan.loops) loops_ *= axis.extent;
    for (const ContractionAxis& axis : plan.sums) sums_ *= axis.extent;
  }

  void Run() {
    const double operations = static_cast<double>(loops_ * sums_) *
                              static_cast<double>(plan_.m.extent * plan_.n.extent) *
                              static_cast<double>(plan_.k.extent);
    RunInParts(operations, [this](int64_t part, int64_t parts) { RunPart(part, parts); });
  }

 private:
  /*! \brief One of several equal parts: some of the matrices, or a piece of each. */
  void RunPart(int64_t part, int64_t parts) const {
    if (parts == 1 || loops_ >= 2 * parts) {
      RunLoops(loops_ * part / parts, loops_ * (part + 1) / parts, plan_, left_, right_, result_);
      return;
    }
    ContractionPlan piece = plan_;
    ContractionAxis& axis = piece.m.extent >= piece.n.extent ? piece.m : piece.n;
    const int64_t blocks = (axis.extent + kPieceMultiple - 1) / kPieceMultiple;
    const int64_t begin = blocks * part / parts * kPieceMultiple;
    const int64_t end = std::min(axis.extent, blocks * (part + 1) / parts * kPieceMultiple);
    if (begin >= end) return;
    axis.extent = end - begin;
    RunLoops(0, loops_, piece, left_ + begin * axis.strides[kLeft],
             right_ + begin * axis.strides[kRight], result_ + begin * axis.strides[kResult]);
  }

  void RunLoops(int64_t begin, int64_t end, const ContractionPlan& piece, const T* left,
                const T* right, T* result) const {
    const MatrixProduct sizes{
        piece.m.extent,          piece.n.extent,           piece.k.extent,
        piece.m.strides[kLeft],  piece.k.strides[kLeft],   piece.k.strides[kRight],
        piece.n.strides[kRight], piece.m.strides[kResult], piece.n.strides[kResult]};
    for (int64_t loop = begin; loop < end; ++loop) {
      const auto at = Offsets(piece.loops, loop);
      for (int64_t sum = 0; sum < sums_; ++sum) {
        const auto more = Offsets(piece.sums, sum);
        MultiplyMatrices<T>(sizes, left + at[kLeft] + more[kLeft],
                            right + at[kRight] + more[kRight], result + at[kResult], sum > 0);
      }
    }
  }

  static std::array<int64_t, 3> Offsets(const std::vector<ContractionAxis>& axes, int64_t index) {
    std::array<int64_t, 3> offsets = {0, 0, 0};
    for (size_t i = axes.size(); i-- > 0;) {
      const int64_t position = index % axes[i].extent;
      index /= axes[i].extent;
      for (Operand operand : {kLeft, kRight, kResult})
        offsets[operand] += position * axes[i].strides[operand];
    }
    return offsets;
  }

  const ContractionPlan& plan_;
  const T* left_;
  const T* right_;
  T* result_;
  int64_t loops_ = 1;
  int64_t sums_ = 1;
};

/*! \brief Tensors of one dtype to compute with: the given ones, or copies of them. */
template <typename T>
class Workspace {
 public:
  explicit Workspace(const std::array<TensorView, 3>& tensors) : tensors_(tensors) {
    for (Operand operand : {kLeft, kRight, kResult}) {
      const TensorView& tensor = tensors[operand];
      if (IsSmall(tensor.dtype()) || IsInt32(tensor.dtype())) {
        T* wide = Allocate(tensor.numel());
        if (operand != kResult) Convert(tensor, wide);
        data_[operand] = wide;
      } else {
        data_[operand] = reinterpret_cast<T*>(DataOf(tensor));
      }
    }
  }

  void Run(const std::vector<ContractionAxis>& axes) {
    const TensorView& out = tensors_[kResult];
    if (IsInt32(out.dtype())) return RunExactly(axes, reinterpret_cast<int32_t*>(DataOf(out)));
    Multiply(axes);
    if (IsSmall(out.dtype())) ConvertBack(out);
  }

 private:
  void Multiply(const std::vector<ContractionAxis>& axes) {
    ContractionPlan plan = PlanContraction(axes);
    std::array<T*, 3> data = data_;
    std::unique_ptr<BoxCopy> copy_back;
    for (Operand operand : {kLeft, kRight, kResult}) {
      if (!plan.is_copied[operand]) continue;
      CopyAxes copy = UseDenseCopy(&plan, operand);
      data[operand] = Allocate(NumElements(copy.extents));
      for (auto* strides : {&copy.tensor_strides, &copy.copy_strides}) {
        for (int64_t& stride : *strides) stride *= sizeof(T);
      }
      if (operand == kResult) {
        copy_back = std::make_unique<BoxCopy>(copy.extents, copy.copy_strides, copy.tensor_strides,
                                              sizeof(T));
      } else {
        BoxCopy(copy.extents, copy.tensor_strides, copy.copy_strides, sizeof(T))
            .Run(data_[operand], data[operand]);
      }
    }
    Contraction<T>(plan, data[kLeft], data[kRight], data[kResult]).Run();
    if (copy_back != nullptr) copy_back->Run(data[kResult], data_[kResult]);
  }

  /*! \brief Products of integers, in sums that float32 has exactly. */
  void RunExactly(const std::vector<ContractionAxis>& axes, int32_t* out) {
    const auto size_of = [this](Operand operand) {
      return IsInt8(tensors_[operand].dtype()) ? 128 : 255;
    };
    std::memset(out, 0, tensors_[kResult].numel() * sizeof(int32_t));
    AddPieces(axes, ExactTerms(size_of(kLeft), size_of(kRight)), out);
  }

  /*! \brief Adds the contraction, in pieces of so many terms; the longest axis is cut first. */
  void AddPieces(const std::vector<ContractionAxis>& axes, int64_t most_terms, int32_t* out) {
    int64_t terms = 1;
    size_t longest = axes.size();
    for (size_t i = 0; i < axes.size(); ++i) {
      if (axes[i].strides[kResult] != 0 || axes[i].extent == 1) continue;
      terms *= axes[i].extent;
      if (longest == axes.size() || axes[i].extent > axes[longest].extent) longest = i;
    }
    if (terms <= most_terms) {
      Multiply(axes);
      const T* products = data_[kResult];
      for (int64_t i = 0; i < tensors_[kResult].numel(); ++i)
        out[i] = WrappingSum(out[i], static_cast<int32_t>(products[i]));
      return;
    }
    const ContractionAxis& whole = axes[longest];
    const int64_t extent = std::max<int64_t>(1, most_terms / (terms / whole.extent));
    const std::array<T*, 3> data = data_;
    std::vector<ContractionAxis> piece = axes;
    for (int64_t begin = 0; begin < whole.extent; begin += extent) {
      piece[longest].extent = std::min(extent, whole.extent - begin);
      for (Operand operand : {kLeft, kRight})
        data_[operand] = data[operand] + begin * whole.strides[operand];
      AddPieces(piece, most_terms, out);
    }
    data_ = data;
  }

  T* Allocate(int64_t count) {
    buffers_.emplace_back(new T[count]);
    return buffers_.back().get();
  }
  static void Convert(const TensorView& tensor, T* to) {
    if constexpr (std::is_same_v<T, float>) {
      const DLDataType dtype = tensor.dtype();
      const auto widen = IsInt8(dtype)       ? Widen<SmallInteger<int8_t>>
                         : IsUInt8(dtype)    ? Widen<SmallInteger<uint8_t>>
                         : IsBFloat16(dtype) ? Widen<BFloat16>
                                             : Widen<Float16>;
      widen(DataOf(tensor), tensor.numel(), to);
    }
  }
  void ConvertBack(const TensorView& out) const {
    if constexpr (std::is_same_v<T, float>) {
      (IsBFloat16(out.dtype()) ? Narrow<BFloat16> : Narrow<Float16>)(data_[kResult], out.numel(),
                                                                     DataOf(out));
    }
  }

  const std::array<TensorView, 3>& tensors_;
  std::array<T*, 3> data_;
  std::vector<std::unique_ptr<T[]>> buffers_;
};

}  // namespace

void Einsum(TensorView a, TensorView b, const String& subscripts, TensorView out) {
  const std::array<TensorView, 3> tensors = {a, b, out};
  const bool is_double = IsFloat(a.dtype(), 64);
  const auto is_integer = [](DLDataType dtype) { return IsInt8(dtype) || IsUInt8(dtype); };
  const bool are_integers = is_integer(a.dtype()) && is_integer(b.dtype()) && IsInt32(out.dtype());
  for (const TensorView& tensor : tensors) {
    const DLDataType dtype = tensor.dtype();
    const bool is_small_float = IsSmall(dtype) && !is_integer(dtype);
    const bool fits =
        are_integers || (is_double ? IsFloat(dtype, 64) : IsFloat(dtype, 32) || is_small_float);
    if (!fits) {
      Fail(subscripts, "a is ", ffi::DLDataTypeToString(a.dtype()), ", b is ",
           ffi::DLDataTypeToString(b.dtype()), ", out is ", ffi::DLDataTypeToString(out.dtype()),
           "; floats that are all float64 or all of at most 32 bits, and int8 and uint8 with a "
           "result of int32, are supported");
    }
  }
  for (Operand operand : {kLeft, kRight, kResult}) {
    if (tensors[operand].device().device_type != kDLCPU)
      Fail(subscripts, kNames[operand], " does not lie in host memory");
  }
  const std::vector<ContractionAxis> axes = ReadContractionAxes(subscripts, tensors);
  if (out.numel() == 0) return;
  if (a.numel() == 0 || b.numel() == 0) {
    std::memset(DataOf(out), 0, out.numel() * ElementBytes(out.dtype()));
    return;
  }
  if (is_double) {
    Workspace<double>(tensors).Run(axes);
  } else {
    Workspace<float>(tensors).Run(axes);
  }
}

namespace {

TVM_FFI_STATIC_INIT_BLOCK() {
  support::Functions()
      .def("distir.runtime.einsum", Einsum)
      .def("distir.runtime.set_blas_library", [](const String& path, const String& prefix) {
        SetBlasLibrary(std::string(path), std::string(prefix));
      });
}

}  // namespace

}  // namespace distir::runtime
