#include "padding/extents.h"

#include <algorithm>

#include "dialect/placement.h"
#include "ir/build.h"
#include "ir/leaves.h"
#include "ir/symbolic.h"

namespace distir {
namespace padding {

rules::Sizes PaddedTypes::Extents(const ir::DTensorType& type) {
  rules::Sizes sizes = rules::StaticSizes(type.tensor_ty());
  const mesh::Sharding& sharding = meshes_.ShardingOf(type);
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] < 0 || sharding.dims[d].empty()) continue;
    sizes[d] = mesh::EvenExtent(sizes[d], mesh::NumShards(sharding.dims[d]));
  }
  return sizes;
}

std::vector<int> PaddedTypes::UnevenDims(const ir::DTensorType& type) {
  return type.defined() ? PaddedDims(type, Extents(type)) : std::vector<int>();
}

ValueExtents PaddedTypes::ExtentsOfAll(const ir::Type& type) {
  std::vector<ir::DTensorType> tensors;
  dialect::CollectDTensorTypes(type, &tensors);
  ValueExtents extents;
  for (const ir::DTensorType& tensor : tensors)
    extents.push_back(tensor.defined() ? Extents(tensor) : rules::Sizes());
  return extents;
}

std::vector<int> PaddedDims(const ir::DTensorType& type, const rules::Sizes& extents) {
  std::vector<int> dims;
  if (!type.defined()) return dims;
  const rules::Sizes sizes = rules::StaticSizes(type.tensor_ty());
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] != extents[d]) dims.push_back(static_cast<int>(d));
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

bool Differ(const rules::Sizes& a, const rules::Sizes& b) {
  for (size_t d = 0; d < std::min(a.size(), b.size()); ++d) {
    if (a[d] >= 0 && b[d] >= 0 && a[d] != b[d]) return true;
  }
  return false;
}

bool Differ(const ValueExtents& a, const ValueExtents& b) {
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (Differ(a[i], b[i])) return true;
  }
  return false;
}

ir::DTensorType WithExtents(const ir::DTensorType& type, const rules::Sizes& extents) {
  if (!ir::HasKnownShape(type.tensor_ty())) return type;
  ffi::Array<ir::Expr> shape;
  for (const ir::Expr& dim : ir::ShapeOf(type.tensor_ty())) {
    int64_t extent = extents[shape.size()];
    shape.push_back(extent < 0 || extent == ir::StaticDim(dim) ? dim : ir::MakeInt(extent));
  }
  return ir::MakeDTensorType(ir::MakeTensorType(shape, type.tensor_ty()), type.device_mesh(),
                             type.placement());
}

ir::Type WithExtents(const ir::Type& type, const ValueExtents& extents) {
  size_t next = 0;
  return ir::MapLeaves(type, [&](const ir::Type& leaf) -> ir::Type {
    auto dtensor = ir::DTensorType::Cast(leaf);
    if (!dtensor.defined() && !ir::TensorType::Is(leaf)) return leaf;
    const rules::Sizes& sizes = extents[next++];
    if (PaddedDims(dtensor, sizes).empty()) return leaf;
    return WithExtents(dtensor, sizes);
  });
}

}  // namespace padding
}  // namespace distir
