// Composes collectives of several hosts from steps within and between hosts.
#include "runtime/communicators/cpu/hierarchical_communicator.h"

#include <algorithm>
#include <cstring>

#include "runtime/kernels/strided_copy.h"

namespace distir::runtime::cpu {

namespace {

using TensorView = Communicator::TensorView;

// Up to here one round of messages is quicker than three.
constexpr int64_t kSmallHierarchicalBytes = 16 << 10;

// Number of a group's members on each host, if the hosts have equally many, consecutively; else 0,
// also if there is nothing to gain.
int MembersPerHost(const std::vector<int>& ranks, const std::vector<int>& host_of) {
  const int n = static_cast<int>(ranks.size());
  int m = 1;
  while (m < n && host_of[ranks[m]] == host_of[ranks[0]]) ++m;
  if (m == 1 || m == n || n % m != 0) return 0;
  std::vector<int> hosts;
  for (int i = 0; i < n; ++i) {
    if (i % m == 0) hosts.push_back(host_of[ranks[i]]);
    if (host_of[ranks[i]] != hosts.back()) return 0;
  }
  std::sort(hosts.begin(), hosts.end());
  return std::adjacent_find(hosts.begin(), hosts.end()) == hosts.end() ? m : 0;
}

std::vector<int> Within(const std::vector<int>& ranks, int m, int position) {
  const auto begin = ranks.begin() + position / m * m;
  return {begin, begin + m};
}

std::vector<int> Across(const std::vector<int>& ranks, int m, int position) {
  std::vector<int> across;
  for (size_t i = position % m; i < ranks.size(); i += m) across.push_back(ranks[i]);
  return across;
}

class HierarchicalGroup : public Group {
 public:
  HierarchicalGroup(std::vector<int> ranks, int position) : Group(std::move(ranks), position) {}

  std::unique_ptr<Group> flat, within, across;  // the last two are null where there are none
};

// A tensor's memory as one of another shape.
class Reshaped {
 public:
  Reshaped(const TensorView& tensor, std::vector<int64_t> shape)
      : shape_(std::move(shape)), strides_(RowMajorStrides(shape_, 1)) {
    tensor_.data = DataOf(tensor);
    tensor_.device = tensor.device();
    tensor_.ndim = static_cast<int>(shape_.size());
    tensor_.dtype = tensor.dtype();
    tensor_.shape = shape_.data();
    tensor_.strides = strides_.data();
  }
  Reshaped(const Reshaped&) = delete;
  Reshaped& operator=(const Reshaped&) = delete;

  TensorView view() const { return TensorView(&tensor_); }

 private:
  std::vector<int64_t> shape_, strides_;
  DLTensor tensor_{};
};

int64_t Product(const std::vector<int64_t>& shape, size_t begin, size_t end) {
  int64_t product = 1;
  for (size_t i = begin; i < end; ++i) product *= shape[i];
  return product;
}

HierarchicalGroup* Of(Group* group) { return static_cast<HierarchicalGroup*>(group); }

}  // namespace

void HierarchicalCommunicator::OpenPartition(const std::vector<std::vector<int>>& groups) {
  flat_->OpenPartition(groups);
  // Across hosts, every worker of a group is in one; all workers make the same of the same groups.
  std::vector<std::vector<int>> across;
  for (const std::vector<int>& ranks : groups) {
    const int m = MembersPerHost(ranks, host_of_);
    for (int i = 0; i < m; ++i) across.push_back(Across(ranks, m, i));
  }
  if (!across.empty()) flat_->OpenPartition(across);
}

std::unique_ptr<Group> HierarchicalCommunicator::OpenGroup(std::vector<int> ranks, int position) {
  auto group = std::make_unique<HierarchicalGroup>(std::move(ranks), position);
  group->flat = flat_->OpenGroup(group->ranks, position);
  const int m = MembersPerHost(group->ranks, host_of_);
  if (m > 0) {
    group->within = flat_->OpenGroup(Within(group->ranks, m, position), position % m);
    group->across = flat_->OpenGroup(Across(group->ranks, m, position), position / m);
  }
  return group;
}

bool HierarchicalCommunicator::MayReorder(DLDataType dtype, ReduceKind kind) const {
  if (kind == ReduceKind::kMax || kind == ReduceKind::kMin) return true;
  if (dtype.code == kDLInt || dtype.code == kDLUInt || dtype.code == kDLBool) return true;
  return !bitwise_ && dtype.code == kDLFloat && dtype.bits >= 32;
}

tvm::ffi::Tensor HierarchicalCommunicator::Scratch(const std::vector<int64_t>& shape,
                                                   DLDataType dtype) {
  return flat_->NewTensor(tvm::ffi::ShapeView(shape.data(), shape.size()), dtype);
}

void HierarchicalCommunicator::AllReduce(Group* group, TensorView x, ReduceKind kind,
                                         TensorView out) {
  HierarchicalGroup* mine = Of(group);
  const int64_t count = x.numel(), element_bytes = ElementBytes(x.dtype());
  if (mine->within == nullptr || count * element_bytes <= kSmallHierarchicalBytes ||
      !MayReorder(x.dtype(), kind)) {
    flat_->AllReduce(mine->flat.get(), x, kind, out);
    return;
  }
  const int64_t m = mine->within->size();
  const int64_t part = (count + m - 1) / m;
  const std::vector<int64_t> padded{m * part}, one_part{part};
  const tvm::ffi::Tensor scattered = Scratch(one_part, x.dtype());
  const tvm::ffi::Tensor reduced = Scratch(one_part, x.dtype());
  if (m * part == count) {
    flat_->ReduceScatter(mine->within.get(), Reshaped(x, padded).view(), 0, kind, scattered);
    flat_->AllReduce(mine->across.get(), scattered, kind, reduced);
    flat_->AllGather(mine->within.get(), reduced, 0, Reshaped(out, padded).view());
    return;
  }
  const tvm::ffi::Tensor all = Scratch(padded, x.dtype());
  char* bytes = DataOf(all);
  std::memcpy(bytes, DataOf(x), count * element_bytes);
  std::memset(bytes + count * element_bytes, 0, (m * part - count) * element_bytes);
  flat_->ReduceScatter(mine->within.get(), all, 0, kind, scattered);
  flat_->AllReduce(mine->across.get(), scattered, kind, reduced);
  flat_->AllGather(mine->within.get(), reduced, 0, all);
  std::memcpy(DataOf(out), bytes, count * element_bytes);
}

void HierarchicalCommunicator::AllGather(Group* group, TensorView x, int dim, TensorView out) {
  HierarchicalGroup* mine = Of(group);
  if (mine->within == nullptr || x.numel() == 0) {
    flat_->AllGather(mine->flat.get(), x, dim, out);
    return;
  }
  const int64_t h = mine->across->size(), n = group->size(), count = x.numel();
  const std::vector<int64_t> shape = ShapeOf(x);
  const std::vector<int64_t> of_lane{h, count}, of_all{h, n / h * count};
  const tvm::ffi::Tensor lane = Scratch(of_lane, x.dtype());
  flat_->AllGather(mine->across.get(), Reshaped(x, {1, count}).view(), 0, lane);
  const int64_t outer = Product(shape, 0, dim), inner = count / outer;
  if (outer == 1) {
    flat_->AllGather(mine->within.get(), lane, 1, Reshaped(out, of_all).view());
    return;
  }
  // One block behind the other, which lie side by side in the result.
  const tvm::ffi::Tensor all = Scratch(of_all, x.dtype());
  flat_->AllGather(mine->within.get(), lane, 1, all);
  const int64_t element_bytes = ElementBytes(x.dtype());
  BoxCopy({n, outer, inner}, RowMajorStrides({n, outer, inner}, element_bytes),
          {inner * element_bytes, n * inner * element_bytes, element_bytes}, element_bytes)
      .Run(DataOf(all), DataOf(out));
}

void HierarchicalCommunicator::ReduceScatter(Group* group, TensorView x, int dim, ReduceKind kind,
                                             TensorView out) {
  HierarchicalGroup* mine = Of(group);
  if (mine->within == nullptr || x.numel() == 0 || !MayReorder(x.dtype(), kind)) {
    flat_->ReduceScatter(mine->flat.get(), x, dim, kind, out);
    return;
  }
  const int64_t h = mine->across->size(), m = mine->within->size();
  const std::vector<int64_t> shape = ShapeOf(x);
  const int64_t outer = Product(shape, 0, dim);
  const int64_t block = Product(shape, dim, shape.size()) / (h * m);
  const std::vector<int64_t> of_lane{outer, h, 1, block};
  const tvm::ffi::Tensor lane = Scratch(of_lane, x.dtype());
  flat_->ReduceScatter(mine->within.get(), Reshaped(x, {outer, h, m, block}).view(), 2, kind, lane);
  flat_->ReduceScatter(mine->across.get(), lane, 1, kind,
                       Reshaped(out, {outer, 1, 1, block}).view());
}

void HierarchicalCommunicator::AllToAll(Group* group, TensorView x, int split_dim, int concat_dim,
                                        TensorView out) {
  flat_->AllToAll(Of(group)->flat.get(), x, split_dim, concat_dim, out);
}

void HierarchicalCommunicator::Transfer(const TransferPlan& plan, const TensorView* x,
                                        const TensorView* out) {
  flat_->CallBegins(call());
  flat_->Transfer(plan, x, out);
}

}  // namespace distir::runtime::cpu
