// Makes the mesh of the automatic axes of a manual region.
#include "mesh/region.h"

#include <algorithm>

namespace distir::mesh {

RegionMesh MakeRegionMesh(const Mesh& outer, const AxisList& manual) {
  RegionMesh region;
  region.outer = Complement(outer, manual);
  for (const AxisRef& ref : region.outer) region.mesh.shape.push_back(ref.size);
  if (region.outer.empty()) region.mesh.shape.push_back(1);
  // The group of the first device, whose coordinates are all 0.
  region.mesh.device_ids = DeviceGroups(outer, region.outer)[0];
  return region;
}

AxisList MapPrefix(const AxisList& axes, const std::vector<AxisPair>& pairs) {
  AxisList mapped;
  for (const AxisRef& ref : axes) {
    const auto pair = std::find_if(pairs.begin(), pairs.end(), [&ref](const AxisPair& each) {
      return each.from.axis == ref.axis && ref.pre_size % each.from.pre_size == 0 &&
             each.from.size % (ref.pre_size / each.from.pre_size) == 0 &&
             ref.pre_size < each.from.pre_size * each.from.size;
    });
    if (pair == pairs.end()) break;
    const int64_t before = ref.pre_size / pair->from.pre_size;
    const int64_t room = pair->from.size / before;
    const bool is_within = room % ref.size == 0;
    if (!is_within && ref.size % room != 0) break;
    mapped.push_back({pair->to.axis, pair->to.pre_size * before, is_within ? ref.size : room});
    if (!is_within) break;
  }
  return Canonical(mapped);
}

}  // namespace distir::mesh
