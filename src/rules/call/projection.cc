// Projects shardings of tensors to factors, and composes them back.
#include "rules/call/projection.h"

#include <numeric>

namespace distir::rules {

using mesh::AxisList;
using mesh::AxisRef;
using mesh::Sharding;

namespace {

// Only compares tensors, so any size that is neither negligible nor dominant will do.
constexpr double kAssumedSymbolicSize = 1024;

/*! \brief True if the elements of a dimension divide into shards, where they are known. */
bool DividesInto(const FactorRule& rule, const FactorList& dim, int64_t shards) {
  int64_t size = 1;
  for (int f : dim) {
    if (rule.factors[f].size < 0) return true;
    size *= rule.factors[f].size;
  }
  return size % shards == 0;
}

/*! \brief The longest prefix of `axes` with an element for each shard. */
AxisList PrefixWithin(const AxisList& axes, int64_t size) {
  AxisList prefix;
  int64_t shards = 1;
  for (const AxisRef& ref : axes) {
    shards *= ref.size;
    if (shards > size) break;
    prefix.push_back(ref);
  }
  return prefix;
}

/*! \brief The axes that a factor gives a dimension that it alone makes up. */
AxisList AxesOf(const FactorList& dim, const AxisList& axes, Side side) {
  AxisList taken = axes;
  if (!dim.HasRoomFor(mesh::NumShards(axes)))
    taken = side == Side::kResult ? PrefixWithin(axes, dim.extent) : AxisList();
  return taken.size() > 1 ? mesh::Canonical(taken) : taken;
}

}  // namespace

AxisList FittingPrefix(const AxisList& axes, int64_t size) {
  if (size < 0) return axes;
  AxisList prefix;
  for (const AxisRef& ref : axes) {
    if (size % ref.size == 0) {
      prefix.push_back(ref);
      size /= ref.size;
      continue;
    }
    int64_t shared = std::gcd(size, ref.size);
    if (shared > 1) prefix.push_back({ref.axis, ref.pre_size, shared});
    break;
  }
  return prefix;
}

AxisList FittingPrefix(const AxisList& axes, const Factor& factor) {
  if (!factor.may_be_uneven || factor.size < 0) return FittingPrefix(axes, factor.size);
  AxisList prefix = PrefixWithin(axes, factor.size);
  const bool takes_all = prefix.size() == axes.size();
  return factor.is_grained && !takes_all ? FittingPrefix(axes, factor.size) : prefix;
}

void Project(const FactorRule& rule, const TensorFactors& tensor, const Sharding& sharding,
             FactorShardings* out) {
  for (size_t d = 0; d < tensor.size(); ++d) {
    if (sharding.dims[d].empty()) continue;
    AxisList rest = sharding.dims[d];
    const bool is_even = DividesInto(rule, tensor[d], mesh::NumShards(rest));
    for (int f : tensor[d]) {
      int64_t size = rule.factors[f].size;
      AxisList prefix = FittingPrefix(rest, rule.factors[f]);
      if (prefix.empty()) break;
      // Of 8 = [2 4] elements in 6 shards, no shards begin where the second 4 do.
      if (!is_even && tensor[d].size() > 1 && !(prefix == rest)) break;
      (*out)[f] = prefix;
      rest = mesh::RemovePrefix(rest, prefix);
      if (size < 0 || mesh::NumShards(prefix) != size) break;
    }
  }
}

Sharding Compose(const FactorRule& rule, Side side, const TensorFactors& tensor,
                 const FactorShardings& factors) {
  Sharding sharding = Sharding::Replicated(static_cast<int>(tensor.size()));
  for (size_t d = 0; d < tensor.size(); ++d) {
    AxisList& axes = sharding.dims[d];
    if (tensor[d].size() == 1) {
      const AxisList& only = factors[tensor[d][0]];
      if (!only.empty()) axes = AxesOf(tensor[d], only, side);
      continue;
    }
    for (int f : tensor[d]) {
      axes.insert(axes.end(), factors[f].begin(), factors[f].end());
      if (rule.factors[f].size < 0 || mesh::NumShards(factors[f]) != rule.factors[f].size) break;
    }
    if (axes.size() > 1) axes = mesh::Canonical(axes);
  }
  return sharding;
}

void DropUnnestable(const FactorRule& rule, FactorShardings* factors) {
  bool changed = true;
  while (changed) {
    changed = false;
    for (const auto* tensors : {&rule.operands, &rule.results}) {
      for (const TensorFactors& tensor : *tensors) {
        for (const FactorList& dim : tensor) {
          if (dim.size() < 2) continue;
          bool full = true;
          for (int f : dim) {
            if (!full && !(*factors)[f].empty()) {
              (*factors)[f].clear();
              changed = true;
            }
            full = full && rule.factors[f].size >= 0 &&
                   mesh::NumShards((*factors)[f]) == rule.factors[f].size;
          }
        }
      }
    }
  }
}

double NumElements(const Sizes& sizes) {
  double elements = 1;
  for (int64_t size : sizes)
    elements *= size < 0 ? kAssumedSymbolicSize : static_cast<double>(size);
  return elements;
}

}  // namespace distir::rules
