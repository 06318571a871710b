// Describes which axes a collective moves between two shardings, and checks that it can.
#include "mesh/collective.h"

#include <tvm/ffi/error.h>

#include <string>
#include <vector>

#include "mesh/collective_record.h"

namespace distir::mesh {

namespace {

[[noreturn]] void ThrowNoStep(CollectiveKind kind, const Mesh& mesh, const Sharding& source,
                              const Sharding& target, const AxisList& reduce_axes = {}) {
  std::string over = reduce_axes.empty() ? "" : " over " + ToString(reduce_axes, mesh);
  TVM_FFI_THROW(ValueError) << CollectiveName(kind) << over << " does not lead from sharding "
                            << ToString(source, mesh) << " to " << ToString(target, mesh);
  TVM_FFI_UNREACHABLE();
}

/*! \brief Dimensions whose axis lists differ. */
std::vector<int> ChangedDims(const Sharding& source, const Sharding& target) {
  std::vector<int> changed;
  for (size_t d = 0; d < source.dims.size(); ++d) {
    if (Canonical(source.dims[d]) != Canonical(target.dims[d]))
      changed.push_back(static_cast<int>(d));
  }
  return changed;
}

}  // namespace

const char* CollectiveName(CollectiveKind kind) { return abi::NameOf(RecordedAs(kind)); }

CollectiveStep DescribeStep(CollectiveKind kind, const Mesh& root, const Sharding& source,
                            const Sharding& target, const AxisList& reduce_axes) {
  CollectiveStep step{kind, {}, -1, -1};
  if (source.dims.size() != target.dims.size()) ThrowNoStep(kind, root, source, target);
  std::vector<int> changed = ChangedDims(source, target);
  auto gained = [&](int d) {
    if (!IsPrefix(source.dims[d], target.dims[d])) ThrowNoStep(kind, root, source, target);
    return RemovePrefix(target.dims[d], source.dims[d]);
  };
  auto lost = [&](int d) {
    if (!IsPrefix(target.dims[d], source.dims[d])) ThrowNoStep(kind, root, source, target);
    return RemovePrefix(source.dims[d], target.dims[d]);
  };
  switch (kind) {
    case CollectiveKind::kAllGather:
      if (changed.size() != 1) ThrowNoStep(kind, root, source, target);
      step.dim = changed[0];
      step.axes = lost(step.dim);
      break;
    case CollectiveKind::kSlice:
    case CollectiveKind::kReduceScatter:
      if (changed.size() != 1) ThrowNoStep(kind, root, source, target);
      step.dim = changed[0];
      step.axes = gained(step.dim);
      if (kind == CollectiveKind::kReduceScatter &&
          Canonical(step.axes) != Canonical(reduce_axes)) {
        ThrowNoStep(kind, root, source, target, reduce_axes);
      }
      break;
    case CollectiveKind::kAllToAll: {
      if (changed.size() != 2) ThrowNoStep(kind, root, source, target);
      bool first_loses = IsPrefix(target.dims[changed[0]], source.dims[changed[0]]);
      step.dim = first_loses ? changed[0] : changed[1];
      step.to_dim = first_loses ? changed[1] : changed[0];
      step.axes = lost(step.dim);
      if (Canonical(gained(step.to_dim)) != Canonical(step.axes))
        ThrowNoStep(kind, root, source, target);
      break;
    }
    case CollectiveKind::kAllReduce:
      // An axis that a value is partial over cannot shard it at the same time.
      for (const AxisList& axes : source.dims) {
        if (Overlaps(axes, reduce_axes)) ThrowNoStep(kind, root, source, target, reduce_axes);
      }
      if (!changed.empty() || reduce_axes.empty())
        ThrowNoStep(kind, root, source, target, reduce_axes);
      step.axes = reduce_axes;
      break;
    case CollectiveKind::kPermute:
      for (size_t d = 0; d < source.dims.size(); ++d) {
        if (NumShards(source.dims[d]) != NumShards(target.dims[d]))
          ThrowNoStep(kind, root, source, target);
      }
      break;
    case CollectiveKind::kView:
      if (!SameLayout(root, source, target)) ThrowNoStep(kind, root, source, target);
      break;
    case CollectiveKind::kExchange:
    case CollectiveKind::kTransfer:
      break;
  }
  return step;
}

}  // namespace distir::mesh
