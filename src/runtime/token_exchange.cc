/*!
 * \file runtime/token_exchange.cc
 * \brief distir.runtime.dispatch_tokens and distir.runtime.combine_tokens: rows go to the device of
 * their expert and come back. Their number is known at run time only: the members of a group first
 * tell each other, then each pair moves its rows in one piece.
 *
 * Example: 4 experts on 2 devices, and ids [3, 0, 2, 3] on device 0. It sorts its rows by expert,
 * (1, 2, 0, 3), keeps the first and sends the other three, with the counts 1 of expert 2 and 2 of
 * expert 3. Results come back in the same order.
 */
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/string.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "abi/collective.h"
#include "runtime/expert_order.h"
#include "runtime/kernels/format_list.h"
#include "runtime/kernels/strided_copy.h"
#include "runtime/row_exchange.h"
#include "runtime/session/worker_context.h"
#include "support/dtypes.h"
#include "support/functions.h"

namespace distir::runtime {

namespace ffi = tvm::ffi;
using ffi::String;
using ffi::TensorView;

namespace {

template <typename... Parts>
[[noreturn]] void Fail(const char* operation, const Parts&... parts) {
  std::ostringstream text;
  text << operation << " on device " << WorkerContext::Current().device_id() << ": ";
  (text << ... << parts);
  TVM_FFI_THROW(ValueError) << text.str();
  TVM_FFI_UNREACHABLE();
}

/*! \brief Checks the arguments of both operations before anything is sent. */
void Check(const char* operation, const TensorView& own, const TensorView& ids,
           const TensorView& counts, const TensorView& all, const Group& group) {
  for (const TensorView& each : {own, ids, counts, all}) {
    if (each.device().device_type != kDLCPU) Fail(operation, "it needs tensors in host memory");
    if (!each.IsContiguous())
      Fail(operation, "a tensor of shape ", FormatList(each.shape()), " is not contiguous");
  }
  if (!AreIds(ids))
    Fail(operation, "ids are ", ffi::DLDataTypeToString(ids.dtype()), " of shape ",
         FormatList(ids.shape()), ", not a list of int32 or int64");
  const bool fits = own.ndim() >= 1 && all.ndim() >= 1 && own.dtype() == all.dtype() &&
                    own.size(0) == ids.size(0) && WidthOf(own) == WidthOf(all) &&
                    all.size(0) == own.size(0) * group.size() && counts.ndim() == 2 &&
                    counts.size(0) == group.size() && counts.size(1) > 0 &&
                    counts.dtype() == kInt64;
  if (!fits) {
    Fail(operation, "rows of shape ", FormatList(own.shape()), ", their ids of shape ",
         FormatList(ids.shape()), ", counts of shape ", FormatList(counts.shape()),
         " and rows of all of shape ", FormatList(all.shape()), " do not fit a group of ",
         group.size());
  }
}

int64_t Sum(const std::vector<int64_t>& values) {
  int64_t sum = 0;
  for (int64_t value : values) sum += value;
  return sum;
}

/*! \brief Rows from each member, by the worker's experts; reads the tensor of counts. */
class Received {
 public:
  Received(const char* operation, const TensorView& counts, int64_t room)
      : counts_(reinterpret_cast<const int64_t*>(DataOf(counts))),
        members_(counts.size(0)),
        experts_(counts.size(1)) {
    int64_t total = 0;
    for (int64_t i = 0; i < members_ * experts_; ++i) {
      if (counts_[i] < 0 || counts_[i] > room) Fail(operation, "a count of ", counts_[i], " rows");
      total += counts_[i];
    }
    if (total > room) Fail(operation, total, " rows have room for ", room);
  }

  std::vector<int64_t> ByMember() const {
    std::vector<int64_t> sums(members_, 0);
    for (int64_t m = 0; m < members_; ++m)
      for (int64_t e = 0; e < experts_; ++e) sums[m] += counts_[m * experts_ + e];
    return sums;
  }

  /*! \brief Calls visit(row by expert, row by member, number of rows) for each block of rows. */
  template <typename Visit>
  void ForEachBlock(const Visit& visit) const {
    std::vector<int64_t> by_member(members_, 0);
    for (int64_t m = 1; m < members_; ++m) {
      by_member[m] = by_member[m - 1];
      for (int64_t e = 0; e < experts_; ++e) by_member[m] += counts_[(m - 1) * experts_ + e];
    }
    int64_t by_expert = 0;
    for (int64_t e = 0; e < experts_; ++e) {
      for (int64_t m = 0; m < members_; ++m) {
        const int64_t count = counts_[m * experts_ + e];
        if (count > 0) visit(by_expert, by_member[m], count);
        by_expert += count;
        by_member[m] += count;
      }
    }
  }

 private:
  const int64_t* counts_;
  int64_t members_, experts_;
};

void DispatchTokens(TensorView x, TensorView ids, const String& groups, TensorView rows,
                    TensorView counts) {
  const char* operation = abi::NameOf(abi::Collective::kDispatchTokens);
  WorkerContext& worker = WorkerContext::Current();
  Group* group = worker.FindGroup(groups);
  Check(operation, x, ids, counts, rows, *group);
  const ExpertOrder order(ids, counts.numel());
  ffi::Tensor own_counts = worker.communicator().NewTensor(counts.shape(), kInt64);
  std::copy(order.counts.begin(), order.counts.end(),
            reinterpret_cast<int64_t*>(DataOf(own_counts)));
  worker.communicator().AllToAll(group, own_counts, 0, 0, counts);
  const Received received(operation, counts, rows.size(0));

  const int64_t row_bytes = WidthOf(x) * ElementBytes(x.dtype());
  const ffi::Tensor sorted = NewRows(x.size(0), x);
  for (size_t i = 0; i < order.rows.size(); ++i)
    std::memcpy(DataOf(sorted) + i * row_bytes, DataOf(x) + order.rows[i] * row_bytes, row_bytes);
  const std::vector<int64_t> from = received.ByMember();
  const ffi::Tensor arrived = NewRows(Sum(from), x);
  const int64_t bytes_of_counts =
      counts.numel() / group->size() * (group->size() - 1) * ElementBytes(counts.dtype());
  MoveRows(abi::Collective::kDispatchTokens, groups, *group, sorted, order.ByMember(group->size()),
           arrived, from, bytes_of_counts);
  received.ForEachBlock([&](int64_t by_expert, int64_t by_member, int64_t count) {
    std::memcpy(DataOf(rows) + by_expert * row_bytes, DataOf(arrived) + by_member * row_bytes,
                count * row_bytes);
  });
  const int64_t used = arrived.size(0);
  std::memset(DataOf(rows) + used * row_bytes, 0, (rows.size(0) - used) * row_bytes);
}

void CombineTokens(TensorView y, TensorView ids, TensorView counts, const String& groups,
                   TensorView out) {
  const char* operation = abi::NameOf(abi::Collective::kCombineTokens);
  WorkerContext& worker = WorkerContext::Current();
  Group* group = worker.FindGroup(groups);
  Check(operation, out, ids, counts, y, *group);
  const ExpertOrder order(ids, counts.numel());
  const Received received(operation, counts, y.size(0));

  const int64_t row_bytes = WidthOf(y) * ElementBytes(y.dtype());
  const std::vector<int64_t> back = received.ByMember();
  const ffi::Tensor by_source = NewRows(Sum(back), y);
  received.ForEachBlock([&](int64_t by_expert, int64_t by_member, int64_t count) {
    std::memcpy(DataOf(by_source) + by_member * row_bytes, DataOf(y) + by_expert * row_bytes,
                count * row_bytes);
  });
  const ffi::Tensor sorted = NewRows(out.size(0), out);
  MoveRows(abi::Collective::kCombineTokens, groups, *group, by_source, back, sorted,
           order.ByMember(group->size()), 0);
  for (size_t i = 0; i < order.rows.size(); ++i)
    std::memcpy(DataOf(out) + order.rows[i] * row_bytes, DataOf(sorted) + i * row_bytes, row_bytes);
}

TVM_FFI_STATIC_INIT_BLOCK() {
  support::Functions()
      .def(abi::Builtin(abi::Collective::kDispatchTokens).c_str(), DispatchTokens)
      .def(abi::Builtin(abi::Collective::kCombineTokens).c_str(), CombineTokens);
}

}  // namespace

}  // namespace distir::runtime
