// Recognises convolutions and pooling in statements.
#include "unfuse/windows.h"

#include <optional>
#include <string>
#include <utility>

#include "ir/make_operators.h"
#include "ir/symbolic.h"
#include "unfuse/copies.h"

namespace distir::unfuse {

namespace {

constexpr int kBatchAndChannels = 2;

/*! \brief A reduction over windows of a tensor. */
struct WindowedReduction {
  ir::Var x;                    // before it is padded
  std::vector<int64_t> before;  // elements of padding, by dimension of x
  std::vector<int64_t> behind;
  std::vector<int64_t> strides;    // by dimension: from window to window
  std::vector<int64_t> dilations;  // from element to element of a window
  std::vector<int64_t> sizes;      // elements of a window
  ir::Var weights;                 // null for pooling
  ir::Var result;
};

/*! \brief A load of a tensor in a value; null where there is none. */
ir::TensorLoad LoadOf(const ir::Expr& value, const ir::Var& source) {
  if (auto load = ir::TensorLoad::Cast(value); load.defined())
    return load.source().same_as(source) ? load : ir::TensorLoad();
  ir::TensorLoad found;
  ir::VisitOperands(value, [&](const ir::Expr& each) {
    if (auto load = LoadOf(each, source); load.defined()) found = load;
  });
  return found;
}

/*! \brief Reads how an index steps along a dimension: spatial iterators move the window, others go
 * through it. Whether there are both. */
bool ReadDim(const ir::SBlock& block, const ir::Expr& index, WindowedReduction* window) {
  int64_t stride = 0, dilation = 0, size = 1;
  for (const ir::IterVar& each : block.iter_vars()) {
    const int64_t step = StepOf(index, each.var());
    if (step == 0) continue;
    if (each.kind() == ir::IteratorKind::kReduction) {
      dilation = step;
      size = ir::StaticDim(each.dom().extent());
    } else {
      stride = step;
    }
  }
  window->strides.push_back(stride == 0 ? 1 : stride);
  window->dilations.push_back(dilation == 0 ? 1 : dilation);
  window->sizes.push_back(size);
  return stride != 0 && dilation != 0;
}

std::optional<WindowedReduction> ReadWindow(const std::vector<ir::Stmt>& statements, size_t begin) {
  WindowedReduction window;
  ir::Var padded;
  ir::SBlock block = BlockOf(statements[begin]);
  if (block.defined() && !block.init().defined()) {
    auto store = ir::BufferStore::Cast(block.body());
    const std::optional<Copy> copy =
        store.defined() ? ReadCopy(block, store) : std::optional<Copy>();
    if (!copy || begin + 1 == statements.size()) return std::nullopt;
    for (const Along& along : copy->dims) {
      if (!along.IsPadded()) return std::nullopt;
      window.before.push_back(along.Before());
      window.behind.push_back(along.Behind());
    }
    window.x = copy->x;
    padded = store.buffer();
    block = BlockOf(statements[begin + 1]);
  }
  if (!block.defined() || !block.init().defined()) return std::nullopt;
  auto store = ir::BufferStore::Cast(block.body());
  if (!store.defined() || block.reads().empty() || block.reads().size() > 2) return std::nullopt;
  window.result = store.buffer();
  if (!padded.defined()) padded = window.x = block.reads()[0].source();
  for (const ir::TensorRegion& read : block.reads()) {
    if (!read.source().same_as(padded)) window.weights = read.source();
  }
  const ir::TensorLoad load = LoadOf(store.value(), padded);
  if (!load.defined()) return std::nullopt;
  window.before.resize(load.indices().size());
  window.behind.resize(load.indices().size());
  bool has_window = false;
  for (const ir::Expr& index : load.indices())
    has_window = ReadDim(block, index, &window) || has_window;
  return has_window ? std::optional(std::move(window)) : std::nullopt;
}

/*! \brief The values of the spatial dimensions. */
ffi::Array<int64_t> Spatial(const std::vector<int64_t>& values, bool has_channels_last) {
  const auto first = values.begin() + (has_channels_last ? 1 : kBatchAndChannels);
  const auto last = has_channels_last ? values.end() - 1 : values.end();
  return ffi::Array<int64_t>(first, last);
}

ffi::Array<int64_t> Joined(ffi::Array<int64_t> first, const ffi::Array<int64_t>& second) {
  for (int64_t each : second) first.push_back(each);
  return first;
}

void AddConvolutions(const WindowedReduction& window, const std::string& spatial,
                     Candidates* found) {
  static const ir::GlobalFunction* const kMake[] = {&ir::make::kNnConv1d, &ir::make::kNnConv2d,
                                                    &ir::make::kNnConv3d};
  const ir::GlobalFunction* make = kMake[spatial.size() - 1];
  const ir::TensorType x = TensorTypeOf(window.x), weights = TensorTypeOf(window.weights);
  if (weights.ndim() != x.ndim()) return;
  const DLDataType dtype = ir::BufferType::Cast(window.result.ty()).element_type();
  for (bool has_channels_last : {false, true}) {
    const std::string layout = has_channels_last ? "N" + spatial + "C" : "NC" + spatial;
    const int64_t channels = ir::StaticDim(ShapeOf(window.x)[has_channels_last ? x.ndim() - 1 : 1]);
    const auto of = [&](const std::vector<int64_t>& values) {
      return Spatial(values, has_channels_last);
    };
    for (const std::string& kernel : {"OI" + spatial, "O" + spatial + "I", spatial + "IO"}) {
      const int64_t per_group = ir::StaticDim(ShapeOf(window.weights)[kernel.find('I')]);
      if (per_group < 1 || channels < 1 || channels % per_group != 0) continue;
      found->push_back({{x, weights},
                        [=, strides = of(window.strides), dilations = of(window.dilations),
                         padding = Joined(of(window.before), of(window.behind))](const auto& all) {
                          return (*make)(all[0], all[1], strides, padding, dilations,
                                         channels / per_group, ffi::String(layout),
                                         ffi::String(kernel), ffi::String(layout), dtype);
                        }});
    }
  }
}

void AddPools(const WindowedReduction& window, const std::string& spatial, Candidates* found) {
  static const ir::GlobalFunction* const kMake[][2] = {
      {&ir::make::kNnMaxPool1d, &ir::make::kNnAvgPool1d},
      {&ir::make::kNnMaxPool2d, &ir::make::kNnAvgPool2d},
      {&ir::make::kNnMaxPool3d, &ir::make::kNnAvgPool3d}};
  for (bool has_channels_last : {false, true}) {
    const ffi::String layout(has_channels_last ? "N" + spatial + "C" : "NC" + spatial);
    const auto of = [&](const std::vector<int64_t>& values) {
      return Spatial(values, has_channels_last);
    };
    const ffi::Array<int64_t> sizes = of(window.sizes), strides = of(window.strides),
                              dilations = of(window.dilations);
    for (bool is_ceil : {false, true}) {
      ffi::Array<int64_t> behind = of(window.behind);
      for (size_t d = 0; d < behind.size() && is_ceil; ++d)
        behind.Set(d, behind[d] - (strides[d] - 1));  // which TVM pads then
      for (const ir::GlobalFunction* make : kMake[spatial.size() - 1]) {
        for (bool counts_padding : {false, true}) {
          found->push_back({{TensorTypeOf(window.x)},
                            [=, padding = Joined(of(window.before), behind)](const auto& all) {
                              return (*make)(all[0], sizes, strides, padding, dilations, is_ceil,
                                             counts_padding, layout, layout);
                            }});
        }
      }
    }
  }
}

}  // namespace

Candidates Windows(const std::vector<ir::Stmt>& statements, size_t begin) {
  Candidates found;
  const std::optional<WindowedReduction> window = ReadWindow(statements, begin);
  if (!window) return found;
  const size_t rank = ShapeOf(window->x).size();
  if (rank < 3 || rank > 5) return found;
  const std::string spatial = rank == 3 ? "W" : rank == 4 ? "HW" : "DHW";
  if (window->weights.defined()) {
    AddConvolutions(*window, spatial, &found);
  } else {
    AddPools(*window, spatial, &found);
  }
  return found;
}

}  // namespace distir::unfuse
