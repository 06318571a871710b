// Rules, decomposition and halo segments of sliding windows: convolutions and pooling.
#include "ops/windows.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "ir/build.h"
#include "ir/symbolic.h"
#include "rules/factor/layout.h"
#include "support/dtypes.h"

namespace distir::ops {

namespace {

using rules::DimOf;
using rules::kSpatialLetters;
using Integers = ffi::Array<int64_t>;

/*! \brief The most shards that there may be; 1 where there can be none. */
int64_t MostShards(const WindowDim& dim, const Windows& windows, DLDataType dtype) {
  if (dim.data_size <= 0 || dim.result_size <= 0) return 1;
  if (dim.contracted)
    return dim.kernel <= dim.data_size ? dim.kernel : std::gcd(dim.kernel, dim.data_size);
  const bool is_float = dtype.code == kDLFloat || dtype.code == kDLBfloat;
  switch (windows.kind) {
    case WindowKind::kTransposed: {
      // Every shard's first element has to stand at the same place between two strides.
      const int64_t gap = dim.extent() - 1 - dim.before;
      const int64_t past = ((gap % dim.stride) + dim.stride) % dim.stride;
      if (dim.dilation != 1 || past > dim.extent() - 1) return 1;
      break;
    }
    case WindowKind::kMean:
    case WindowKind::kMaximum:
      // A mean of integers is rounded once only. A window of nothing but padding has no mean.
      if (windows.kind == WindowKind::kMean && !is_float) return 1;
      if (dim.extent() <= dim.before || dim.extent() - dim.before > dim.data_size ||
          (dim.result_size - 1) * dim.stride - dim.before >= dim.data_size)
        return 1;
      break;
    case WindowKind::kConvolution:
      break;
  }
  return std::min(dim.data_size, dim.result_size);
}

/*! \brief Number of elements of the data that a shard gets from others. */
int64_t Halo(const WindowDim& dim, WindowKind kind) {
  if (kind == WindowKind::kTransposed) return (dim.extent() - 1) / dim.stride;
  if (dim.contracted) return (dim.result_size - 1) * dim.stride;
  return std::max<int64_t>(0, dim.extent() - dim.stride);
}

/*! \brief Elements along one dimension that the shards of the result, or of the window, read. */
struct Looked {
  int64_t shards;
  int64_t block;                          // elements of the result, or the window, per shard
  int64_t begin;                          // of the first shard, in the data
  int64_t step;                           // from one shard to the next
  int64_t length;                         // per shard
  int64_t before, after, output_padding;  // what is left to the local operator
};

int64_t CeilDivide(int64_t a, int64_t b) { return -((-a) / b) + (a > 0 && a % b != 0 ? 1 : 0); }
int64_t FloorDivide(int64_t a, int64_t b) { return -CeilDivide(-a, b); }

Looked LookedAt(const WindowDim& dim, WindowKind kind, int64_t shards) {
  if (dim.contracted) {
    const int64_t block = dim.kernel / shards;
    const int64_t length = (dim.result_size - 1) * dim.stride + (block - 1) * dim.dilation + 1;
    return {shards, block, -dim.before, block * dim.dilation, length, 0, 0, 0};
  }
  int64_t block = mesh::EvenExtent(dim.result_size, shards) / shards;
  if (kind != WindowKind::kTransposed) {
    return {
        shards, block, -dim.before, block * dim.stride, (block - 1) * dim.stride + dim.extent(), 0,
        0,      0};
  }
  // The first element of every shard has to stand at the same place between two strides.
  block = mesh::EvenExtent(block, dim.stride);
  const int64_t first = CeilDivide(dim.before - dim.extent() + 1, dim.stride);
  const int64_t last = FloorDivide(dim.before + block - 1, dim.stride);
  const int64_t length = last - first + 1, crop = dim.before - first * dim.stride;
  const int64_t over = (length - 1) * dim.stride + dim.extent() - crop - block;
  return {shards,
          block,
          first,
          block / dim.stride,
          length,
          crop,
          std::max<int64_t>(over, 0),
          std::max<int64_t>(-over, 0)};
}

std::vector<mesh::Segment> SegmentsOf(const Looked& looked, int64_t size) {
  std::vector<mesh::Segment> segments;
  for (int64_t s = 0; s < looked.shards; ++s) {
    const int64_t begin = looked.begin + s * looked.step;
    const int64_t from = std::clamp<int64_t>(begin, 0, size);
    const int64_t to = std::clamp<int64_t>(begin + looked.length, 0, size);
    if (from < to) segments.push_back({from, s * looked.length + from - begin, 1, to - from});
  }
  return segments;
}

/*! \brief Value below all numbers of a type, or the lowest of them. */
std::string Lowest(DLDataType dtype) {
  if (dtype.code == kDLUInt || dtype.code == kDLBool) return "0";
  if (dtype.code == kDLInt) return std::to_string(-(int64_t(1) << (dtype.bits - 2)) * 2);
  return "-inf";
}

/*! \brief A tensor's shards along some dimensions, taken together with its batch, or as groups of
 * its channels. */
class ShardsInBatch {
 public:
  /*!
   * \param whole The tensor's shape.
   * \param batch The dimension of the batch, or of the channels.
   * \param shards Per dimension, 1 where it is not sharded along.
   */
  ShardsInBatch(const ir::NodeArray<ir::Expr>& whole, int batch, const std::vector<int64_t>& shards)
      : whole_(whole) {
    std::vector<int64_t> of_shards, others;  // positions in `split_`
    size_t at = 0;                           // of the batch in `others`
    int64_t count = 1, next = 0;
    for (size_t d = 0; d < whole.size(); ++d) {
      count *= shards[d];
      if (shards[d] > 1) {
        split_.push_back(ir::MakeInt(shards[d]));
        of_shards.push_back(next++);
      }
      merged_.push_back(shards[d] > 1 ? ir::FloorDivide(whole[d], shards[d]) : whole[d]);
      split_.push_back(merged_.back());
      if (static_cast<int>(d) == batch) at = others.size();
      others.push_back(next++);
    }
    merged_.Set(batch, ir::Multiply(whole[batch], count));
    others.insert(others.begin() + at, of_shards.begin(), of_shards.end());
    order_ = ffi::Array<int64_t>(others.begin(), others.end());
    std::vector<int64_t> inverse(others.size());
    for (size_t i = 0; i < others.size(); ++i) {
      permuted_.push_back(split_[others[i]]);
      inverse[others[i]] = static_cast<int64_t>(i);
    }
    inverse_ = ffi::Array<int64_t>(inverse.begin(), inverse.end());
  }

  /*! \brief (.., n, .., k * m, ..) to (.., k * n, .., m, ..). */
  ir::Expr Merge(const ir::Expr& x, Writer* w) const {
    return w->Reshape(w->Write(ir::make::kPermuteDims, w->Reshape(x, split_), order_), merged_);
  }
  /*! \brief The inverse. */
  ir::Expr Part(const ir::Expr& x, Writer* w) const {
    return w->Reshape(w->Write(ir::make::kPermuteDims, w->Reshape(x, permuted_), inverse_), whole_);
  }

 private:
  ffi::Array<ir::Expr> whole_, split_, permuted_, merged_;
  ffi::Array<int64_t> order_, inverse_;
};

ir::Expr MergedShards(const ir::Expr& x, int batch, const std::vector<int64_t>& shards, Writer* w) {
  return ShardsInBatch(ir::ShapeOf(TensorTypeOf(x)), batch, shards).Merge(x, w);
}

/*! \brief The places of the data, with its padding or without, of which a mean is. */
struct Counted {
  int64_t begin, end;

  Counted(const WindowDim& dim, bool with_padding)
      : begin(with_padding ? -dim.before : 0),
        end(dim.data_size + (with_padding ? dim.after : 0)) {}
  /*! \brief True if every window lies within them. */
  bool HasAll(const WindowDim& dim) const {
    const int64_t last = (dim.result_size - 1) * dim.stride - dim.before;
    return begin <= -dim.before && last + dim.extent() <= end;
  }
};

/*! \brief Along one dimension, the part of each window that counts, as 0 to 1 of float32. */
ir::Expr PartCounted(const WindowDim& dim, const Counted& counted, const Looked& looked,
                     const mesh::AxisList& axes, int rank, Writer* w) {
  ir::Expr index = w->ShardIndex(axes, 0, 3);
  ir::Expr offset = w->Write(ir::make::kMultiply, index, w->Scalar(double(looked.step), kInt64));
  ir::Expr begin = w->Write(ir::make::kAdd, offset, w->Scalar(double(looked.begin), kInt64));
  ir::Expr steps = w->ExpandDims(w->Range(ir::MakeInt(looked.length), {}), {0, 1});
  ir::Expr places = w->Write(ir::make::kAdd, begin, steps);
  ir::Expr behind = w->Write(ir::make::kLess, places, w->Scalar(double(counted.end), kInt64));
  ir::Expr before =
      w->Write(ir::make::kGreaterEqual, places, w->Scalar(double(counted.begin), kInt64));
  ir::Expr inside = w->Cast(w->Write(ir::make::kLogicalAnd, before, behind), kFloat32);
  using Integers = ffi::Array<int64_t>;
  ir::Expr part = w->Write(ir::make::kNnAvgPool1d, inside, Integers{dim.kernel},
                           Integers{dim.stride}, Integers{0, 0}, Integers{dim.dilation}, false,
                           true, ffi::String("NCW"), ffi::String("NCW"));
  ffi::Array<ir::Expr> shape;
  for (int d = 0; d < rank; ++d)
    shape.push_back(ir::MakeInt(d == dim.result_dim ? looked.shards * looked.block : 1));
  return w->Reshape(part, shape);
}

/*! \brief The call's attributes with other values of lists of integers. */
ir::Node WithList(const ir::Node& attrs, const char* key, const std::vector<int64_t>& values) {
  return ir::WithField(attrs, key, ffi::Array<int64_t>(values.begin(), values.end()));
}

/*! \brief The axes by which anything of the call is sharded, those of the batch after the shards.
 */
std::vector<mesh::AxisList> WindowAxesOf(const DecomposedCall& call, const Windows& windows) {
  std::vector<mesh::AxisList> lists;
  for (const auto* tensors : {&call.sharding.operands, &call.sharding.results}) {
    for (const mesh::Sharding& tensor : *tensors)
      lists.insert(lists.end(), tensor.dims.begin(), tensor.dims.end());
  }
  const mesh::Sharding& data = call.sharding.operands[0];
  mesh::AxisList merged;
  auto append = [&merged](const mesh::AxisList& axes) {
    merged.insert(merged.end(), axes.begin(), axes.end());
  };
  for (size_t d = 0; d < data.dims.size(); ++d) {
    if (call.IsDecomposed(0, static_cast<int>(d))) append(data.dims[d]);
  }
  append(data.dims[windows.data_batch]);
  lists.push_back(merged);
  if (windows.data_channel < 0) return lists;
  mesh::AxisList contracted;
  for (const WindowDim& dim : windows.dims) {
    const mesh::AxisList& axes = data.dims[dim.data_dim];
    if (dim.contracted) contracted.insert(contracted.end(), axes.begin(), axes.end());
  }
  for (const mesh::AxisList& channels :
       {data.dims[windows.data_channel], call.sharding.operands[1].dims[windows.kernel_out]}) {
    merged = contracted;
    append(channels);
    lists.push_back(merged);
  }
  return lists;
}

}  // namespace

std::optional<Windows> SpatialDims(const OpView& view, WindowKind kind, const std::string& data,
                                   const std::string& out) {
  Sizes from = StaticSizes(view.operands[0]), to = StaticSizes(view.results[0]);
  if (from.size() != data.size() || to.size() != out.size()) return std::nullopt;
  Windows windows{kind, DimOf(data, 'N'), DimOf(out, 'N'), {}, false};
  if (windows.data_batch < 0 || windows.result_batch < 0) return std::nullopt;
  for (char letter : kSpatialLetters) {
    const int data_dim = DimOf(data, letter), result_dim = DimOf(out, letter);
    if (data_dim < 0 || result_dim < 0) continue;
    windows.dims.push_back(
        {data_dim, result_dim, from[data_dim], to[result_dim], 1, 1, 1, 0, 0, 0});
  }
  return windows;
}

bool ReadWindowLists(const ir::AttrField& strides_field, const ir::AttrField& padding_field,
                     const ir::AttrField& dilation_field, const ir::Node& attrs, Windows* windows) {
  const Integers strides = strides_field(attrs).cast<Integers>();
  const Integers padding = padding_field(attrs).cast<Integers>();
  const Integers dilation = dilation_field(attrs).cast<Integers>();
  const size_t rank = windows->dims.size();
  if (strides.size() != rank || dilation.size() != rank || padding.size() != 2 * rank) return false;
  for (size_t i = 0; i < rank; ++i) {
    WindowDim& dim = windows->dims[i];
    dim.stride = strides[i];
    dim.dilation = dilation[i];
    dim.before = padding[i];
    dim.after = padding[rank + i];
  }
  return true;
}

bool IsBlockwise(const WindowDim& dim, WindowKind kind) {
  return kind != WindowKind::kTransposed && dim.before == 0 && dim.after == 0 &&
         dim.extent() <= dim.stride && dim.data_size == dim.result_size * dim.stride;
}

void AddWindowFactors(const OpView& view, const Windows& windows, RuleBuilder* builder) {
  const DLDataType dtype = view.operands[0].dtype();
  for (const WindowDim& dim : windows.dims) {
    const int64_t size = MostShards(dim, windows, dtype);
    // An odd number of blocks does not divide into the usual numbers of shards.
    const bool is_taken_apart = size > 1 && dim.stride > 1 && dim.result_size % 2 != 0;
    if (IsBlockwise(dim, windows.kind) && !is_taken_apart) {
      const int factor = builder->Parallel(dim.result_size);
      builder->Operand(0, dim.data_dim, factor);
      if (dim.stride > 1) builder->Operand(0, dim.data_dim, builder->NeedsReplication(dim.stride));
      builder->Result(0, dim.result_dim, factor);
      continue;
    }
    if (size <= 1) continue;
    const double halo = static_cast<double>(Halo(dim, windows.kind));
    DecomposedFactor kind{Exchanged::kNeighbours, halo / static_cast<double>(dim.data_size)};
    kind.must_divide = dim.contracted;
    const int factor = builder->Add({size, kind});
    builder->Operand(0, dim.data_dim, factor);
    if (dim.contracted) {
      builder->Operand(1, dim.kernel_dim, factor);
    } else {
      builder->Result(0, dim.result_dim, factor);
    }
  }
}

ir::Expr DecomposeWindows(const DecomposedCall& call, const Windows& windows, Writer* writer) {
  Writer named = writer->OnViewOf(WindowAxesOf(call, windows));
  Writer* w = &named;
  ffi::Array<ir::Expr> args;
  for (const ir::Expr& arg : call.call.args()) args.push_back(w->Named(arg));
  const mesh::Sharding& data = call.sharding.operands[0];
  const DLDataType dtype = DtypeOf(args[0]);
  const std::string fill = windows.kind == WindowKind::kMaximum ? Lowest(dtype) : "0";
  const size_t rank = windows.dims.size();
  std::vector<int64_t> padding(2 * rank), output_padding(rank);
  std::vector<int64_t> of_data(RankOf(args[0]), 1), of_result = of_data;
  std::vector<int64_t> in_data = of_data, in_kernel = of_data;  // shards of contracted windows
  int64_t groups = 1;
  ffi::Array<ir::Expr> shape = ir::ShapeOf(ir::TensorType::Cast(call.result()));
  args.Set(0, w->Even(args[0], windows.data_batch));
  shape.Set(windows.result_batch, ir::ShapeOf(TensorTypeOf(args[0]))[windows.data_batch]);
  std::vector<std::pair<WindowDim, Looked>> looked_at;
  for (size_t i = 0; i < rank; ++i) {
    const WindowDim& dim = windows.dims[i];
    padding[i] = dim.before;
    padding[rank + i] = dim.after;
    output_padding[i] = dim.output_padding;
    if (!call.IsDecomposed(0, dim.data_dim)) continue;
    const int64_t shards = mesh::NumShards(data.dims[dim.data_dim]);
    const Looked looked = LookedAt(dim, windows.kind, shards);
    args.Set(0, w->Move(args[0], dim.data_dim, shards * looked.length,
                        SegmentsOf(looked, dim.data_size), fill));
    padding[i] = looked.before;
    padding[rank + i] = looked.after;
    output_padding[i] = looked.output_padding;
    if (dim.contracted) {
      in_data[dim.data_dim] = in_kernel[dim.kernel_dim] = shards;
      groups *= shards;
      continue;
    }
    of_data[dim.data_dim] = of_result[dim.result_dim] = shards;
    shape.Set(dim.result_dim, ir::MakeInt(shards * looked.block));
    looked_at.emplace_back(dim, looked);
  }
  ir::Node attrs = WithList(call.attrs(), "padding", padding);
  if (windows.kind == WindowKind::kTransposed)
    attrs = WithList(attrs, "output_padding", output_padding);
  if (groups > 1) {
    args.Set(0, MergedShards(args[0], windows.data_channel, in_data, w));
    args.Set(1, MergedShards(args[1], windows.kernel_out, in_kernel, w));
    attrs = ir::WithField(attrs, "groups", groups * windows.groups);
  }
  args.Set(0, MergedShards(args[0], windows.data_batch, of_data, w));
  ir::Expr apart = w->Place(ir::MakeCall(call.call.ty(), call.call.op(), args, attrs));
  if (groups > 1) {
    ir::Expr parts = w->Reshape(apart, SplitShape(apart, windows.result_channel, groups));
    apart = w->Reduce(ir::make::kSum, parts, {windows.result_channel}, /*keepdims=*/false);
  }
  ir::Expr result = ShardsInBatch(shape, windows.result_batch, of_result).Part(apart, w);
  if (windows.kind == WindowKind::kMean) {
    // Windows have been counted whole.
    for (const auto& [dim, looked] : looked_at) {
      const Counted counted(dim, windows.counts_padding);
      if (counted.HasAll(dim)) continue;
      ir::Expr part = PartCounted(dim, counted, looked, data.dims[dim.data_dim], RankOf(result), w);
      result = w->Cast(w->Write(ir::make::kDivide, w->Cast(result, kFloat32), part), dtype);
    }
  }
  const Sizes sizes = StaticSizes(ir::TensorType::Cast(call.result()));
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] >= 0) result = w->Resized(result, static_cast<int>(d), sizes[d]);
  }
  return result;
}

}  // namespace distir::ops
