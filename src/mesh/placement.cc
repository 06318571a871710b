/*!
 * \file mesh/placement.cc
 * \brief Converts shardings to placements, which have at most one tensor dimension per mesh axis,
 * and back.
 */
#include <tvm/ffi/error.h>

#include <algorithm>

#include "mesh/axis_text.h"
#include "mesh/sharding.h"
#include "support/counted.h"

namespace distir::mesh {

namespace {

/*! \brief A reference that becomes one axis of a view, and the tensor dimension that it shards. */
struct Part {
  AxisRef ref;
  int dim;
};

/*! \brief Computes ToPlacementOn(root, root, sharding) without relating the mesh to itself. */
std::optional<std::vector<int>> ToPlacementOnRoot(const Mesh& root, const Sharding& sharding) {
  std::vector<int> axis_to_dim(root.shape.size(), -1);
  for (size_t dim = 0; dim < sharding.dims.size(); ++dim) {
    int last = -1;
    for (const AxisRef& ref : Canonical(sharding.dims[dim])) {
      if (ref.axis <= last || !(ref == FullAxis(root, ref.axis))) return std::nullopt;
      last = ref.axis;
      axis_to_dim[last] = static_cast<int>(dim);
    }
  }
  return axis_to_dim;
}

Mesh ViewOf(const Mesh& root, const std::vector<Part>& parts) {
  std::vector<int64_t> axis_stride(root.shape.size(), 1);
  for (int axis = root.ndim() - 2; axis >= 0; --axis) {
    axis_stride[axis] = axis_stride[axis + 1] * root.shape[axis + 1];
  }
  Mesh view;
  std::vector<int64_t> positions = {0};  // root position of every position of the view so far
  for (const Part& part : parts) {
    const AxisRef& ref = part.ref;
    const int64_t stride =
        axis_stride[ref.axis] * (root.shape[ref.axis] / (ref.pre_size * ref.size));
    view.shape.push_back(ref.size);
    std::vector<int64_t> next;
    next.reserve(positions.size() * ref.size);
    for (int64_t position : positions) {
      for (int64_t i = 0; i < ref.size; ++i) next.push_back(position + i * stride);
    }
    positions = std::move(next);
  }
  for (int64_t position : positions) view.device_ids.push_back(root.device_ids[position]);
  return view;
}

/*! \brief The parts of a reference, major to minor, between the ends of the references in `apart`.
 */
AxisList CutAtEnds(const AxisRef& ref, const AxisList& apart) {
  std::vector<int64_t> cuts = {ref.pre_size * ref.size};
  for (const AxisRef& other : apart) {
    if (other.axis != ref.axis) continue;
    for (int64_t cut : {other.pre_size, other.pre_size * other.size}) {
      if (cut > ref.pre_size && cut < ref.pre_size * ref.size) cuts.push_back(cut);
    }
  }
  std::sort(cuts.begin(), cuts.end());
  AxisList parts;
  int64_t begin = ref.pre_size;
  for (int64_t cut : cuts) {
    if (cut == begin) continue;
    parts.push_back({ref.axis, begin, cut / begin});
    begin = cut;
  }
  return parts;
}

bool AreWholeAxes(const Mesh& mesh, const AxisList& axes) {
  return std::all_of(axes.begin(), axes.end(),
                     [&mesh](const AxisRef& ref) { return ref == FullAxis(mesh, ref.axis); });
}

/*! \brief True if the parts, once sorted in root order, still nest as their dimensions ask. */
bool NestsInRootOrder(const std::vector<Part>& parts) {
  // Parts are listed dimension by dimension.
  return std::adjacent_find(parts.begin(), parts.end(), [](const Part& a, const Part& b) {
           return a.dim >= 0 && a.dim == b.dim && !(a.ref < b.ref);
         }) == parts.end();
}

}  // namespace

MeshPlacement ToPlacement(const Mesh& root, const Sharding& sharding, const AxisList& apart) {
  auto on_root = ToPlacementOnRoot(root, sharding);
  if (on_root && AreWholeAxes(root, apart)) return MeshPlacement{root, std::move(*on_root)};
  std::vector<Part> parts;
  AxisList used;
  auto add = [&](const AxisRef& ref, int dim) {
    for (const AxisRef& part : CutAtEnds(ref, apart)) parts.push_back(Part{part, dim});
  };
  for (size_t dim = 0; dim < sharding.dims.size(); ++dim) {
    for (const AxisRef& ref : Canonical(sharding.dims[dim])) {
      add(ref, static_cast<int>(dim));
      used.push_back(ref);
    }
  }
  for (const AxisRef& ref : Complement(root, used)) add(ref, -1);
  if (NestsInRootOrder(parts)) {
    std::sort(parts.begin(), parts.end(),
              [](const Part& a, const Part& b) { return a.ref < b.ref; });
  }
  MeshPlacement placement{ViewOf(root, parts), {}};
  for (const Part& part : parts) placement.axis_to_dim.push_back(part.dim);
  return placement;
}

std::optional<std::vector<int>> ToPlacementOn(const Mesh& view, const Mesh& root,
                                              const Sharding& sharding) {
  if (view == root) return ToPlacementOnRoot(root, sharding);
  const auto related = Relate(view, root);
  if (!related) return std::nullopt;
  std::vector<int> axis_to_dim(view.shape.size(), -1);
  for (size_t dim = 0; dim < sharding.dims.size(); ++dim) {
    const AxisList& wanted = sharding.dims[dim];
    AxisList nested;
    for (size_t axis = 0; axis < related->size(); ++axis) {
      const AxisList& refs = (*related)[axis];
      if (!Overlaps(refs, wanted)) continue;
      nested.insert(nested.end(), refs.begin(), refs.end());
      axis_to_dim[axis] = static_cast<int>(dim);
    }
    if (Canonical(nested) != Canonical(wanted)) return std::nullopt;
  }
  return axis_to_dim;
}

Sharding FromPlacement(const Mesh& view, const std::vector<int>& axis_to_dim, int ndim,
                       const Mesh& root) {
  if (axis_to_dim.size() != view.shape.size()) {
    TVM_FFI_THROW(ValueError) << "a placement with "
                              << support::Counted(axis_to_dim.size(), "entry", "entries")
                              << " does not fit the mesh " << ToString(view);
  }
  const auto related = Relate(view, root);
  if (!related) {
    TVM_FFI_THROW(ValueError) << "the mesh " << ToString(view) << " is not a view of the mesh "
                              << ToString(root);
  }
  Sharding sharding = Sharding::Replicated(ndim);
  for (size_t axis = 0; axis < axis_to_dim.size(); ++axis) {
    const int dim = axis_to_dim[axis];
    if (dim == -1) continue;
    if (dim < 0 || dim >= ndim) {
      TVM_FFI_THROW(ValueError) << AxisText(view, static_cast<int>(axis))
                                << " is placed on dimension " << dim << " of a tensor of "
                                << support::Counted(ndim, "dimension", "dimensions");
    }
    const AxisList& refs = (*related)[axis];
    sharding.dims[dim].insert(sharding.dims[dim].end(), refs.begin(), refs.end());
  }
  return Canonical(sharding);
}

}  // namespace distir::mesh
