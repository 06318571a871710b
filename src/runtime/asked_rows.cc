// Exchanges flags of needed rows, then fetches or delivers these rows.
#include "runtime/asked_rows.h"

#include <tvm/ffi/dtype.h>

#include <cstring>

#include "abi/collective.h"
#include "runtime/kernels/strided_copy.h"
#include "runtime/row_exchange.h"

namespace distir::runtime {

namespace ffi = tvm::ffi;
using ffi::TensorView;

namespace {

constexpr DLDataType kInt8{kDLInt, 8, 1};

std::vector<int64_t> Flagged(const ffi::Tensor& flags) {
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < flags.numel(); ++i)
    if (DataOf(flags)[i] != 0) rows.push_back(i);
  return rows;
}

}  // namespace

AskedRows::AskedRows(int64_t rows, const std::function<bool(int64_t)>& is_asked, Group* group)
    : group_(*group), own_rows_(rows / group->size()) {
  auto& communicator = WorkerContext::Current().communicator();
  const ffi::Shape shape({group->size(), own_rows_});
  const ffi::Tensor mine = communicator.NewTensor(shape, kInt8);
  const ffi::Tensor others = communicator.NewTensor(shape, kInt8);
  for (int64_t i = 0; i < rows; ++i) DataOf(mine)[i] = is_asked(i) ? 1 : 0;
  communicator.AllToAll(group, mine, 0, 0, others);
  mine_ = Flagged(mine);
  others_ = Flagged(others);
}

std::vector<int64_t> AskedRows::ByMember(const std::vector<int64_t>& rows) const {
  std::vector<int64_t> sums(group_.size(), 0);
  for (int64_t row : rows) ++sums[row / own_rows_];
  return sums;
}

ffi::Tensor AskedRows::Fetch(abi::Collective kind, const ffi::String& groups,
                             const TensorView& own) const {
  const int64_t row_bytes = own.size(1) * ElementBytes(own.dtype());
  const ffi::Tensor asked = NewRows(static_cast<int64_t>(others_.size()), own);
  for (size_t i = 0; i < others_.size(); ++i) {
    std::memcpy(DataOf(asked) + i * row_bytes, DataOf(own) + others_[i] % own_rows_ * row_bytes,
                row_bytes);
  }
  ffi::Tensor rows = NewRows(static_cast<int64_t>(mine_.size()), own);
  MoveRows(kind, groups, group_, asked, ByMember(others_), rows, ByMember(mine_), bytes_told());
  return rows;
}

void AskedRows::Deliver(abi::Collective kind, const ffi::String& groups, const ffi::Tensor& rows,
                        const TensorView& own) const {
  const ffi::Tensor arrived = NewRows(static_cast<int64_t>(others_.size()), own);
  MoveRows(kind, groups, group_, rows, ByMember(mine_), arrived, ByMember(others_), bytes_told());

  const int64_t row_bytes = own.size(1) * ElementBytes(own.dtype());
  std::vector<std::vector<const void*>> parts(own_rows_);
  for (size_t i = 0; i < others_.size(); ++i)
    parts[others_[i] % own_rows_].push_back(DataOf(arrived) + i * row_bytes);
  AddRowsUp(parts, own);
}

}  // namespace distir::runtime
