// Prices ways to compute a call, which assign mesh axes to its factors, and finds other dimensions
// for axes that it cannot use.
#include "rules/call/call_cost.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "cost/collective_cost.h"
#include "cost/exchange.h"
#include "mesh/collective.h"

namespace distir::rules {

using mesh::AxisList;
using mesh::Sharding;

namespace {

double LocalBytes(const Sharding& sharding, double bytes) {
  for (const AxisList& dim : sharding.dims) bytes /= static_cast<double>(mesh::NumShards(dim));
  return bytes;
}

/*! \brief Bytes on a device of all tensors of a side that have a factor. */
double LocalBytesWith(size_t factor, const FactorRule& rule, Side side,
                      const FactorShardings& factors,
                      const std::vector<planning::TensorSize>& sizes) {
  const auto& tensors = side == Side::kResult ? rule.results : rule.operands;
  double sum = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const bool has_factor =
        std::any_of(tensors[i].begin(), tensors[i].end(), [factor](const FactorList& dim) {
          return std::find(dim.begin(), dim.end(), static_cast<int>(factor)) != dim.end();
        });
    if (has_factor) sum += LocalBytes(Compose(rule, side, tensors[i], factors), sizes[i].bytes);
  }
  return sum;
}

/*! \brief True if a parallel factor takes another axis: it divides into the shards, or every one of
 * them has an element and the last ones may be padded. */
bool HasRoom(const FactorRule& rule, size_t factor, const AxisList& axes,
             const mesh::AxisRef& more) {
  const Factor& info = rule.factors[factor];
  if (!info.Is<ParallelFactor>() || info.size < 0) return false;
  AxisList all = axes;
  all.push_back(more);
  return mesh::NumShards(FittingPrefix(all, info)) == mesh::NumShards(all);
}

/*! \brief True if an operand has fewer elements than shards along a factor that moves elements: no
 * more than those, whose places are often those of a longer tensor (rules/parts.h). */
bool IsShort(const FactorRule& rule, const TensorFactors& operand, const FactorShardings& factors) {
  return std::any_of(operand.begin(), operand.end(), [&](const FactorList& dim) {
    return dim.size() == 1 && rule.factors[dim[0]].moves() &&
           !dim.HasRoomFor(mesh::NumShards(factors[dim[0]]));
  });
}

/*! \brief The axes of an operand that some factor could have, were it the only tensor. */
AxisList Usable(const FactorRule& rule, const TensorFactors& operand, const Sharding& sharding) {
  FactorShardings factors(rule.factors.size());
  Project(rule, operand, sharding, &factors);
  DropUnnestable(rule, &factors);
  AxisList usable;
  for (const AxisList& axes : factors) usable.insert(usable.end(), axes.begin(), axes.end());
  return usable;
}

}  // namespace

Sharding ComputedResult(const FactorRule& rule, size_t result, const FactorShardings& factors) {
  Sharding computed = Compose(rule, Side::kResult, rule.results[result], factors);
  for (size_t f = 0; f < rule.factors.size(); ++f) {
    if (!rule.IsCombined(f) || factors[f].empty()) continue;
    const Factor& factor = rule.factors[f];
    computed.reduction = factor.Is<ReductionFactor>() ? factor.reduction() : mesh::Reduction::kSum;
    computed.partial.insert(computed.partial.end(), factors[f].begin(), factors[f].end());
  }
  return computed;
}

void PricedTensors::Add(const Sharding* sharding, const Sizes& dims, double bytes) {
  shardings.push_back(sharding);
  planning::TensorSize& size = sizes.emplace_back();
  for (int64_t dim : dims) size.dims.push_back(std::max<int64_t>(dim, 0));
  size.bytes = bytes;
}

double CallCost::SecondsToMove(const Sharding& from, const Sharding& to,
                               const planning::TensorSize& size) const {
  if (from.partial.empty() && mesh::SameLayout(mesh_, from, to)) return 0;
  return planner_.Find(mesh_, from, to, planning::PaddedFor(size, from, to)).seconds;
}

double CallCost::SecondsBetweenShards(const FactorShardings& factors) const {
  const cost::Cluster& cluster = planner_.cluster();
  double seconds = 0;
  for (size_t f = 0; f < factors.size(); ++f) {
    const DecomposedFactor* factor = rule_.factors[f].decomposed();
    if (factor == nullptr || factor->exchanged == Exchanged::kNothing || factors[f].empty())
      continue;
    const int64_t shards = mesh::NumShards(factors[f]);
    const cost::Link& link = cluster.links()[cluster.Along(mesh_, factors[f])];
    const bool moves = factor->exchanged == Exchanged::kMoved;
    const double shard_bytes =
        moves ? LocalBytesWith(f, rule_, Side::kResult, factors, results_.sizes)
              : LocalBytesWith(f, rule_, Side::kOperand, factors, operands_.sizes);
    const double part = factor->part * static_cast<double>(shards);  // of a shard
    if (factor->exchanged == Exchanged::kStatistics) {
      seconds += cost::Seconds(mesh::CollectiveKind::kAllReduce, cluster.launch(), link, shards,
                               part * shard_bytes);
    } else {
      const double most = moves ? 1 : static_cast<double>(shards - 1);
      seconds +=
          cost::SecondsAlongDim(cluster.launch(), link, shards, std::min(part, most), shard_bytes);
    }
  }
  return seconds;
}

double CallCost::Seconds(const FactorShardings& factors) const {
  double seconds = SecondsBetweenShards(factors);
  for (size_t i = 0; i < operands_.shardings.size(); ++i) {
    const Sharding* operand = operands_.shardings[i];
    if (operand == nullptr || IsShort(rule_, rule_.operands[i], factors)) continue;
    seconds += SecondsToMove(*operand, Compose(rule_, Side::kOperand, rule_.operands[i], factors),
                             operands_.sizes[i]);
  }
  for (size_t r = 0; r < results_.shardings.size(); ++r) {
    const Sharding* wanted = results_.shardings[r];
    const Sharding computed = ComputedResult(rule_, r, factors);
    Sharding whole = computed;
    whole.partial.clear();
    whole.reduction = mesh::Reduction::kNone;
    seconds += SecondsToMove(computed, wanted == nullptr ? whole : *wanted, results_.sizes[r]);
  }
  return seconds;
}

AxisList CallCost::Homeless(const FactorShardings& factors) const {
  AxisList taken;
  for (const AxisList& axes : factors) taken.insert(taken.end(), axes.begin(), axes.end());
  AxisList homeless;
  for (size_t i = 0; i < operands_.shardings.size(); ++i) {
    const Sharding* operand = operands_.shardings[i];
    if (operand == nullptr) continue;
    std::optional<AxisList> usable;
    for (const AxisList& axes : operand->dims) {
      for (const mesh::AxisRef& axis : axes) {
        if (mesh::Overlaps({axis}, taken)) continue;
        if (!usable) usable = Usable(rule_, rule_.operands[i], *operand);
        if (mesh::Overlaps({axis}, *usable)) continue;
        taken.push_back(axis);
        homeless.push_back(axis);
      }
    }
  }
  return homeless;
}

std::vector<CallCost::Home> CallCost::Homes(const FactorShardings& factors,
                                            const mesh::AxisRef& axis, int preferred) const {
  std::vector<Home> homes;
  const double gathered = Seconds(factors);
  for (size_t f = 0; f < factors.size(); ++f) {
    if (!HasRoom(rule_, f, factors[f], axis)) continue;
    FactorShardings moved = factors;
    moved[f].push_back(axis);
    FactorShardings nested = moved;
    DropUnnestable(rule_, &nested);
    if (nested != moved) continue;
    const double seconds = Seconds(moved);
    if (seconds < gathered * (1 - 1e-9)) homes.push_back({static_cast<int>(f), seconds});
  }
  std::stable_sort(homes.begin(), homes.end(), [preferred](const Home& a, const Home& b) {
    if (std::abs(a.seconds - b.seconds) > a.seconds * 1e-9) return a.seconds < b.seconds;
    return a.factor == preferred && b.factor != preferred;
  });
  return homes;
}

std::vector<int> CallCost::Rehome(FactorShardings* factors, int preferred) const {
  std::vector<int> extended;
  for (const mesh::AxisRef& axis : Homeless(*factors)) {
    const std::vector<Home> homes = Homes(*factors, axis, preferred);
    if (homes.empty()) continue;
    preferred = homes.front().factor;
    (*factors)[preferred].push_back(axis);
    extended.push_back(preferred);
  }
  return extended;
}

std::vector<FactorShardings> CallCost::Rehomed(const FactorShardings& factors) const {
  std::vector<FactorShardings> found;
  const AxisList homeless = Homeless(factors);
  if (homeless.empty()) return found;
  for (const Home& first : Homes(factors, homeless.front(), kNoFactor)) {
    FactorShardings moved = factors;
    moved[first.factor].push_back(homeless.front());
    Rehome(&moved, first.factor);
    found.push_back(std::move(moved));
  }
  return found;
}

}  // namespace distir::rules
