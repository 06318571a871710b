// Operators that only move elements along a dimension: every device gets those of its shard of the
// result that it lacks, in one exchange.
#include <algorithm>
#include <cstdio>

#include "expand/algorithm.h"
#include "ir/build.h"
#include "ir/symbolic.h"
#include "rules/axes.h"

namespace distir {
namespace expand {

namespace {

const ir::AttrField kConcatAxis("relax.attrs.ConcatAttrs", "axis");
const ir::AttrField kFlipAxis("relax.attrs.FlipAttrs", "axis");
const ir::AttrField kPadMode("relax.attrs.PadAttrs", "pad_mode");
const ir::AttrField kPadValue("relax.attrs.PadAttrs", "pad_value");
const ir::AttrField kPadWidth("relax.attrs.PadAttrs", "pad_width");
const ir::AttrField kSplitAxis("relax.attrs.SplitAttrs", "axis");

const ir::GlobalFunction kConcat("relax.op.concat");
const ir::GlobalFunction kPad("relax.op.nn.pad");
const ir::GlobalFunction kSplit("relax.op.split");
const ir::GlobalFunction kStridedSlice("relax.op.strided_slice");

using mesh::Segment;

int64_t SizeOf(const ir::Type& type, int dim) {
  return ir::StaticDim(ir::ShapeOf(ir::TensorType::Cast(type))[dim]);
}
int64_t SizeOf(const ir::Expr& x, int dim) { return SizeOf(TensorTypeOf(x), dim); }

ir::Expr Flip(const SpecialCall& call, Writer* w) {
  ir::Expr x = call.arg(0);
  int axis = Marked(rules::AxisMask(kFlipAxis(call.attrs()), RankOf(x)))[0];
  int64_t size = SizeOf(x, axis);
  return w->Move(x, axis, size, {{size - 1, 0, -1, size}});
}

// What is cut along whole dimensions is cut first: it need not be moved.
ir::Expr StridedSlice(const SpecialCall& call, Writer* w) {
  ir::Expr x = call.arg(0);
  const ffi::Array<ir::Expr>& args = call.call.args();
  const std::vector<int64_t> axes = *rules::IntegersOf(args[1]);
  const std::vector<int64_t> begins = *rules::IntegersOf(args[2]);
  std::vector<int64_t> strides(axes.size(), 1);
  if (args.size() > 4) strides = *rules::IntegersOf(args[4]);
  ffi::Array<ir::Expr> rest[4];  // axes, begins, ends, strides
  std::vector<std::pair<int, Segment>> moved;
  for (size_t i = 0; i < axes.size(); ++i) {
    int dim = rules::NormalizeAxis(axes[i], RankOf(x));
    if (!call.IsSpecial(0, dim)) {
      const ffi::Array<ir::Expr>& ends = ir::Tuple::Cast(args[3]).fields();
      const ir::Expr values[] = {ir::MakeInt(dim), ir::MakeInt(begins[i]), ends[i],
                                 ir::MakeInt(strides[i])};
      for (int k = 0; k < 4; ++k) rest[k].push_back(values[k]);
      continue;
    }
    int64_t size = SizeOf(x, dim);
    int64_t begin = begins[i] < 0 ? begins[i] + size : begins[i];
    begin = std::clamp<int64_t>(begin, 0, size - 1);  // of what is not empty
    moved.push_back({dim, {begin, 0, strides[i], SizeOf(call.result(), dim)}});
  }
  if (!rest[0].empty()) {
    x = w->Write(kStridedSlice, x, ir::MakeTuple(rest[0]), ir::MakeTuple(rest[1]),
                 ir::MakeTuple(rest[2]), ir::MakeTuple(rest[3]), false);
  }
  for (const auto& [dim, segment] : moved) x = w->Move(x, dim, segment.count, {segment});
  return x;
}

/*! \brief What padding by `before` and `after` has of the dimension of `size` itself. */
std::vector<Segment> PaddingSegments(const std::string& mode, int64_t size, int64_t before,
                                     int64_t after) {
  const int64_t behind = before + size;
  std::vector<Segment> segments{{0, before, 1, size}};
  if (mode == "reflect") {
    segments.push_back({before, 0, -1, before});
    segments.push_back({size - 2, behind, -1, after});
  } else if (mode == "replicate") {
    segments.push_back({0, 0, 0, before});
    segments.push_back({size - 1, behind, 0, after});
  } else if (mode == "circular") {
    segments.push_back({size - before, 0, 1, before});
    segments.push_back({0, behind, 1, after});
  }
  segments.erase(std::remove_if(segments.begin(), segments.end(),
                                [](const Segment& segment) { return segment.count == 0; }),
                 segments.end());
  return segments;
}

std::string NumberText(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.17g", value);
  return text;
}

ir::Expr Pad(const SpecialCall& call, Writer* w) {
  ir::Expr x = call.arg(0);
  auto widths = kPadWidth(call.attrs()).cast<ffi::Array<int64_t>>();
  const std::string mode = kPadMode.Text(call.attrs());
  const double value = kPadValue(call.attrs()).cast<double>();
  bool any_whole = false;
  std::vector<int> moved;
  for (int d = 0; d < RankOf(x); ++d) {
    if (call.IsSpecial(0, d)) {
      moved.push_back(d);
    } else {
      any_whole = any_whole || widths[2 * d] != 0 || widths[2 * d + 1] != 0;
    }
  }
  ffi::Array<int64_t> of_whole = widths;
  for (int d : moved) {
    int64_t size = SizeOf(x, d), before = widths[2 * d], after = widths[2 * d + 1];
    x = w->Move(x, d, before + size + after, PaddingSegments(mode, size, before, after),
                NumberText(value));
    of_whole.Set(2 * d, 0);
    of_whole.Set(2 * d + 1, 0);
  }
  return any_whole ? w->Write(kPad, x, of_whole, ffi::String(mode), value) : x;
}

/*! \brief The shards of several tensors along one dimension, laid out as one tensor whose shard s
 * has shard s of each of them, one behind the other; shards of one tensor are of one size, its last
 * ones with anything behind what they have. */
class Interleaved {
 public:
  Interleaved(std::vector<int64_t> sizes, int64_t shards)
      : sizes_(std::move(sizes)), shards_(shards) {
    for (int64_t size : sizes_) shard_ += Part(size);
  }

  /*! \brief The extent of this layout. */
  int64_t total() const { return shards_ * shard_; }
  /*! \brief The extent of a shard of a tensor of that size. */
  int64_t Part(int64_t size) const { return mesh::EvenExtent(size, shards_) / shards_; }

  /*! \brief From the tensors one behind the other to this layout. */
  std::vector<Segment> FromConcatenated() const {
    std::vector<Segment> segments;
    for (int64_t s = 0; s < shards_; ++s) {
      int64_t begin = 0;        // of the tensor
      int64_t at = s * shard_;  // of its shard here
      for (int64_t size : sizes_) {
        const int64_t part = Part(size);
        const int64_t count = std::min(part, size - s * part);
        if (count > 0) segments.push_back({begin + s * part, at, 1, count});
        begin += size;
        at += part;
      }
    }
    return segments;
  }

  std::vector<Segment> ToConcatenated() const {
    std::vector<Segment> segments = FromConcatenated();
    for (Segment& segment : segments) std::swap(segment.source, segment.target);
    return segments;
  }

 private:
  std::vector<int64_t> sizes_;
  int64_t shards_;
  int64_t shard_ = 0;  // the extent of a shard of this layout
};

/*! \brief A shape with another extent of one dimension. */
ffi::Array<ir::Expr> WithExtent(ffi::Array<ir::Expr> shape, int dim, int64_t extent) {
  shape.Set(dim, ir::MakeInt(extent));
  return shape;
}

ir::Expr Concat(const SpecialCall& call, Writer* w) {
  auto tuple = ir::Tuple::Cast(call.arg(0));
  ffi::Array<ir::Expr> shards;
  std::vector<int64_t> sizes;
  int axis = 0;
  int64_t count = mesh::NumShards(call.SpecialAxes());
  for (const ir::Expr& x : tuple.fields()) {
    axis = Marked(rules::AxisMask(kConcatAxis(call.attrs()), RankOf(x)))[0];
    sizes.push_back(SizeOf(x, axis));
    ir::Expr even = w->Even(x, axis);
    shards.push_back(w->Reshape(even, SplitShape(even, axis, count)));
  }
  Interleaved layout(sizes, count);
  ir::Expr joined = w->Write(kConcat, ir::MakeTuple(shards), int64_t(axis + 1));
  const ffi::Array<ir::Expr>& shape = ir::ShapeOf(ir::TensorType::Cast(call.result()));
  return w->Move(w->Reshape(joined, WithExtent(shape, axis, layout.total())), axis,
                 ir::StaticDim(shape[axis]), layout.ToConcatenated());
}

ir::Expr Split(const SpecialCall& call, Writer* w) {
  ir::Expr x = call.arg(0);
  int axis = Marked(rules::AxisMask(kSplitAxis(call.attrs()), RankOf(x)))[0];
  int64_t count = mesh::NumShards(call.SpecialAxes());
  const ffi::Array<ir::Type> types = ir::TupleType::Cast(call.result()).fields();
  std::vector<int64_t> sizes;
  for (const ir::Type& type : types) sizes.push_back(SizeOf(type, axis));
  Interleaved layout(sizes, count);
  ffi::Array<int64_t> ends;
  for (int64_t size : sizes) ends.push_back((ends.empty() ? 0 : ends.back()) + layout.Part(size));
  ends.pop_back();
  ir::Expr moved = w->Move(x, axis, layout.total(), layout.FromConcatenated());
  ir::Expr parts =
      w->Write(kSplit, w->Reshape(moved, SplitShape(moved, axis, count)), ends, int64_t(axis + 1));
  ffi::Array<ir::Expr> fields;
  for (size_t i = 0; i < types.size(); ++i) {
    const ffi::Array<ir::Expr>& shape = ir::ShapeOf(ir::TensorType::Cast(types[i]));
    ir::Expr even = w->Reshape(w->Field(parts, static_cast<int>(i)),
                               WithExtent(shape, axis, count * layout.Part(sizes[i])));
    fields.push_back(w->Resized(even, axis, sizes[i]));
  }
  return ir::MakeTuple(fields);
}

const AlgorithmTable kMovement({{"relax.concat", Concat},
                                {"relax.flip", Flip},
                                {"relax.nn.pad", Pad},
                                {"relax.split", Split},
                                {"relax.strided_slice", StridedSlice}});

}  // namespace

}  // namespace expand
}  // namespace distir
