/*!
 * \file runtime/slot_exchange.cc
 * \brief distir.runtime.dispatch_slots and distir.runtime.combine_slots: products with a mask of
 * which most is zero, by the rows that are not. The members of a group tell each other which slots
 * have something, then each pair moves these rows in one piece.
 *
 * Example: 4 slots on 2 devices, and on device 0 a mask with something in slots 1 and 2. It keeps
 * row 1, which is of its own slots, and sends row 2. What is combined comes the other way: device 0
 * asks for row 2.
 */
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/string.h>

#include <cstring>
#include <vector>

#include "runtime/kernels/einsum.h"
#include "runtime/kernels/format_list.h"
#include "runtime/kernels/reduce.h"
#include "runtime/kernels/strided_copy.h"
#include "runtime/row_exchange.h"
#include "runtime/session/worker_context.h"

namespace distir::runtime {

namespace ffi = tvm::ffi;
using ffi::String;
using ffi::TensorView;

namespace {

constexpr DLDataType kInt8{kDLInt, 8, 1};

/*! \brief What both are given. \param tokens (t, D). \param slots (s, D), the worker's own. */
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

/*! \brief Which slots have something, by the mask of this worker and of others. */
class Used {
 public:
  Used(const TensorView& mask, Group* group) : members_(group->size()) {
    const int64_t num = mask.size(1), element = ElementBytes(mask.dtype());
    auto& communicator = WorkerContext::Current().communicator();
    const ffi::Shape shape({members_, num / members_});
    mine_ = communicator.NewTensor(shape, kInt8);
    others_ = communicator.NewTensor(shape, kInt8);
    std::memset(DataOf(mine_), 0, num);
    const ZeroTest is_zero(mask.dtype());
    const char* data = DataOf(mask);
    for (int64_t i = 0; i < mask.numel(); ++i) {
      if (!is_zero(data + i * element)) DataOf(mine_)[i % num] = 1;
    }
    communicator.AllToAll(group, mine_, 0, 0, others_);
  }

  /*! \brief The slots that my mask has, and how many of each member. */
  std::vector<int64_t> Mine() const { return Slots(mine_); }
  std::vector<int64_t> MineByMember() const { return ByMember(mine_); }
  /*! \brief Of my slots those that the masks of others have: member by member. */
  std::vector<int64_t> Others() const { return Slots(others_); }
  std::vector<int64_t> OthersByMember() const { return ByMember(others_); }
  int64_t own_slots() const { return mine_.size(1); }
  int64_t bytes_told() const { return mine_.size(1) * (members_ - 1); }

 private:
  /*! \brief Whether an element is 0 or -0; all bits but the sign of a float are zero then. */
  struct ZeroTest {
    explicit ZeroTest(DLDataType dtype) : bytes(ElementBytes(dtype)) {}
    bool operator()(const char* element) const {
      for (int64_t b = 0; b + 1 < bytes; ++b)
        if (element[b] != 0) return false;
      return (element[bytes - 1] & 0x7f) == 0;
    }
    int64_t bytes;
  };

  static std::vector<int64_t> Slots(const ffi::Tensor& table) {
    std::vector<int64_t> slots;
    for (int64_t i = 0; i < table.numel(); ++i)
      if (DataOf(table)[i] != 0) slots.push_back(i);
    return slots;
  }
  std::vector<int64_t> ByMember(const ffi::Tensor& table) const {
    std::vector<int64_t> sums(members_, 0);
    for (int64_t slot : Slots(table)) ++sums[slot / table.size(1)];
    return sums;
  }

  int64_t members_;
  ffi::Tensor mine_, others_;
};

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
  Check("dispatch_slots", x, out, mask, *group);
  const Used used(mask, group);
  const std::vector<int64_t> mine = used.Mine(), others = used.Others();
  const ffi::Tensor rows = NewRows(static_cast<int64_t>(mine.size()), x);
  if (!mine.empty()) {
    const ffi::Tensor columns = ColumnsOf(mask, mine);
    Einsum(columns, x, "ts,td->sd", rows);
  }
  const ffi::Tensor arrived = NewRows(static_cast<int64_t>(others.size()), x);
  MoveRows(FlowKind::kDispatchSlots, groups, *group, rows, used.MineByMember(), arrived,
           used.OthersByMember(), used.bytes_told());

  const int64_t row_bytes = x.size(1) * ElementBytes(x.dtype());
  std::vector<std::vector<const void*>> parts(out.size(0));
  for (size_t i = 0; i < others.size(); ++i)
    parts[others[i] % used.own_slots()].push_back(DataOf(arrived) + i * row_bytes);
  const ReduceFunction sum = FindReduceFunction(x.dtype(), ReduceKind::kSum);
  for (int64_t slot = 0; slot < out.size(0); ++slot) {
    void* to = DataOf(out) + slot * row_bytes;
    if (parts[slot].empty()) {
      std::memset(to, 0, row_bytes);
    } else {
      sum(parts[slot].data(), static_cast<int>(parts[slot].size()), 0, x.size(1), &to, 1);
    }
  }
}

void CombineSlots(TensorView y, TensorView mask, const String& groups, int64_t /*choices*/,
                  TensorView out) {
  Group* group = WorkerContext::Current().FindGroup(groups);
  Check("combine_slots", out, y, mask, *group);
  const Used used(mask, group);
  const std::vector<int64_t> mine = used.Mine(), others = used.Others();
  const int64_t row_bytes = y.size(1) * ElementBytes(y.dtype());
  const ffi::Tensor asked = NewRows(static_cast<int64_t>(others.size()), y);
  for (size_t i = 0; i < others.size(); ++i) {
    std::memcpy(DataOf(asked) + i * row_bytes, DataOf(y) + others[i] % used.own_slots() * row_bytes,
                row_bytes);
  }
  const ffi::Tensor rows = NewRows(static_cast<int64_t>(mine.size()), y);
  MoveRows(FlowKind::kCombineSlots, groups, *group, asked, used.OthersByMember(), rows,
           used.MineByMember(), used.bytes_told());
  if (mine.empty()) {
    std::memset(DataOf(out), 0, out.size(0) * row_bytes);
  } else {
    const ffi::Tensor columns = ColumnsOf(mask, mine);
    Einsum(columns, rows, "ts,sd->td", out);
  }
}

TVM_FFI_STATIC_INIT_BLOCK() {
  ffi::reflection::GlobalDef()
      .def("distir.runtime.dispatch_slots", DispatchSlots)
      .def("distir.runtime.combine_slots", CombineSlots);
}

}  // namespace

}  // namespace distir::runtime
