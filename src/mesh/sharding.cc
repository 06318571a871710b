/*!
 * \file mesh/sharding.cc
 * \brief Shardings: canonical form, validity, local shapes.
 */
#include "mesh/sharding.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <array>

namespace distir::mesh {

namespace {

constexpr std::array<const char*, 6> kReductionNames = {"none", "sum",  "max",
                                                        "min",  "prod", "mean"};

AxisList CanonicalSet(AxisList axes) {
  std::sort(axes.begin(), axes.end());
  return Canonical(axes);
}

bool SameList(const AxisList& a, const AxisList& b) {
  return NumShards(a) == NumShards(b) && IsPrefix(a, b);
}

/*! \brief Place of a reference; the dimension after the last stands for the partial axes. */
std::string PlaceName(size_t place, size_t ndim) {
  return place == ndim ? "the partial axes" : "tensor dimension " + std::to_string(place);
}

void CheckWithinAxis(const Mesh& mesh, const AxisRef& ref, const std::string& place) {
  if (ref.axis < 0 || ref.axis >= mesh.ndim()) {
    TVM_FFI_THROW(ValueError) << place << ": there is no axis " << ref.axis << " in the mesh "
                              << ToString(mesh);
  }
  const int64_t extent = mesh.shape[ref.axis];
  // Factor by factor, since the product of made-up sizes may not fit.
  if (ref.pre_size < 1 || ref.size <= 1 || extent % ref.pre_size != 0 ||
      extent / ref.pre_size % ref.size != 0) {
    TVM_FFI_THROW(ValueError) << place << ": axis reference " << ToString(AxisList{ref}, mesh)
                              << " is not a part of mesh axis "
                              << ToString(AxisList{FullAxis(mesh, ref.axis)}, mesh) << " of size "
                              << extent;
  }
}

}  // namespace

const char* ReductionName(Reduction kind) { return kReductionNames.at(static_cast<size_t>(kind)); }

Reduction ReductionFromName(const std::string& name) {
  auto it = std::find(kReductionNames.begin(), kReductionNames.end(), name);
  if (it == kReductionNames.end()) {
    TVM_FFI_THROW(ValueError) << "unknown reduction \"" << name
                              << "\"; known are none, sum, max, min, prod, mean";
  }
  return static_cast<Reduction>(it - kReductionNames.begin());
}

Sharding Sharding::Replicated(int ndim) {
  Sharding sharding;
  sharding.dims.resize(ndim);
  return sharding;
}

bool Sharding::IsReplicated() const {
  return partial.empty() &&
         std::all_of(dims.begin(), dims.end(), [](const AxisList& axes) { return axes.empty(); });
}

bool Sharding::operator==(const Sharding& other) const {
  return dims == other.dims && partial == other.partial && reduction == other.reduction;
}

Sharding Canonical(const Sharding& sharding) {
  Sharding result;
  result.dims.reserve(sharding.dims.size());
  for (const AxisList& axes : sharding.dims) result.dims.push_back(Canonical(axes));
  result.partial = CanonicalSet(sharding.partial);
  if (!result.partial.empty()) result.reduction = sharding.reduction;
  return result;
}

void CheckValid(const Mesh& mesh, const Sharding& sharding) {
  const size_t ndim = sharding.dims.size();
  std::vector<std::pair<AxisRef, size_t>> seen;
  for (size_t place = 0; place <= ndim; ++place) {
    for (const AxisRef& ref : place == ndim ? sharding.partial : sharding.dims[place]) {
      CheckWithinAxis(mesh, ref, PlaceName(place, ndim));
      for (const auto& [other, other_place] : seen) {
        if (!Overlaps(ref, other)) continue;
        TVM_FFI_THROW(ValueError) << PlaceName(place, ndim) << ": axis reference "
                                  << ToString(AxisList{ref}, mesh) << " overlaps "
                                  << ToString(AxisList{other}, mesh) << " of "
                                  << PlaceName(other_place, ndim);
      }
      seen.emplace_back(ref, place);
    }
  }
  if (!sharding.partial.empty() && sharding.reduction == Reduction::kNone) {
    TVM_FFI_THROW(ValueError) << "the partial axes " << ToString(sharding.partial, mesh)
                              << " have no reduction";
  }
}

std::vector<int64_t> LocalShape(const std::vector<int64_t>& shape, const Sharding& sharding) {
  if (shape.size() != sharding.dims.size()) {
    TVM_FFI_THROW(ValueError) << "a sharding of " << sharding.dims.size()
                              << " dimensions does not fit a tensor of " << shape.size();
  }
  std::vector<int64_t> local(shape.size());
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    const int64_t shards = NumShards(sharding.dims[dim]);
    if (shape[dim] % shards != 0) {
      TVM_FFI_THROW(ValueError) << "dimension " << dim << " of size " << shape[dim]
                                << " does not divide into " << shards << " shards";
    }
    local[dim] = shape[dim] / shards;
  }
  return local;
}

bool SameLayout(const Mesh&, const Sharding& a, const Sharding& b) {
  if (a.dims.size() != b.dims.size()) return false;
  for (size_t dim = 0; dim < a.dims.size(); ++dim) {
    if (!SameList(a.dims[dim], b.dims[dim])) return false;
  }
  if (a.partial.empty() && b.partial.empty()) return true;
  const AxisList partial = CanonicalSet(a.partial);
  if (partial != CanonicalSet(b.partial)) return false;
  return partial.empty() || a.reduction == b.reduction;
}

}  // namespace distir::mesh
