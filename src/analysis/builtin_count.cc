// Counts operations and bytes of the runtime's packed functions (fused norm, einsum, convolution,
// grouped product, slices).
#include "analysis/builtin_count.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <unordered_map>

#include "ir/leaves.h"
#include "ir/symbolic.h"
#include "ir/tir_node.h"

namespace distir::analysis {

namespace {

constexpr const char* kEinsum = "einsum";
constexpr const char* kConvolution = "convolution";

const ir::NodeArray<ir::Expr>& ShapeOf(const ir::Expr& tensor) {
  return ir::ShapeOf(ir::TensorType::Cast(tensor.ty()));
}

/*! \brief The residual sum and the norm: s = x + residual, s * rsqrt(mean(s * s) + e) * weight. */
KernelCount CountFusedNorm(const ir::NodeArray<ir::Expr>& args) {
  KernelCount count;
  const ir::TensorType type = ir::TensorType::Cast(args[0].ty());
  const double bytes = BytesOf(type), elements = bytes / ir::BytesPerElement(type);
  const ir::NodeArray<ir::Expr>& shape = ir::ShapeOf(type);
  const double columns = static_cast<double>(ir::StaticDim(shape[shape.size() - 1]));
  const double rows = elements / columns;
  count.operations[{type.dtype().code, type.dtype().bits}] = 5 * elements + 2 * rows;
  count.transcendentals = rows;
  count.bytes_read = {bytes, bytes, bytes / rows};
  count.bytes_written = {bytes, bytes};
  return count;
}

KernelCount CountSlice(const ir::Type& result) {
  KernelCount count;
  count.bytes_read = {BytesOf(result)};
  count.bytes_written = {BytesOf(result)};
  return count;
}

/*! \brief grouped_matmul(rows, experts, counts, transposed, room, out), where experts are chosen
 * equally often: there is room for so many times the rows that a device has. */
KernelCount CountGroupedMatmul(const ir::NodeArray<ir::Expr>& args, const ir::Type& result) {
  KernelCount count;
  const auto rows = ir::TensorType::Cast(args[0].ty()), out = ir::TensorType::Cast(result);
  const double room = ir::FloatImm::Cast(args[4]).value();
  const int64_t contracted = ir::StaticDim(ir::ShapeOf(rows)[1]);
  const double made = BytesOf(out) / ir::BytesPerElement(out) / room;
  if (ir::StaticDim(ir::ShapeOf(rows)[0]) < 0 || contracted < 0)
    count.unknown = "a size that depends on data";
  count.operations[{rows.dtype().code, rows.dtype().bits}] =
      2 * made * static_cast<double>(contracted);
  count.bytes_read = {BytesOf(rows) / room, BytesOf(args[1].ty())};
  count.bytes_written = {BytesOf(out)};
  return count;
}

/*! \brief Products and sums over all labels: einsum(a, b, "ik,kj->ij", out). */
KernelCount CountEinsum(const ir::NodeArray<ir::Expr>& args, const ir::Type& result) {
  KernelCount count;
  std::string subscripts;
  for (const ir::Expr& arg : args) {
    if (subscripts.empty()) subscripts = StringArgument(arg);
  }
  std::unordered_map<char, double> sizes;
  size_t operand = 0, dim = 0;
  for (char label : subscripts.substr(0, subscripts.find('-'))) {
    if (label == ',') {
      ++operand;
      dim = 0;
      continue;
    }
    const int64_t size = ir::StaticDim(ShapeOf(args[operand])[dim++]);
    if (size < 0) count.unknown = "a size that depends on data";
    sizes[label] = std::max(sizes[label], static_cast<double>(size));
  }
  double products = 2;
  for (const auto& [label, size] : sizes) products *= size;
  const DLDataType dtype = ir::TensorType::Cast(args[0].ty()).dtype();
  count.operations[{dtype.code, dtype.bits}] = products;
  count.bytes_read = {BytesOf(args[0].ty()), BytesOf(args[1].ty())};
  count.bytes_written = {BytesOf(result)};
  return count;
}

/*! \brief Products and sums of a weight with each window: convolution(data, weight,
 * "NCHW,OIHW->..", out). Without those that padding saves. */
KernelCount CountConvolution(const ir::NodeArray<ir::Expr>& args, const ir::Type& result) {
  KernelCount count;
  const std::string text = StringArgument(args[2]);
  const bool is_transposed = text.find(" transposed") != std::string::npos;
  const std::string kernel = text.substr(text.find(',') + 1);
  // Each element of a result is a sum over all of the weight but its output channels; each element
  // of the data of a transposed one has a product with all but its input channels.
  const size_t shared = kernel.find(is_transposed ? 'I' : 'O');
  double products = 2;
  const auto multiply = [&](const ir::NodeArray<ir::Expr>& shape, size_t without) {
    for (size_t d = 0; d < shape.size(); ++d) {
      const int64_t size = ir::StaticDim(shape[d]);
      if (size < 0) count.unknown = "a size that depends on data";
      if (size >= 0 && d != without) products *= static_cast<double>(size);
    }
  };
  multiply(ShapeOf(args[1]), shared);
  multiply(is_transposed ? ShapeOf(args[0]) : ir::ShapeOf(ir::TensorType::Cast(result)),
           std::string::npos);
  const DLDataType dtype = ir::TensorType::Cast(args[0].ty()).dtype();
  count.operations[{dtype.code, dtype.bits}] = products;
  count.bytes_read = {BytesOf(args[0].ty()), BytesOf(args[1].ty())};
  count.bytes_written = {BytesOf(result)};
  return count;
}

}  // namespace

double BytesOf(const ir::Type& type) {
  double bytes = 0;
  ir::ForEachLeaf(type, [&](const ir::Type& leaf) {
    const ir::TensorType tensor = ir::TensorType::Cast(leaf);
    if (!tensor.defined()) return;
    double size = ir::BytesPerElement(tensor);
    if (ir::HasKnownShape(tensor)) {
      for (const ir::Expr& dim : ir::ShapeOf(tensor)) {
        const int64_t extent = ir::StaticDim(dim);
        if (extent >= 0) size *= static_cast<double>(extent);
      }
    }
    bytes += size;
  });
  return bytes;
}

std::string StringArgument(const ir::Expr& expr) {
  auto text = ir::StringImm::Cast(expr);
  return text.defined() ? text.value() : std::string();
}

bool IsComputed(const std::string& name) {
  const abi::CollectiveRecord* record = abi::FindCollective(name);
  return name == kEinsum || name == kConvolution ||
         (record != nullptr && (record->collective == abi::Collective::kSlice ||
                                record->collective == abi::Collective::kGroupedMatmul));
}

KernelCount CountBuiltin(const std::string& name, const ir::NodeArray<ir::Expr>& args,
                         const ir::Type& result) {
  if (name == kEinsum) return CountEinsum(args, result);
  if (name == kConvolution) return CountConvolution(args, result);
  const abi::CollectiveRecord* record = abi::FindCollective(name);
  TVM_FFI_ICHECK(record != nullptr) << name;
  if (record->collective == abi::Collective::kSlice) return CountSlice(result);
  if (record->collective == abi::Collective::kGroupedMatmul)
    return CountGroupedMatmul(args, result);
  TVM_FFI_ICHECK(record->collective == abi::Collective::kAllReduceAddRmsNorm) << name;
  return CountFusedNorm(args);
}

double BytesOfRows(abi::RowCount count, const ir::NodeArray<ir::Expr>& args,
                   const ir::Type& result) {
  const ir::NodeArray<ir::Expr>& shape = ShapeOf(args[0]);
  const auto first = [](const ir::NodeArray<ir::Expr>& sizes) {
    return static_cast<double>(ir::StaticDim(sizes[0]));
  };
  const double given = first(shape), made = first(ir::ShapeOf(ir::TensorType::Cast(result)));
  double rows = first(ShapeOf(args[1])) * static_cast<double>(ir::StaticDim(args[3]));
  if (count == abi::RowCount::kPairs) {
    const double members = std::max(given / made, made / given);
    rows = std::min(rows / members, first(ShapeOf(args[1])));
  } else {
    rows = std::min(rows, static_cast<double>(ir::StaticDim(ShapeOf(args[1])[1])));
  }
  return BytesOf(args[0].ty()) / given * rows;
}

}  // namespace distir::analysis
