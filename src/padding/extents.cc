#include "padding/extents.h"

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
  std::vector<int> dims;
  if (!type.defined()) return dims;
  rules::Sizes sizes = rules::StaticSizes(type.tensor_ty());
  rules::Sizes padded = Extents(type);
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] != padded[d]) dims.push_back(static_cast<int>(d));
  }
  return dims;
}

ir::Type PaddedTypes::Padded(const ir::Type& type) {
  if (!type.defined()) return type;
  auto found = padded_.find(type.get());
  if (found != padded_.end()) return found->second.second;
  const ir::Type result = ir::MapLeaves(type, [this](const ir::Type& leaf) -> ir::Type {
    auto dtensor = ir::DTensorType::Cast(leaf);
    if (UnevenDims(dtensor).empty()) return leaf;
    return WithExtents(dtensor, Extents(dtensor));
  });
  padded_.emplace(type.get(), std::make_pair(type, result));
  return result;
}

ir::DTensorType WithExtents(const ir::DTensorType& type, const rules::Sizes& extents) {
  ffi::Array<ir::Expr> shape;
  for (const ir::Expr& dim : ir::ShapeOf(type.tensor_ty())) {
    int64_t extent = extents[shape.size()];
    shape.push_back(extent < 0 || extent == ir::StaticDim(dim) ? dim : ir::MakeInt(extent));
  }
  return ir::MakeDTensorType(ir::MakeTensorType(shape, type.tensor_ty()), type.device_mesh(),
                             type.placement());
}

}  // namespace padding
}  // namespace distir
