// Computes the padded extents of dimensions.
#include "padding/extents.h"

#include <algorithm>
#include <numeric>

#include "dialect/placement.h"
#include "ir/build.h"
#include "ir/leaves.h"
#include "ir/size_arithmetic.h"
#include "ir/symbolic.h"
#include "padding/size.h"

namespace distir::padding {

bool Extents::operator==(const Extents& other) const {
  return std::equal(begin(), end(), other.begin(), other.end(), ir::SameDim);
}

Extents ExtentsOf(const ir::TensorType& type) {
  const ir::NodeArray<ir::Expr>& shape = ir::ShapeOf(type);
  return Extents(shape.begin(), shape.end());
}

Extents ExtentsOf(const ir::Expr& value) {
  return ExtentsOf(ir::DTensorType::Cast(value.ty()).tensor_ty());
}

Extents PaddedTypes::Of(const ir::DTensorType& type) {
  Extents sizes = ExtentsOf(type.tensor_ty());
  const mesh::Sharding& sharding = meshes_.ShardingOf(type);
  for (size_t d = 0; d < sizes.size(); ++d) {
    const int64_t shards = mesh::NumShards(sharding.dims[d]);
    if (!ir::AlwaysDivides(sizes[d], shards)) sizes[d] = Size(sizes[d]).Even(shards);
  }
  return sizes;
}

std::vector<int> PaddedTypes::UnevenDims(const ir::DTensorType& type) {
  return type.defined() ? PaddedDims(type, Of(type)) : std::vector<int>();
}

ValueExtents PaddedTypes::ExtentsOfAll(const ir::Type& type) {
  std::vector<ir::DTensorType> tensors;
  dialect::CollectDTensorTypes(type, &tensors);
  ValueExtents extents;
  for (const ir::DTensorType& tensor : tensors)
    extents.push_back(tensor.defined() ? Of(tensor) : Extents());
  return extents;
}

std::vector<int> PaddedDims(const ir::DTensorType& type, const Extents& extents) {
  std::vector<int> dims;
  if (!type.defined()) return dims;
  const ir::NodeArray<ir::Expr>& sizes = ir::ShapeOf(type.tensor_ty());
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (!ir::SameDim(sizes[d], extents[d])) dims.push_back(static_cast<int>(d));
  }
  return dims;
}

bool IsPadded(const ir::Type& type, const ValueExtents& extents) {
  std::vector<ir::DTensorType> tensors;
  dialect::CollectDTensorTypes(type, &tensors);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!PaddedDims(tensors[i], extents[i]).empty()) return true;
  }
  return false;
}

bool Differ(const Extents& a, const Extents& b) { return !a.empty() && !b.empty() && a != b; }

bool Differ(const ValueExtents& a, const ValueExtents& b) {
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (Differ(a[i], b[i])) return true;
  }
  return false;
}

Extents CommonExtents(const Extents& have, const mesh::Sharding& before, const Extents& want,
                      const mesh::Sharding& after) {
  Extents common = want;
  if (!Differ(have, want)) return common;
  for (size_t d = 0; d < want.size(); ++d) {
    const int64_t from = mesh::NumShards(before.dims[d]), to = mesh::NumShards(after.dims[d]);
    const int64_t has = ir::StaticDim(have[d]), wants = ir::StaticDim(want[d]);
    if (to == 1) {
      common[d] = have[d];
    } else if (from > 1 && has >= 0 && wants >= 0) {
      common[d] = ir::MakeInt(mesh::EvenExtent(std::max(has, wants), std::lcm(from, to)));
    }
  }
  return common;
}

ir::DTensorType WithExtents(const ir::DTensorType& type, const Extents& extents) {
  if (!ir::HasKnownShape(type.tensor_ty())) return type;
  ffi::Array<ir::Expr> shape(extents.begin(), extents.end());
  return ir::MakeDTensorType(ir::MakeTensorType(shape, type.tensor_ty()), type.device_mesh(),
                             type.placement());
}

ir::Type WithExtents(const ir::Type& type, const ValueExtents& extents) {
  size_t next = 0;
  return ir::MapLeaves(type, [&](const ir::Type& leaf) -> ir::Type {
    auto dtensor = ir::DTensorType::Cast(leaf);
    if (!dtensor.defined() && !ir::TensorType::Is(leaf)) return leaf;
    const Extents& sizes = extents[next++];
    if (PaddedDims(dtensor, sizes).empty()) return leaf;
    return WithExtents(dtensor, sizes);
  });
}

}  // namespace distir::padding
