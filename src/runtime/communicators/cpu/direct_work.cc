// Computes one member's share of a collective whose members see each other's buffers.
#include "runtime/communicators/cpu/direct_work.h"

#include <algorithm>

namespace distir::runtime::cpu {

namespace {

using tvm::ffi::TensorView;

// Elements; parts of an all-reduce begin at multiples of this.
constexpr int64_t kPartAlignment = 64;

std::vector<int64_t> StridesOf(const TensorView& tensor) {
  return RowMajorStrides(ShapeOf(tensor), ElementBytes(tensor.dtype()));
}

BoxCopy BlockCopy(const TensorView& x, int split_dim, const TensorView& out, int size) {
  std::vector<int64_t> extent = ShapeOf(x);
  extent[split_dim] /= size;
  return BoxCopy(extent, StridesOf(x), StridesOf(out), ElementBytes(x.dtype()));
}

}  // namespace

int64_t PartBegin(int64_t count, int size, int position) {
  const int64_t units = (count + kPartAlignment - 1) / kPartAlignment;
  return std::min(count, units * position / size * kPartAlignment);
}

AllReduceWork::AllReduceWork(const TensorView& x, ReduceKind kind, int size, int position)
    : size_(size),
      position_(position),
      element_bytes_(ElementBytes(x.dtype())),
      sources_(size),
      outs_(size) {
  const int64_t count = x.numel();
  begin_ = PartBegin(count, size, position);
  end_ = PartBegin(count, size, position + 1);
  reduce_ = FindReduceFunction(x.dtype(), kind, ResultSizeOf(count * element_bytes_));
}

void AllReduceWork::operator()(const Buffers* members) noexcept {
  if (begin_ >= end_) return;
  int num_outs = 0;
  for (int j = 0; j < size_; ++j) {
    sources_[j] = members[j].x;
    // Members begin with their own result, so that they do not all write to the same one.
    void* part = members[(position_ + j) % size_].out + begin_ * element_bytes_;
    const auto end_of_outs = outs_.begin() + num_outs;
    if (std::find(outs_.begin(), end_of_outs, part) == end_of_outs) outs_[num_outs++] = part;
  }
  reduce_(sources_.data(), size_, begin_, end_ - begin_, outs_.data(), num_outs);
}

AllGatherWork::AllGatherWork(const TensorView& x, int dim, const TensorView& out, int size,
                             int position)
    : size_(size),
      position_(position),
      copy_(ShapeOf(x), StridesOf(x), StridesOf(out), ElementBytes(x.dtype())),
      block_bytes_(x.size(dim) * StridesOf(out)[dim]) {}

void AllGatherWork::operator()(const Buffers* members) const noexcept {
  char* out = members[position_].out;
  int num_sharers = 0, index = 0;  // of those that write this output, and mine among them
  for (int j = 0; j < size_; ++j) {
    if (members[j].out != out) continue;
    if (j < position_) ++index;
    ++num_sharers;
  }
  // Members begin with their own block, so that they do not all read the same one at a time.
  for (int i = 0; i < size_; ++i) {
    const int j = (position_ + i) % size_;
    if (j % num_sharers == index) copy_.Run(members[j].x, out + j * block_bytes_);
  }
}

ReduceScatterWork::ReduceScatterWork(const TensorView& x, int dim, ReduceKind kind,
                                     const TensorView& out, int size, int position)
    : size_(size),
      position_(position),
      element_bytes_(ElementBytes(x.dtype())),
      reduce_(FindReduceFunction(x.dtype(), kind, ResultSizeOf(out.numel() * element_bytes_))),
      sources_(size) {
  for (int i = 0; i < dim; ++i) outer_ *= x.size(i);
  for (int i = dim; i < x.ndim(); ++i) run_ *= x.size(i);
  run_ /= size;
}

void ReduceScatterWork::operator()(const Buffers* members) noexcept {
  for (int j = 0; j < size_; ++j) sources_[j] = members[j].x;
  for (int64_t o = 0; o < outer_; ++o) {
    void* target = members[position_].out + o * run_ * element_bytes_;
    reduce_(sources_.data(), size_, (o * size_ + position_) * run_, run_, &target, 1);
  }
}

AllToAllWork::AllToAllWork(const TensorView& x, int split_dim, int concat_dim,
                           const TensorView& out, int size, int position)
    : size_(size), position_(position), copy_(BlockCopy(x, split_dim, out, size)) {
  x_offset_ = position * (x.size(split_dim) / size) * StridesOf(x)[split_dim];
  const int64_t along = split_dim == concat_dim ? x.size(concat_dim) / size : x.size(concat_dim);
  out_step_ = along * StridesOf(out)[concat_dim];
}

void AllToAllWork::operator()(const Buffers* members) const noexcept {
  for (int i = 0; i < size_; ++i) {
    const int j = (position_ + i) % size_;
    copy_.Run(members[j].x + x_offset_, members[position_].out + j * out_step_);
  }
}

}  // namespace distir::runtime::cpu
