// distir.runtime.cublaslt(a, b, "bsd,dn->bsn", "bias add relu", bias, addend, out): a contraction
// of two tensors of a worker's GPU, enqueued on the worker's stream.
#include "runtime/kernels/contraction.h"

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "runtime/communicators/nccl/library.h"
#include "runtime/cublaslt/products.h"
#include "runtime/kernels/einsum.h"
#include "runtime/kernels/strided_copy.h"
#include "runtime/session/worker_context.h"
#include "support/error.h"
#include "support/functions.h"

namespace distir::runtime::cublaslt {

namespace ffi = tvm::ffi;

namespace {

using ffi::TensorView;

int TypeOf(DLDataType dtype) {
  if (dtype.lanes == 1 && dtype.code == kDLBfloat && dtype.bits == 16) return kCudaR16bf;
  if (dtype.lanes == 1 && dtype.code == kDLFloat) {
    if (dtype.bits == 16) return kCudaR16f;
    if (dtype.bits == 32) return kCudaR32f;
    if (dtype.bits == 64) return kCudaR64f;
  }
  TVM_FFI_THROW(ValueError) << "products by cuBLASLt are of float16, bfloat16, float32 or float64, "
                            << "not of " << ffi::DLDataTypeToString(dtype);
  TVM_FFI_UNREACHABLE();
}

/*! \brief Terms that are added to a product, and the activation. */
struct Terms {
  std::optional<TensorView> bias, addend;
  int activation = 0;
};

Terms ReadTerms(const ffi::PackedArgs& args) {
  constexpr int kFirstTerm = 4;
  Terms terms;
  std::istringstream text(std::string(args[3].cast<ffi::String>()));
  int next = kFirstTerm;
  for (std::string word; text >> word;) {
    if (word == "bias") terms.bias = args[next++].cast<TensorView>();
    if (word == "add") terms.addend = args[next++].cast<TensorView>();
    if (word == "relu") terms.activation = kCublasltEpilogueRelu;
    if (word == "gelu_tanh") terms.activation = kCublasltEpilogueGelu;
  }
  DISTIR_REQUIRE(next + 1 == args.size(), ValueError)
      << "distir.runtime.cublaslt has " << args.size() << " arguments, and needs " << next + 1;
  return terms;
}

/*! \brief A matrix whose axes have these extents and strides, in memory; one stride is 1, or an
 * extent is. Not transposed if the rows can be innermost. */
Matrix MatrixOf(const ContractionAxis& rows, const ContractionAxis& cols, Operand operand) {
  const int64_t row_stride = rows.strides[operand], col_stride = cols.strides[operand];
  Matrix matrix;
  matrix.transposed = row_stride != 1 && (col_stride == 1 || rows.extent != 1);
  matrix.rows = matrix.transposed ? cols.extent : rows.extent;
  matrix.cols = matrix.transposed ? rows.extent : cols.extent;
  matrix.ld = std::max(matrix.transposed ? row_stride : col_stride, matrix.rows);
  return matrix;
}

/*! \brief Offsets of the tensors at a step of the outer loops over products. */
std::array<int64_t, 3> OffsetsOf(const std::vector<ContractionAxis>& loops, int64_t index) {
  std::array<int64_t, 3> offsets = {0, 0, 0};
  for (size_t i = loops.size(); i-- > 0;) {
    const int64_t position = index % loops[i].extent;
    index /= loops[i].extent;
    for (Operand operand : {kLeft, kRight, kResult})
      offsets[operand] += position * loops[i].strides[operand];
  }
  return offsets;
}

LtProducts& ProductsOfWorker(WorkerContext* worker) {
  if (worker->products == nullptr)
    worker->products = std::make_shared<LtProducts>(worker->memory().device_id);
  return *worker->products;
}

/*! \brief The stream of the worker, whose device becomes the current one. */
void* EnterStream(const DLDevice& device) {
  int current = -1;
  nccl::CheckCuda(nccl::Cuda().cudaGetDevice(&current), "cudaGetDevice");
  if (current != device.device_id)
    nccl::CheckCuda(nccl::Cuda().cudaSetDevice(device.device_id), "cudaSetDevice");
  return TVMFFIEnvGetStream(device.device_type, device.device_id);
}

void Contract(ffi::PackedArgs args, ffi::Any*) {
  constexpr int kFewestArguments = 5;
  DISTIR_REQUIRE(args.size() >= kFewestArguments, ValueError)
      << "distir.runtime.cublaslt has " << args.size() << " arguments";
  const Terms terms = ReadTerms(args);
  const auto subscripts = args[2].cast<ffi::String>();
  const std::array<TensorView, 3> tensors = {args[0].cast<TensorView>(), args[1].cast<TensorView>(),
                                             args[args.size() - 1].cast<TensorView>()};
  const TensorView& out = tensors[kResult];
  WorkerContext& worker = WorkerContext::Current();
  DISTIR_REQUIRE(worker.memory().device_type == kDLCUDA, RuntimeError)
      << "the program computes products by cuBLASLt, and its worker has no CUDA device";
  const std::vector<ContractionAxis> axes = ReadContractionAxes(subscripts, tensors);
  if (out.numel() == 0) return;
  void* stream = EnterStream(worker.memory());
  if (tensors[kLeft].numel() == 0 || tensors[kRight].numel() == 0) {
    const auto bytes = static_cast<size_t>(out.numel()) * out.dtype().bits / 8;
    nccl::CheckCuda(nccl::Cuda().cudaMemsetAsync(DataOf(out), 0, bytes, stream), "cudaMemsetAsync");
    return;
  }
  ContractionPlan plan = PlanContraction(axes, /*may_copy=*/false);
  DISTIR_REQUIRE(plan.is_copied == (std::array<bool, 3>{}) && plan.sums.empty(), ValueError)
      << "einsum \"" << std::string(subscripts) << "\" is no product of matrices as they lie in "
      << "memory; cuBLASLt does not compute it";

  // Row-major tensors are column-major matrices with the dimensions swapped: what is innermost in
  // the result is the rows. A bias has one number for each of them.
  const std::string text = subscripts;
  const std::string left = text.substr(0, text.find(','));
  bool rows_are_left = plan.n.strides[kResult] != 1 && plan.n.extent != 1;
  if (plan.m.strides[kResult] == 1 && plan.m.extent != 1) rows_are_left = true;
  if (terms.bias.has_value()) rows_are_left = left.find(text.back()) != std::string::npos;
  const ContractionAxis& rows = rows_are_left ? plan.m : plan.n;
  const ContractionAxis& cols = rows_are_left ? plan.n : plan.m;
  const Operand first = rows_are_left ? kLeft : kRight;
  const Operand second = rows_are_left ? kRight : kLeft;

  ProductForm form;
  form.a = MatrixOf(rows, plan.k, first);
  form.b = MatrixOf(plan.k, cols, second);
  TVM_FFI_ICHECK(rows.extent == 1 || rows.strides[kResult] == 1) << text << " has no rows";
  form.d.rows = rows.extent;
  form.d.cols = cols.extent;
  form.d.ld = std::max(cols.strides[kResult], rows.extent);
  form.a.type = TypeOf(tensors[first].dtype());
  form.b.type = TypeOf(tensors[second].dtype());
  form.d.type = TypeOf(out.dtype());
  // The largest batch is part of the call.
  std::vector<ContractionAxis>& loops = plan.loops;
  const auto largest = std::max_element(
      loops.begin(), loops.end(), [](const auto& a, const auto& b) { return a.extent < b.extent; });
  if (largest != loops.end()) {
    form.batch = largest->extent;
    form.a.batch_stride = largest->strides[first];
    form.b.batch_stride = largest->strides[second];
    form.d.batch_stride = largest->strides[kResult];
    loops.erase(largest);
  }
  if (terms.bias.has_value()) form.epilogue = kCublasltEpilogueBias;
  if (terms.activation != 0) {
    form.epilogue = terms.bias.has_value() ? form.epilogue | terms.activation : terms.activation;
  }
  form.adds = terms.addend.has_value();

  const auto at = [](const TensorView& tensor, int64_t offset) -> char* {
    const int64_t bytes = tensor.dtype().bits / 8;
    return const_cast<char*>(reinterpret_cast<const char*>(DataOf(tensor))) + offset * bytes;
  };
  int64_t calls = 1;
  for (const ContractionAxis& loop : loops) calls *= loop.extent;
  LtProducts& products = ProductsOfWorker(&worker);
  for (int64_t call = 0; call < calls; ++call) {
    const auto offsets = OffsetsOf(loops, call);
    ProductData data{};
    data.a = at(tensors[first], offsets[first]);
    data.b = at(tensors[second], offsets[second]);
    data.d = at(out, offsets[kResult]);
    data.c = terms.addend.has_value() ? at(*terms.addend, offsets[kResult]) : data.d;
    data.bias = terms.bias.has_value() ? at(*terms.bias, 0) : nullptr;
    products.Run(form, data, stream);
  }
}

TVM_FFI_STATIC_INIT_BLOCK() {
  support::Functions().def_packed("distir.runtime.cublaslt", Contract);
}

}  // namespace

}  // namespace distir::runtime::cublaslt
