/*!
 * \file tests/gpu/cublaslt_on_host.cc
 * \brief What distir_ext uses of cuBLASLt, on the memory of cuda_on_host.cc.
 *
 * Products are computed in float64 and rounded once to the type of the result, when it is their
 * turn on the stream. As cuBLASLt does, it refuses what is no product: leading dimensions below the
 * rows, sizes that do not match, types that it has no kernel for. It notes as misused a pointer
 * that is less aligned than was stated when the algorithm was chosen, a workspace that is too
 * small, and what is called on another device.
 *
 * Environment: CUDA_ON_HOST_CUBLASLT, the version (131000).
 */
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "on_host.h"
#include "runtime/cublaslt/abi.h"
#include "runtime/kernels/floats/half_precision.h"

namespace {

using namespace distir::runtime;
using namespace distir::runtime::cublaslt;
using namespace on_host;

constexpr size_t kWorkspace = size_t{1} << 20;

struct HostHandle {
  int device;
};

struct HostLayout {
  int type;
  uint64_t rows, cols;
  int64_t ld;
  int32_t batch = 1;
  int64_t stride = 0;
};

struct HostDescriptor {
  int compute, scale;
  int32_t transposed[2] = {kCublasOpN, kCublasOpN};
  uint32_t epilogue = kCublasltEpilogueDefault;
  const void* bias = nullptr;
};

struct HostPreference {
  uint64_t workspace = 0;
  uint32_t alignments[4] = {256, 256, 256, 256};
};

size_t BytesOf(int type) { return type == kCudaR64f ? 8 : type == kCudaR32f ? 4 : 2; }

double Load(const void* data, int64_t index, int type) {
  const auto* at = static_cast<const char*>(data) + index * static_cast<int64_t>(BytesOf(type));
  uint16_t half;
  float single;
  double wide;
  switch (type) {
    case kCudaR64f:
      std::memcpy(&wide, at, sizeof(wide));
      return wide;
    case kCudaR32f:
      std::memcpy(&single, at, sizeof(single));
      return single;
    default:
      std::memcpy(&half, at, sizeof(half));
      return type == kCudaR16f ? HalfToFloat(half) : BFloat16ToFloat(half);
  }
}

void Store(void* data, int64_t index, int type, double value) {
  auto* at = static_cast<char*>(data) + index * static_cast<int64_t>(BytesOf(type));
  const auto single = static_cast<float>(value);
  if (type == kCudaR64f) {
    std::memcpy(at, &value, sizeof(value));
  } else if (type == kCudaR32f) {
    std::memcpy(at, &single, sizeof(single));
  } else {
    const uint16_t half = type == kCudaR16f ? FloatToHalf(single) : FloatToBFloat16(single);
    std::memcpy(at, &half, sizeof(half));
  }
}

/*! \brief The bytes from the first element of a batch to its last. */
size_t Extent(const HostLayout& layout) {
  const int64_t last = static_cast<int64_t>(layout.batch - 1) * layout.stride +
                       (static_cast<int64_t>(layout.cols) - 1) * layout.ld +
                       static_cast<int64_t>(layout.rows);
  return static_cast<size_t>(last) * BytesOf(layout.type);
}

double Activated(double value, uint32_t epilogue) {
  if (epilogue & kCublasltEpilogueRelu) return value > 0 || std::isnan(value) ? value : 0;
  if (epilogue & kCublasltEpilogueGelu) {
    const double inner = std::sqrt(2 / M_PI) * (value + 0.044715 * value * value * value);
    return 0.5 * value * (1 + std::tanh(inner));
  }
  return value;
}

bool IsKnown(int type) {
  return type == kCudaR64f || type == kCudaR32f || type == kCudaR16f || type == kCudaR16bf;
}

/*! \brief Status with which cuBLASLt answers to a product of these layouts. */
int Check(const HostDescriptor& product, const HostLayout& a, const HostLayout& b,
          const HostLayout& d) {
  for (const HostLayout* layout : {&a, &b, &d}) {
    if (!IsKnown(layout->type)) return kCublasStatusNotSupported;
    if (layout->rows == 0 || layout->cols == 0 || layout->batch < 1 ||
        layout->ld < static_cast<int64_t>(layout->rows) || layout->batch != d.batch)
      return kCublasStatusInvalidValue;
  }
  const bool is_double = d.type == kCudaR64f;
  const bool is_half = a.type == kCudaR16f || a.type == kCudaR16bf;
  if (a.type != b.type || (d.type != a.type && !(is_half && d.type == kCudaR32f)))
    return kCublasStatusNotSupported;
  if (product.compute != (is_double ? kCublasCompute64f : kCublasCompute32f) ||
      product.scale != (is_double ? kCudaR64f : kCudaR32f))
    return kCublasStatusNotSupported;
  if (is_double && product.epilogue != kCublasltEpilogueDefault) return kCublasStatusNotSupported;
  const auto side = [](const HostLayout& layout, int transposed, bool outer) {
    return (transposed == kCublasOpT) == outer ? layout.rows : layout.cols;
  };
  const bool fits = side(a, product.transposed[0], false) == d.rows &&
                    side(a, product.transposed[0], true) == side(b, product.transposed[1], false) &&
                    side(b, product.transposed[1], true) == d.cols;
  return fits ? kCublasStatusSuccess : kCublasStatusInvalidValue;
}

void Multiply(const HostDescriptor& product, const HostLayout& a, const HostLayout& b,
              const HostLayout& d, const void* left, const void* right, double beta,
              const void* addend, void* result) {
  const bool wrong = Faulty("wrong product");
  const bool left_t = product.transposed[0] == kCublasOpT;
  const bool right_t = product.transposed[1] == kCublasOpT;
  const auto depth = static_cast<int64_t>(left_t ? a.rows : a.cols);
  const bool has_bias = (product.epilogue & kCublasltEpilogueBias) != 0;
  for (int64_t each = 0; each < d.batch; ++each) {
    for (int64_t col = 0; col < static_cast<int64_t>(d.cols); ++col) {
      for (int64_t row = 0; row < static_cast<int64_t>(d.rows); ++row) {
        double sum = 0;
        for (int64_t k = 0; k < depth; ++k) {
          const int64_t in_left = each * a.stride + (left_t ? row * a.ld + k : k * a.ld + row);
          const int64_t in_right = each * b.stride + (right_t ? k * b.ld + col : col * b.ld + k);
          sum += Load(left, in_left, a.type) * Load(right, in_right, b.type);
        }
        const int64_t at = each * d.stride + col * d.ld + row;
        if (beta != 0) sum += beta * Load(addend, at, d.type);
        if (has_bias) sum += Load(product.bias, row, d.type);
        Store(result, at, d.type, Activated(sum, product.epilogue) + (wrong ? 1 : 0));
      }
    }
  }
}

}  // namespace

EXPORT size_t cublasLtGetVersion() {
  return static_cast<size_t>(std::stoul(Environment("CUDA_ON_HOST_CUBLASLT", "131000")));
}

EXPORT const char* cublasLtGetStatusString(int status) {
  return status == kCublasStatusNotSupported ? "the functionality is not supported"
                                             : "a status of cuBLASLt on the host";
}

EXPORT int cublasLtCreate(Handle* handle) {
  *handle = new HostHandle{CurrentDevice()};
  return kCublasStatusSuccess;
}
EXPORT int cublasLtDestroy(Handle handle) {
  delete static_cast<HostHandle*>(handle);
  return kCublasStatusSuccess;
}

EXPORT int cublasLtMatmulDescCreate(Descriptor* descriptor, int compute, int scale) {
  auto* made = new HostDescriptor();
  made->compute = compute;
  made->scale = scale;
  *descriptor = made;
  return kCublasStatusSuccess;
}
EXPORT int cublasLtMatmulDescDestroy(Descriptor descriptor) {
  delete static_cast<HostDescriptor*>(descriptor);
  return kCublasStatusSuccess;
}
EXPORT int cublasLtMatmulDescSetAttribute(Descriptor descriptor, int attribute, const void* value,
                                          size_t bytes) {
  auto* its = static_cast<HostDescriptor*>(descriptor);
  const auto set = [&](void* target, size_t size) {
    if (bytes != size) return kCublasStatusInvalidValue;
    std::memcpy(target, value, size);
    return kCublasStatusSuccess;
  };
  switch (attribute) {
    case kCublasltMatmulDescTransa:
      return set(&its->transposed[0], sizeof(int32_t));
    case kCublasltMatmulDescTransb:
      return set(&its->transposed[1], sizeof(int32_t));
    case kCublasltMatmulDescEpilogue:
      return set(&its->epilogue, sizeof(uint32_t));
    case kCublasltMatmulDescBiasPointer:
      return set(&its->bias, sizeof(void*));
    default:
      return kCublasStatusInvalidValue;
  }
}

EXPORT int cublasLtMatrixLayoutCreate(Layout* layout, int type, uint64_t rows, uint64_t cols,
                                      int64_t ld) {
  *layout = new HostLayout{type, rows, cols, ld};
  return kCublasStatusSuccess;
}
EXPORT int cublasLtMatrixLayoutDestroy(Layout layout) {
  delete static_cast<HostLayout*>(layout);
  return kCublasStatusSuccess;
}
EXPORT int cublasLtMatrixLayoutSetAttribute(Layout layout, int attribute, const void* value,
                                            size_t bytes) {
  auto* its = static_cast<HostLayout*>(layout);
  if (attribute == kCublasltMatrixLayoutBatchCount && bytes == sizeof(int32_t)) {
    std::memcpy(&its->batch, value, bytes);
  } else if (attribute == kCublasltMatrixLayoutStridedBatchOffset && bytes == sizeof(int64_t)) {
    std::memcpy(&its->stride, value, bytes);
  } else {
    return kCublasStatusInvalidValue;
  }
  return kCublasStatusSuccess;
}

EXPORT int cublasLtMatmulPreferenceCreate(Preference* preference) {
  *preference = new HostPreference();
  return kCublasStatusSuccess;
}
EXPORT int cublasLtMatmulPreferenceDestroy(Preference preference) {
  delete static_cast<HostPreference*>(preference);
  return kCublasStatusSuccess;
}
EXPORT int cublasLtMatmulPreferenceSetAttribute(Preference preference, int attribute,
                                                const void* value, size_t bytes) {
  auto* its = static_cast<HostPreference*>(preference);
  const int aligned = attribute - kCublasltMatmulPrefMinAlignmentABytes;
  if (attribute == kCublasltMatmulPrefMaxWorkspaceBytes && bytes == sizeof(uint64_t)) {
    std::memcpy(&its->workspace, value, bytes);
  } else if (aligned >= 0 && aligned < 4 && bytes == sizeof(uint32_t)) {
    std::memcpy(&its->alignments[aligned], value, bytes);
  } else {
    return kCublasStatusInvalidValue;
  }
  return kCublasStatusSuccess;
}

EXPORT int cublasLtMatmulAlgoGetHeuristic(Handle, Descriptor descriptor, Layout a, Layout b, Layout,
                                          Layout d, Preference preference, int requested,
                                          Heuristic* results, int* found) {
  *found = 0;
  Count("heuristic");
  const auto& wanted = *static_cast<HostPreference*>(preference);
  const int status = Check(*static_cast<HostDescriptor*>(descriptor), *static_cast<HostLayout*>(a),
                           *static_cast<HostLayout*>(b), *static_cast<HostLayout*>(d));
  if (status != kCublasStatusSuccess) return status;
  if (requested < 1 || Faulty("refused product")) return kCublasStatusNotSupported;
  *found = 1;
  results[0] = Heuristic{};
  for (int i = 0; i < 4; ++i) results[0].algo.data[i] = wanted.alignments[i];
  results[0].workspaceSize = wanted.workspace < kWorkspace ? 0 : kWorkspace;
  return kCublasStatusSuccess;
}

EXPORT int cublasLtMatmul(Handle handle, Descriptor descriptor, const void* alpha, const void* left,
                          Layout a_layout, const void* right, Layout b_layout, const void* beta,
                          const void* addend, Layout, void* result, Layout d_layout,
                          const Algorithm* algorithm, void* workspace, size_t workspace_bytes,
                          void* stream) {
  const HostDescriptor product = *static_cast<HostDescriptor*>(descriptor);
  const HostLayout a = *static_cast<HostLayout*>(a_layout);
  const HostLayout b = *static_cast<HostLayout*>(b_layout);
  const HostLayout d = *static_cast<HostLayout*>(d_layout);
  if (const int status = Check(product, a, b, d)) return status;
  Count("product");
  if (static_cast<HostHandle*>(handle)->device != CurrentDevice())
    Misused("cuBLASLt is called on another device than its handle's");
  const void* pointers[] = {left, right, addend, result};
  for (int i = 0; i < 4; ++i) {
    if (reinterpret_cast<uintptr_t>(pointers[i]) % algorithm->data[i] != 0)
      Misused("a matrix of cuBLASLt is less aligned than was stated");
  }
  const double factor = Load(alpha, 0, product.scale);
  const double added = Load(beta, 0, product.scale);
  if (factor != 1) Misused("alpha is not 1");
  std::vector<std::pair<const void*, size_t>> touched = {
      {left, Extent(a)}, {right, Extent(b)}, {result, Extent(d)}, {workspace, workspace_bytes}};
  if (added != 0) touched.emplace_back(addend, Extent(d));
  if (product.epilogue & kCublasltEpilogueBias)
    touched.emplace_back(product.bias, d.rows * BytesOf(d.type));
  const int error = EnqueueOn(stream, std::move(touched), [=] {
    if (workspace != nullptr) std::memset(workspace, 0x3C, workspace_bytes);
    Multiply(product, a, b, d, left, right, added, addend, result);
  });
  constexpr int kExecutionFailed = 13;
  return error == 0 ? kCublasStatusSuccess : kExecutionFailed;
}
