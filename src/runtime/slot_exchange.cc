/*!
 * \file runtime/slot_exchange.cc
 * \brief distir.runtime.dispatch_slots and distir.runtime.combine_slots: products with a mask of
 * which most is zero, by the rows that are not (asked_rows.h).
 *
 * Example: 4 slots on 2 devices, and on device 0 a mask with something in slots 1 and 2. It keeps
 * row 1, which is of its own slots, and sends row 2. Combined rows take the opposite way: device 0
 * asks for row 2.
 */
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/string.h>

#include <cstring>
#include <vector>

#include "abi/collective.h"
#include "runtime/asked_rows.h"
#include "runtime/kernels/einsum.h"
#include "runtime/kernels/format_list.h"
#include "runtime/kernels/strided_copy.h"
#include "runtime/kernels/zero_test.h"
#include "runtime/row_exchange.h"
#include "runtime/session/worker_context.h"
#include "support/functions.h"

namespace distir::runtime {

namespace ffi = tvm::ffi;
using ffi::String;
using ffi::TensorView;

namespace {

/*! \brief Checks both's arguments. \param tokens (t, D). \param slots (s, D), the worker's own. */
void Check(const char* operation, const TensorView& tokens, const TensorView& slots,
           const TensorView& mask, const Group& group) {
  bool fits = true;
  for (const TensorView& each : {tokens, slots, mask}) {
    fits = fits && each.device().device_type == kDLCPU && each.IsContiguous() && each.ndim() == 2 &&
           each.dtype() == mask.dtype();
  }
  fits = fits && tokens.size(0) == mask.size(0) && tokens.size(1) == slots.size(1) &&
         mask.size(1) == slots.size(0) * group.size();
  if (!fits) {
    TVM_FFI_THROW(ValueError) << operation << " on device " << WorkerContext::Current().device_id()
                              << ": tokens of shape " << FormatList(tokens.shape())
                              << ", slots of shape " << FormatList(slots.shape())
                              << " and a mask of shape " << FormatList(mask.shape())
                              << " do not fit a group of " << group.size()
                              << ", or are no matrices of one dtype in host memory";
  }
}

/*! \brief The slots that have something, by the mask of this worker and of others. */
AskedRows UsedSlots(const TensorView& mask, Group* group) {
  const int64_t num = mask.size(1), element = ElementBytes(mask.dtype());
  std::vector<char> is_used(num, 0);
  const ZeroTest is_zero(mask.dtype());
  const char* data = DataOf(mask);
  for (int64_t i = 0; i < mask.numel(); ++i) {
    if (!is_zero(data + i * element)) is_used[i % num] = 1;
  }
  return AskedRows(num, [&is_used](int64_t slot) { return is_used[slot] != 0; }, group);
}

/*! \brief The columns of the mask that are used, side by side. */
ffi::Tensor ColumnsOf(const TensorView& mask, const std::vector<int64_t>& slots) {
  const int64_t element = ElementBytes(mask.dtype()), num = static_cast<int64_t>(slots.size());
  ffi::Tensor columns = WorkerContext::Current().communicator().NewTensor(
      ffi::Shape({mask.size(0), num}), mask.dtype());
  char* to = DataOf(columns);
  for (int64_t t = 0; t < mask.size(0); ++t) {
    const char* from = DataOf(mask) + t * mask.size(1) * element;
    for (int64_t slot : slots) {
      std::memcpy(to, from + slot * element, element);
      to += element;
    }
  }
  return columns;
}

void DispatchSlots(TensorView x, TensorView mask, const String& groups, int64_t /*choices*/,
                   TensorView out) {
  Group* group = WorkerContext::Current().FindGroup(groups);
  Check(abi::NameOf(abi::Collective::kDispatchSlots), x, out, mask, *group);
  const AskedRows used = UsedSlots(mask, group);
  const ffi::Tensor rows = NewRows(static_cast<int64_t>(used.mine().size()), x);
  if (!used.mine().empty()) {
    const ffi::Tensor columns = ColumnsOf(mask, used.mine());
    Einsum(columns, x, "ts,td->sd", rows);
  }
  used.Deliver(abi::Collective::kDispatchSlots, groups, rows, out);
}

void CombineSlots(TensorView y, TensorView mask, const String& groups, int64_t /*choices*/,
                  TensorView out) {
  Group* group = WorkerContext::Current().FindGroup(groups);
  Check(abi::NameOf(abi::Collective::kCombineSlots), out, y, mask, *group);
  const AskedRows used = UsedSlots(mask, group);
  const ffi::Tensor rows = used.Fetch(abi::Collective::kCombineSlots, groups, y);
  if (used.mine().empty()) {
    std::memset(DataOf(out), 0, out.numel() * ElementBytes(out.dtype()));
  } else {
    const ffi::Tensor columns = ColumnsOf(mask, used.mine());
    Einsum(columns, rows, "ts,sd->td", out);
  }
}

TVM_FFI_STATIC_INIT_BLOCK() {
  support::Functions()
      .def(abi::Builtin(abi::Collective::kDispatchSlots).c_str(), DispatchSlots)
      .def(abi::Builtin(abi::Collective::kCombineSlots).c_str(), CombineSlots);
}

}  // namespace

}  // namespace distir::runtime
