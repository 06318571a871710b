// distir.runtime.grouped_matmul(rows, experts, counts, transposed, room, out): rows that are
// ordered by expert, each by the matrix of its expert. Only the rows that counts state are
// computed, those behind them are zeros.
#include <tvm/ffi/error.h>
#include <tvm/ffi/string.h>

#include <cstring>
#include <vector>

#include "abi/collective.h"
#include "runtime/kernels/einsum.h"
#include "runtime/kernels/format_list.h"
#include "runtime/kernels/strided_copy.h"
#include "support/functions.h"

namespace distir::runtime {

namespace ffi = tvm::ffi;
using ffi::TensorView;

namespace {

/*! \brief Consecutive parts of a contiguous tensor along its first dimension. */
class Part {
 public:
  Part(const TensorView& whole, int64_t begin, std::vector<int64_t> shape)
      : shape_(std::move(shape)) {
    const int64_t row_bytes =
        whole.size(0) == 0 ? 0 : whole.numel() / whole.size(0) * ElementBytes(whole.dtype());
    tensor_.data = DataOf(whole) + begin * row_bytes;
    tensor_.device = whole.device();
    tensor_.ndim = static_cast<int32_t>(shape_.size());
    tensor_.dtype = whole.dtype();
    tensor_.shape = shape_.data();
    strides_.assign(shape_.size(), 1);
    for (size_t d = shape_.size(); d-- > 1;) strides_[d - 1] = strides_[d] * shape_[d];
    tensor_.strides = strides_.data();
    tensor_.byte_offset = 0;
  }
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;

  TensorView view() const { return TensorView(&tensor_); }

 private:
  std::vector<int64_t> shape_, strides_;
  DLTensor tensor_;
};

void Check(const TensorView& rows, const TensorView& experts, const TensorView& counts,
           bool transposed, const TensorView& out) {
  for (const TensorView& each : {rows, experts, counts, out}) {
    if (each.device().device_type != kDLCPU || !each.IsContiguous())
      TVM_FFI_THROW(ValueError) << "grouped_matmul: it needs contiguous tensors in host memory";
  }
  const bool fits =
      rows.ndim() == 2 && experts.ndim() == 3 && counts.ndim() == 2 && out.ndim() == 2 &&
      rows.size(0) == out.size(0) && rows.size(1) == experts.size(transposed ? 2 : 1) &&
      out.size(1) == experts.size(transposed ? 1 : 2) && counts.size(1) == experts.size(0) &&
      counts.dtype().code == kDLInt && counts.dtype().bits == 64;
  if (!fits) {
    TVM_FFI_THROW(ValueError) << "grouped_matmul: rows of shape " << FormatList(rows.shape())
                              << ", experts of shape " << FormatList(experts.shape())
                              << ", counts of shape " << FormatList(counts.shape())
                              << " and out of shape " << FormatList(out.shape())
                              << " do not fit together";
  }
}

void GroupedMatmul(TensorView rows, TensorView experts, TensorView counts, int64_t transposed,
                   double /*room*/, TensorView out) {
  Check(rows, experts, counts, transposed != 0, out);
  const int64_t contracted = rows.size(1), columns = out.size(1);
  const ffi::String subscripts = transposed != 0 ? "ab,cb->ac" : "ab,bc->ac";
  const auto* count_of = reinterpret_cast<const int64_t*>(DataOf(counts));
  int64_t begin = 0;
  for (int64_t expert = 0; expert < experts.size(0); ++expert) {
    int64_t count = 0;
    for (int64_t source = 0; source < counts.size(0); ++source)
      count += count_of[source * experts.size(0) + expert];
    if (count < 0 || begin + count > rows.size(0)) {
      TVM_FFI_THROW(ValueError) << "grouped_matmul: counts state more rows than the "
                                << rows.size(0) << " that there are";
    }
    if (count == 0) continue;
    const Part mine(rows, begin, {count, contracted});
    const Part result(out, begin, {count, columns});
    const Part matrix(experts, expert, {experts.size(1), experts.size(2)});
    Einsum(mine.view(), matrix.view(), subscripts, result.view());
    begin += count;
  }
  const int64_t row_bytes = columns * ElementBytes(out.dtype());
  std::memset(DataOf(out) + begin * row_bytes, 0, (out.size(0) - begin) * row_bytes);
}

TVM_FFI_STATIC_INIT_BLOCK() {
  support::Functions().def(abi::Builtin(abi::Collective::kGroupedMatmul).c_str(), GroupedMatmul);
}

}  // namespace

}  // namespace distir::runtime
