// Computes matrix products of a worker by cuBLASLt.
#include "runtime/cublaslt/products.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <sstream>
#include <string>

#include "runtime/communicators/nccl/library.h"
#include "runtime/cublaslt/library.h"

namespace distir::runtime::cublaslt {

using nccl::CheckCuda;
using nccl::Cuda;

namespace {

// NVIDIA's recommendation for Hopper (the documentation of cublasSetWorkspace).
constexpr size_t kWorkspaceBytes = size_t{32} << 20;
constexpr int64_t kBestAlignment = 256;
// Products whose sizes change with each call are not kept without end.
constexpr size_t kMostPlans = 4096;

int64_t AlignmentOf(const void* data) {
  int64_t alignment = kBestAlignment;
  while (reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(alignment) != 0) alignment /= 2;
  return alignment;
}

const char* TypeText(int type) {
  switch (type) {
    case kCudaR16f:
      return "float16";
    case kCudaR16bf:
      return "bfloat16";
    case kCudaR64f:
      return "float64";
    default:
      return "float32";
  }
}

std::string Describe(const ProductForm& form) {
  std::ostringstream text;
  const Matrix &a = form.a, &b = form.b, &d = form.d;
  text << "the product of " << TypeText(a.type) << " of " << d.cols << " x "
       << (a.transposed ? a.rows : a.cols) << " and " << d.rows << " columns to "
       << TypeText(d.type) << " (batches: " << form.batch << ", rows apart: " << b.ld << ", "
       << a.ld << ", " << d.ld << ", epilogue " << form.epilogue
       << (form.adds ? " with a sum)" : ")");
  return text.str();
}

Layout NewLayout(const Matrix& matrix, int64_t batch) {
  Layout layout = nullptr;
  CheckCublasLt(CublasLt().cublasLtMatrixLayoutCreate(
                    &layout, matrix.type, static_cast<uint64_t>(matrix.rows),
                    static_cast<uint64_t>(matrix.cols), matrix.ld),
                "cublasLtMatrixLayoutCreate");
  const auto count = static_cast<int32_t>(batch);
  const auto set = [layout](int attribute, const void* value, size_t bytes) {
    CheckCublasLt(CublasLt().cublasLtMatrixLayoutSetAttribute(layout, attribute, value, bytes),
                  "cublasLtMatrixLayoutSetAttribute");
  };
  if (batch > 1) {
    set(kCublasltMatrixLayoutBatchCount, &count, sizeof(count));
    set(kCublasltMatrixLayoutStridedBatchOffset, &matrix.batch_stride, sizeof(int64_t));
  }
  return layout;
}

}  // namespace

/*! \brief Descriptors and algorithm of a product. */
struct LtProducts::Plan {
  Plan() = default;
  ~Plan() {
    for (Layout layout : {a, b, d})
      if (layout != nullptr) CublasLt().cublasLtMatrixLayoutDestroy(layout);
    if (descriptor != nullptr) CublasLt().cublasLtMatmulDescDestroy(descriptor);
    if (preference != nullptr) CublasLt().cublasLtMatmulPreferenceDestroy(preference);
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  void Set(int attribute, const void* value, size_t bytes) const {
    CheckCublasLt(CublasLt().cublasLtMatmulDescSetAttribute(descriptor, attribute, value, bytes),
                  "cublasLtMatmulDescSetAttribute");
  }
  void Prefer(int attribute, const void* value, size_t bytes) const {
    CheckCublasLt(
        CublasLt().cublasLtMatmulPreferenceSetAttribute(preference, attribute, value, bytes),
        "cublasLtMatmulPreferenceSetAttribute");
  }

  Descriptor descriptor = nullptr;
  Layout a = nullptr, b = nullptr, d = nullptr;
  Preference preference = nullptr;
  Heuristic chosen{};
};

LtProducts::LtProducts(int device) : device_(device) {
  CheckCublasLt(CublasLt().cublasLtCreate(&handle_), "cublasLtCreate");
}

LtProducts::~LtProducts() {
  plans_.clear();
  if (workspace_ != nullptr) {
    int current = device_;
    Cuda().cudaGetDevice(&current);
    if (current != device_) Cuda().cudaSetDevice(device_);
    Cuda().cudaFreeAsync(workspace_, stream_);
    if (current != device_) Cuda().cudaSetDevice(current);
  }
  CublasLt().cublasLtDestroy(handle_);
}

void* LtProducts::Workspace(size_t bytes, void* stream) {
  if (bytes == 0) return nullptr;
  if (workspace_ == nullptr || stream != stream_) {
    if (workspace_ != nullptr)
      CheckCuda(Cuda().cudaFreeAsync(workspace_, stream_), "cudaFreeAsync");
    workspace_ = nullptr;
    CheckCuda(Cuda().cudaMallocAsync(&workspace_, kWorkspaceBytes, stream),
              "allocating " + std::to_string(kWorkspaceBytes) +
                  " bytes of workspace for cuBLASLt on CUDA device " + std::to_string(device_));
    stream_ = stream;
  }
  return workspace_;
}

LtProducts::Plan& LtProducts::FindPlan(const ProductForm& form, const ProductData& data) {
  Key key;
  size_t at = 0;
  for (const Matrix* matrix : {&form.a, &form.b, &form.d}) {
    for (int64_t value :
         {matrix->rows, matrix->cols, matrix->ld, matrix->batch_stride,
          static_cast<int64_t>(matrix->transposed), static_cast<int64_t>(matrix->type)})
      key[at++] = value;
  }
  const std::array<int64_t, 4> alignments = {AlignmentOf(data.a), AlignmentOf(data.b),
                                             AlignmentOf(data.c), AlignmentOf(data.d)};
  for (int64_t value : alignments) key[at++] = value;
  for (int64_t value :
       {form.batch, static_cast<int64_t>(form.epilogue), static_cast<int64_t>(form.adds)})
    key[at++] = value;
  TVM_FFI_ICHECK_EQ(at, key.size());
  if (const auto found = plans_.find(key); found != plans_.end()) return *found->second;

  auto plan = std::make_unique<Plan>();
  const bool is_double = form.d.type == kCudaR64f;
  CheckCublasLt(CublasLt().cublasLtMatmulDescCreate(
                    &plan->descriptor, is_double ? kCublasCompute64f : kCublasCompute32f,
                    is_double ? kCudaR64f : kCudaR32f),
                "cublasLtMatmulDescCreate");
  const int32_t transposed[] = {form.a.transposed ? kCublasOpT : kCublasOpN,
                                form.b.transposed ? kCublasOpT : kCublasOpN};
  plan->Set(kCublasltMatmulDescTransa, &transposed[0], sizeof(int32_t));
  plan->Set(kCublasltMatmulDescTransb, &transposed[1], sizeof(int32_t));
  const auto epilogue = static_cast<uint32_t>(form.epilogue);
  plan->Set(kCublasltMatmulDescEpilogue, &epilogue, sizeof(epilogue));
  if (data.bias != nullptr)
    plan->Set(kCublasltMatmulDescBiasPointer, &data.bias, sizeof(data.bias));
  plan->a = NewLayout(form.a, form.batch);
  plan->b = NewLayout(form.b, form.batch);
  plan->d = NewLayout(form.d, form.batch);
  CheckCublasLt(CublasLt().cublasLtMatmulPreferenceCreate(&plan->preference),
                "cublasLtMatmulPreferenceCreate");
  plan->Prefer(kCublasltMatmulPrefMaxWorkspaceBytes, &kWorkspaceBytes, sizeof(uint64_t));
  constexpr int kAttributes[] = {
      kCublasltMatmulPrefMinAlignmentABytes, kCublasltMatmulPrefMinAlignmentBBytes,
      kCublasltMatmulPrefMinAlignmentCBytes, kCublasltMatmulPrefMinAlignmentDBytes};
  for (size_t i = 0; i < alignments.size(); ++i) {
    const auto alignment = static_cast<uint32_t>(alignments[i]);
    plan->Prefer(kAttributes[i], &alignment, sizeof(alignment));
  }
  int found = 0;
  const int status = CublasLt().cublasLtMatmulAlgoGetHeuristic(
      handle_, plan->descriptor, plan->a, plan->b, plan->d, plan->d, plan->preference, 1,
      &plan->chosen, &found);
  if (status != kCublasStatusSuccess || found == 0) {
    TVM_FFI_THROW(RuntimeError) << "cuBLASLt " << DescribeCublasLt() << " does not compute "
                                << Describe(form) << ": "
                                << CublasLt().cublasLtGetStatusString(status)
                                << "; build the program with blas=False to leave products to TVM";
  }
  if (plans_.size() >= kMostPlans) plans_.clear();
  return *plans_.emplace(key, std::move(plan)).first->second;
}

void LtProducts::Run(const ProductForm& form, const ProductData& data, void* stream) {
  Plan& plan = FindPlan(form, data);
  if (data.bias != nullptr) plan.Set(kCublasltMatmulDescBiasPointer, &data.bias, sizeof(data.bias));
  const double scales[] = {1.0, form.adds ? 1.0 : 0.0};
  const float single_scales[] = {1.0F, form.adds ? 1.0F : 0.0F};
  const bool is_double = form.d.type == kCudaR64f;
  const void* alpha = is_double ? static_cast<const void*>(&scales[0]) : &single_scales[0];
  const void* beta = is_double ? static_cast<const void*>(&scales[1]) : &single_scales[1];
  const size_t bytes = plan.chosen.workspaceSize;
  void* workspace = Workspace(bytes, stream);
  const int status = CublasLt().cublasLtMatmul(handle_, plan.descriptor, alpha, data.a, plan.a,
                                               data.b, plan.b, beta, data.c, plan.d, data.d, plan.d,
                                               &plan.chosen.algo, workspace, bytes, stream);
  if (status != kCublasStatusSuccess) CheckCublasLt(status, Describe(form));
}

}  // namespace distir::runtime::cublaslt
