// Prices ways to compute a call, and assigns contested axes to factors by price.
#include "rules/call/call_cost.h"

#include <algorithm>

#include "cost/collective_cost.h"
#include "cost/exchange.h"

namespace distir::rules {

using mesh::AxisList;
using mesh::Sharding;

namespace {

double LocalBytes(const Sharding& sharding, double bytes) {
  for (const AxisList& dim : sharding.dims) bytes /= static_cast<double>(mesh::NumShards(dim));
  return bytes;
}

AxisList PartialAxes(const FactorRule& rule, const FactorShardings& factors) {
  AxisList partial;
  for (size_t f = 0; f < rule.factors.size(); ++f) {
    if (!rule.IsCombined(f))
      continue;  // what is decomposed sends about as much as a partial result
    partial.insert(partial.end(), factors[f].begin(), factors[f].end());
  }
  return partial;
}

/*! \brief True if the dimensions of a sharding have all of `axes`. */
bool Scatters(const Sharding& sharding, const AxisList& axes) {
  int64_t found = 1;
  for (const AxisList& dim : sharding.dims) {
    for (const mesh::AxisRef& ref : dim) {
      if (mesh::Overlaps({ref}, axes)) found *= ref.size;
    }
  }
  return found >= mesh::NumShards(axes);
}

/*! \brief The sharding without `axes`: what is there before a reduce-scatter over them. */
Sharding Without(Sharding sharding, const AxisList& axes) {
  for (AxisList& dim : sharding.dims) {
    AxisList rest;
    for (const mesh::AxisRef& ref : dim) {
      if (!mesh::Overlaps({ref}, axes)) rest.push_back(ref);
    }
    dim = std::move(rest);
  }
  return sharding;
}

/*! \brief Bytes on a device of all tensors that have a factor. */
double LocalBytesWith(size_t factor, const std::vector<TensorFactors>& tensors,
                      const FactorRule& rule, const FactorShardings& factors,
                      const std::vector<double>& bytes) {
  double sum = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const bool has_factor =
        std::any_of(tensors[i].begin(), tensors[i].end(), [factor](const FactorList& dim) {
          return std::find(dim.begin(), dim.end(), static_cast<int>(factor)) != dim.end();
        });
    if (has_factor) sum += LocalBytes(Compose(rule, tensors[i], factors), bytes[i]);
  }
  return sum;
}

bool HasRoom(const FactorRule& rule, size_t factor, const AxisList& axes,
             const mesh::AxisRef& more) {
  const Factor& info = rule.factors[factor];
  return info.Is<ParallelFactor>() && info.size > 0 &&
         info.size % (mesh::NumShards(axes) * more.size) == 0;
}

}  // namespace

double CallCost::SecondsToMove(const Sharding& from, const Sharding& to, double bytes) const {
  if (mesh::SameLayout(mesh_, from, to)) return 0;
  return cost::CostOfExchange(cluster_, cost::Layout(mesh_, from), cost::Layout(mesh_, to), bytes)
      .seconds;
}

double CallCost::SecondsBetweenShards(const FactorShardings& factors) const {
  double seconds = 0;
  for (size_t f = 0; f < factors.size(); ++f) {
    const DecomposedFactor* factor = rule_.factors[f].decomposed();
    if (factor == nullptr || factor->exchanged == Exchanged::kNothing || factors[f].empty())
      continue;
    const int64_t shards = mesh::NumShards(factors[f]);
    const cost::Link& link = cluster_.links()[cluster_.Along(mesh_, factors[f])];
    const bool moves = factor->exchanged == Exchanged::kMoved;
    const double shard_bytes =
        moves ? LocalBytesWith(f, rule_.results, rule_, factors, result_bytes_)
              : LocalBytesWith(f, rule_.operands, rule_, factors, operand_bytes_);
    const double part = factor->part * static_cast<double>(shards);  // of a shard
    if (factor->exchanged == Exchanged::kStatistics) {
      seconds += cost::Seconds(mesh::CollectiveKind::kAllReduce, cluster_.launch(), link, shards,
                               part * shard_bytes);
    } else {
      const double most = moves ? 1 : static_cast<double>(shards - 1);
      seconds +=
          cost::SecondsAlongDim(cluster_.launch(), link, shards, std::min(part, most), shard_bytes);
    }
  }
  return seconds;
}

double CallCost::Seconds(const FactorShardings& factors) const {
  double seconds = SecondsBetweenShards(factors);
  for (size_t i = 0; i < operands_.size(); ++i) {
    if (operands_[i] == nullptr) continue;
    seconds +=
        SecondsToMove(*operands_[i], Compose(rule_, rule_.operands[i], factors), operand_bytes_[i]);
  }
  const AxisList partial = PartialAxes(rule_, factors);
  for (size_t r = 0; r < results_.size(); ++r) {
    Sharding computed = Compose(rule_, rule_.results[r], factors);
    if (!partial.empty()) {
      const bool scatters = results_[r] != nullptr && Scatters(*results_[r], partial);
      seconds += cost::Seconds(
          scatters ? mesh::CollectiveKind::kReduceScatter : mesh::CollectiveKind::kAllReduce,
          cluster_.launch(), cluster_.links()[cluster_.Along(mesh_, partial)],
          mesh::NumShards(partial), LocalBytes(computed, result_bytes_[r]));
      if (scatters) {
        seconds += SecondsToMove(computed, Without(*results_[r], partial), result_bytes_[r]);
        continue;
      }
    }
    if (results_[r] != nullptr) seconds += SecondsToMove(computed, *results_[r], result_bytes_[r]);
  }
  return seconds;
}

void CallCost::Order(std::vector<FactorChoice>* choices) const {
  double least = -1;
  size_t best = 0;
  for (size_t i = 0; i < choices->size(); ++i) {
    const bool conflicts =
        std::any_of(choices->begin(), choices->end(), [&](const FactorChoice& other) {
          return other.factor != (*choices)[i].factor &&
                 mesh::Overlaps(other.axes, (*choices)[i].axes);
        });
    if (!conflicts) continue;
    std::vector<FactorChoice> order = *choices;
    std::rotate(order.begin(), order.begin() + i, order.begin() + i + 1);
    FactorShardings factors = Assign(rule_, order);
    DropUnnestable(rule_, &factors);
    if (factors[order[0].factor].empty()) continue;
    const double seconds = Seconds(factors);  // A rounding error is no reason to leave the first.
    if (least >= 0 && seconds >= least * (1 - 1e-9)) continue;
    least = seconds;
    best = i;
  }
  std::rotate(choices->begin(), choices->begin() + best, choices->begin() + best + 1);
}

AxisList CallCost::Homeless(const FactorShardings& factors) const {
  AxisList taken;
  for (const AxisList& axes : factors) taken.insert(taken.end(), axes.begin(), axes.end());
  AxisList homeless;
  for (size_t i = 0; i < operands_.size(); ++i) {
    if (operands_[i] == nullptr) continue;
    for (size_t d = 0; d < operands_[i]->dims.size(); ++d) {
      if (!rule_.NeedsReplication(rule_.operands[i][d])) continue;
      for (const mesh::AxisRef& axis : operands_[i]->dims[d]) {
        if (mesh::Overlaps({axis}, taken)) continue;
        taken.push_back(axis);
        homeless.push_back(axis);
      }
    }
  }
  return homeless;
}

std::vector<int> CallCost::Rehome(FactorShardings* factors) const {
  std::vector<int> extended;
  for (const mesh::AxisRef& axis : Homeless(*factors)) {
    double least = Seconds(*factors);
    int best = -1;
    for (size_t f = 0; f < factors->size(); ++f) {
      if (!HasRoom(rule_, f, (*factors)[f], axis)) continue;
      FactorShardings moved = *factors;
      moved[f].push_back(axis);
      FactorShardings nested = moved;
      DropUnnestable(rule_, &nested);
      if (nested != moved) continue;
      const double seconds = Seconds(moved);
      if (seconds >= least * (1 - 1e-9)) continue;
      least = seconds;
      best = static_cast<int>(f);
    }
    if (best < 0) continue;
    (*factors)[best].push_back(axis);
    extended.push_back(best);
  }
  return extended;
}

FactorShardings Assign(const FactorRule& rule, const std::vector<FactorChoice>& choices) {
  FactorShardings factors(rule.factors.size());
  AxisList taken;
  for (const FactorChoice& choice : choices) {
    AxisList axes =
        FittingPrefix(mesh::PrefixDisjointFrom(choice.axes, taken), rule.factors[choice.factor]);
    taken.insert(taken.end(), axes.begin(), axes.end());
    factors[choice.factor] = std::move(axes);
  }
  return factors;
}

}  // namespace distir::rules
