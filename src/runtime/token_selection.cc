/*!
 * \file runtime/token_selection.cc
 * \brief distir.runtime.select_tokens and distir.runtime.place_tokens: of rows that all devices
 * have, each takes those of its own experts, and puts what it has made of them in their places.
 *
 * Example: 4 experts on 2 devices, and ids [3, 0, 2, 3] on both. Device 1 has the experts from 2
 * on: it takes the rows (2, 0, 3), with the counts 1 and 2, and zeros stay in place of row 1.
 */
#include <tvm/ffi/error.h>

#include <cstring>
#include <vector>

#include "abi/collective.h"
#include "runtime/expert_order.h"
#include "runtime/kernels/format_list.h"
#include "runtime/kernels/strided_copy.h"
#include "runtime/row_exchange.h"
#include "support/dtypes.h"
#include "support/functions.h"

namespace distir::runtime {

namespace ffi = tvm::ffi;
using ffi::TensorView;

namespace {

void Check(const char* operation, const TensorView& all, const TensorView& ids,
           const TensorView& first, const TensorView& own, const TensorView& counts) {
  bool fits = AreIds(ids) && all.ndim() >= 1 && own.ndim() >= 1 && all.dtype() == own.dtype() &&
              all.size(0) == ids.size(0) && own.size(0) == ids.size(0) &&
              WidthOf(all) == WidthOf(own) && first.numel() == 1 && first.dtype() == kInt64 &&
              counts.ndim() == 2 && counts.numel() > 0 && counts.dtype() == kInt64;
  for (const TensorView& each : {all, ids, first, own, counts})
    fits = fits && each.device().device_type == kDLCPU && each.IsContiguous();
  if (!fits) {
    TVM_FFI_THROW(ValueError) << operation << ": rows of shape " << FormatList(all.shape())
                              << ", their ids of shape " << FormatList(ids.shape())
                              << ", rows of own experts of shape " << FormatList(own.shape())
                              << " and counts of shape " << FormatList(counts.shape())
                              << " do not fit together, or are not in host memory";
  }
}

/*! \brief The rows of the experts that a worker has. */
struct OwnRows {
  OwnRows(const char* operation, const TensorView& ids, const TensorView& first,
          const TensorView& counts)
      : order(ids, counts.numel()), expert(reinterpret_cast<const int64_t*>(DataOf(first))[0]) {
    const int64_t experts = counts.size(1);
    if (expert < 0 || expert + experts > counts.numel()) {
      TVM_FFI_THROW(ValueError) << operation << ": " << experts << " experts from " << expert
                                << " on are not among " << counts.numel();
    }
    for (int64_t e = 0; e < expert; ++e) begin += order.counts[e];
    for (int64_t e = 0; e < experts; ++e) number += order.counts[expert + e];
  }

  ExpertOrder order;
  int64_t expert;                 // the first one
  int64_t begin = 0, number = 0;  // in the order
};

void SelectTokens(TensorView x, TensorView ids, TensorView first, TensorView rows,
                  TensorView counts) {
  const char* operation = abi::NameOf(abi::Collective::kSelectTokens);
  Check(operation, x, ids, first, rows, counts);
  const OwnRows own(operation, ids, first, counts);
  const int64_t row_bytes = WidthOf(x) * ElementBytes(x.dtype());
  for (int64_t i = 0; i < own.number; ++i) {
    std::memcpy(DataOf(rows) + i * row_bytes, DataOf(x) + own.order.rows[own.begin + i] * row_bytes,
                row_bytes);
  }
  std::memset(DataOf(rows) + own.number * row_bytes, 0, (rows.size(0) - own.number) * row_bytes);
  auto* count_of = reinterpret_cast<int64_t*>(DataOf(counts));
  std::memset(count_of, 0, counts.numel() * sizeof(int64_t));
  for (int64_t e = 0; e < counts.size(1); ++e) count_of[e] = own.order.counts[own.expert + e];
}

void PlaceTokens(TensorView y, TensorView ids, TensorView counts, TensorView first,
                 TensorView out) {
  const char* operation = abi::NameOf(abi::Collective::kPlaceTokens);
  Check(operation, out, ids, first, y, counts);
  const OwnRows own(operation, ids, first, counts);
  const int64_t row_bytes = WidthOf(y) * ElementBytes(y.dtype());
  std::memset(DataOf(out), 0, out.size(0) * row_bytes);
  for (int64_t i = 0; i < own.number; ++i) {
    std::memcpy(DataOf(out) + own.order.rows[own.begin + i] * row_bytes, DataOf(y) + i * row_bytes,
                row_bytes);
  }
}

TVM_FFI_STATIC_INIT_BLOCK() {
  support::Functions()
      .def(abi::Builtin(abi::Collective::kSelectTokens).c_str(), SelectTokens)
      .def(abi::Builtin(abi::Collective::kPlaceTokens).c_str(), PlaceTokens);
}

}  // namespace

}  // namespace distir::runtime
