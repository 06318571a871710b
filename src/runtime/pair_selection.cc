/*!
 * \file runtime/pair_selection.cc
 * \brief distir.runtime.select_pairs, place_pairs, gather_rows and scatter_rows: pairs of a token
 * and one of the worker's experts whose weight is not zero (dialect/operators/pair_selection.h).
 *
 * Example: 3 tokens, 2 own experts and the weights [[.5, 0], [.1, .9], [0, 0]]: the pairs (0, 0),
 * (1, 0) and (1, 1), in this order, and the counts [[2, 1]]. Token 2 is asked of nobody.
 */
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/string.h>

#include <cstring>
#include <vector>

#include "abi/collective.h"
#include "runtime/asked_rows.h"
#include "runtime/kernels/format_list.h"
#include "runtime/kernels/strided_copy.h"
#include "runtime/kernels/zero_test.h"
#include "runtime/row_exchange.h"
#include "support/dtypes.h"
#include "support/functions.h"

namespace distir::runtime {

namespace ffi = tvm::ffi;
using ffi::String;
using ffi::TensorView;

namespace {

void Require(bool fits, const char* operation, const TensorView& x, const TensorView& weights,
             const TensorView& out) {
  for (const TensorView& each : {x, weights, out})
    fits = fits && each.device().device_type == kDLCPU && each.IsContiguous();
  if (!fits) {
    TVM_FFI_THROW(ValueError) << operation << ": rows of shape " << FormatList(x.shape())
                              << ", weights of shape " << FormatList(weights.shape())
                              << " and a result of shape " << FormatList(out.shape())
                              << " do not fit together, or are not in host memory";
  }
}

/*! \brief Weights (tokens, experts) by what of them is zero. */
class Weights {
 public:
  explicit Weights(const TensorView& weights)
      : tokens(weights.size(0)),
        experts(weights.size(1)),
        data_(DataOf(weights)),
        is_zero_(weights.dtype()) {}

  bool Has(int64_t token, int64_t expert) const {
    return !is_zero_(data_ + (token * experts + expert) * is_zero_.bytes);
  }
  bool HasToken(int64_t token) const {
    for (int64_t e = 0; e < experts; ++e)
      if (Has(token, e)) return true;
    return false;
  }

  const int64_t tokens, experts;

 private:
  const char* data_;
  ZeroTest is_zero_;
};

void SelectPairs(TensorView x, TensorView weights, TensorView rows, TensorView counts) {
  Require(x.ndim() == 3 && weights.ndim() == 2 && rows.ndim() == 2 && counts.ndim() == 2 &&
              (x.size(0) == 1 || x.size(0) == weights.size(0)) &&
              (x.size(1) == 1 || x.size(1) == weights.size(1)) && x.size(2) == rows.size(1) &&
              rows.size(0) == weights.numel() && x.dtype() == rows.dtype() &&
              counts.dtype() == kInt64 && counts.numel() == weights.size(1) &&
              counts.IsContiguous(),
          abi::NameOf(abi::Collective::kSelectPairs), x, weights, rows);
  const Weights all(weights);
  const int64_t row_bytes = x.size(2) * ElementBytes(x.dtype());
  const int64_t of_expert = x.size(1) == 1 ? 0 : row_bytes;
  const int64_t of_token = x.size(0) == 1 ? 0 : x.size(1) * row_bytes;
  auto* count_of = reinterpret_cast<int64_t*>(DataOf(counts));
  char* to = DataOf(rows);
  for (int64_t e = 0; e < all.experts; ++e) {
    count_of[e] = 0;
    for (int64_t t = 0; t < all.tokens; ++t) {
      if (!all.Has(t, e)) continue;
      std::memcpy(to, DataOf(x) + t * of_token + e * of_expert, row_bytes);
      to += row_bytes;
      ++count_of[e];
    }
  }
  std::memset(to, 0, DataOf(rows) + rows.numel() * ElementBytes(rows.dtype()) - to);
}

void PlacePairs(TensorView rows, TensorView weights, TensorView out) {
  Require(rows.ndim() == 2 && weights.ndim() == 2 && out.ndim() == 2 &&
              rows.size(0) == weights.numel() && rows.size(1) == out.size(1) &&
              out.size(0) == weights.size(0) && rows.dtype() == out.dtype(),
          abi::NameOf(abi::Collective::kPlacePairs), rows, weights, out);
  const Weights all(weights);
  const int64_t row_bytes = rows.size(1) * ElementBytes(rows.dtype());
  std::vector<std::vector<const void*>> parts(all.tokens);
  const char* from = DataOf(rows);
  for (int64_t e = 0; e < all.experts; ++e) {
    for (int64_t t = 0; t < all.tokens; ++t) {
      if (!all.Has(t, e)) continue;
      parts[t].push_back(from);
      from += row_bytes;
    }
  }
  AddRowsUp(parts, out);
}

/*! \brief Checks the arguments of both. \param whole (T, D). \param own (T / members, D). */
AskedRows Asked(const char* operation, const TensorView& whole, const TensorView& own,
                const TensorView& weights, Group* group) {
  Require(whole.ndim() == 2 && own.ndim() == 2 && weights.ndim() == 2 &&
              whole.size(0) == own.size(0) * group->size() && whole.size(0) == weights.size(0) &&
              whole.size(1) == own.size(1) && whole.dtype() == own.dtype(),
          operation, whole, weights, own);
  const Weights all(weights);
  return AskedRows(all.tokens, [&all](int64_t token) { return all.HasToken(token); }, group);
}

void GatherRows(TensorView x, TensorView weights, const String& groups, int64_t /*choices*/,
                TensorView out) {
  Group* group = WorkerContext::Current().FindGroup(groups);
  const AskedRows asked = Asked(abi::NameOf(abi::Collective::kGatherRows), out, x, weights, group);
  const ffi::Tensor rows = asked.Fetch(abi::Collective::kGatherRows, groups, x);
  const int64_t row_bytes = x.size(1) * ElementBytes(x.dtype());
  std::memset(DataOf(out), 0, out.size(0) * row_bytes);
  for (size_t i = 0; i < asked.mine().size(); ++i) {
    std::memcpy(DataOf(out) + asked.mine()[i] * row_bytes, DataOf(rows) + i * row_bytes, row_bytes);
  }
}

void ScatterRows(TensorView x, TensorView weights, const String& groups, int64_t /*choices*/,
                 TensorView out) {
  Group* group = WorkerContext::Current().FindGroup(groups);
  const AskedRows asked = Asked(abi::NameOf(abi::Collective::kScatterRows), x, out, weights, group);
  const int64_t row_bytes = x.size(1) * ElementBytes(x.dtype());
  const ffi::Tensor rows = NewRows(static_cast<int64_t>(asked.mine().size()), x);
  for (size_t i = 0; i < asked.mine().size(); ++i) {
    std::memcpy(DataOf(rows) + i * row_bytes, DataOf(x) + asked.mine()[i] * row_bytes, row_bytes);
  }
  asked.Deliver(abi::Collective::kScatterRows, groups, rows, out);
}

TVM_FFI_STATIC_INIT_BLOCK() {
  support::Functions()
      .def(abi::Builtin(abi::Collective::kSelectPairs).c_str(), SelectPairs)
      .def(abi::Builtin(abi::Collective::kPlacePairs).c_str(), PlacePairs)
      .def(abi::Builtin(abi::Collective::kGatherRows).c_str(), GatherRows)
      .def(abi::Builtin(abi::Collective::kScatterRows).c_str(), ScatterRows);
}

}  // namespace

}  // namespace distir::runtime
