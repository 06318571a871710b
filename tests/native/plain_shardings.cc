#include "plain_shardings.h"

#include <tvm/ffi/error.h>

#include <limits>

namespace distir::test {

using mesh::AxisList;
using mesh::AxisRef;
using mesh::Canonical;
using mesh::Ints;
using mesh::Mesh;
using mesh::Sharding;
using mesh::ToIndex;

Ints ToInts(const std::vector<int64_t>& values) { return Ints(values.begin(), values.end()); }

AxisList ToAxes(const AxisData& data) {
  AxisList axes;
  for (const Ints& ref : data) {
    if (ref.size() != 3) {
      TVM_FFI_THROW(ValueError) << "an axis reference is [axis, pre_size, size], not " << ref.size()
                                << " numbers";
    }
    if (ref[1] < 1 || ref[2] < 1 || ref[1] > std::numeric_limits<int64_t>::max() / ref[2]) {
      TVM_FFI_THROW(ValueError) << "axis reference [" << ref[0] << ", " << ref[1] << ", " << ref[2]
                                << "] does not have positive sizes that fit an axis";
    }
    axes.push_back(AxisRef{ToIndex(ref[0]), ref[1], ref[2]});
  }
  return axes;
}

AxisData FromAxes(const AxisList& axes) {
  AxisData data;
  for (const AxisRef& ref : axes) data.push_back(Ints{ref.axis, ref.pre_size, ref.size});
  return data;
}

AxisList ToAxesOn(const Mesh& mesh, const AxisData& data) {
  Sharding sharding;
  sharding.dims.push_back(Canonical(ToAxes(data)));
  CheckValid(mesh, sharding);
  return sharding.dims.front();
}

Sharding ToSharding(const ShardingData& data) {
  if (data.size() != 3) {
    TVM_FFI_THROW(ValueError) << "a sharding is [dims, partial, reduction], not " << data.size()
                              << " entries";
  }
  Sharding sharding;
  for (const AxisData& axes : data[0].cast<ffi::Array<AxisData>>()) {
    sharding.dims.push_back(ToAxes(axes));
  }
  sharding.partial = ToAxes(data[1].cast<AxisData>());
  sharding.reduction = mesh::ReductionFromName(data[2].cast<ffi::String>());
  return sharding;
}

Sharding ToShardingOn(const Mesh& mesh, const ShardingData& data) {
  Sharding sharding = ToSharding(data);
  CheckValid(mesh, sharding);
  return sharding;
}

ShardingData FromSharding(const Sharding& sharding) {
  ffi::Array<AxisData> dims;
  for (const AxisList& axes : sharding.dims) dims.push_back(FromAxes(axes));
  return {dims, FromAxes(sharding.partial), ffi::String(mesh::ReductionName(sharding.reduction))};
}

}  // namespace distir::test
