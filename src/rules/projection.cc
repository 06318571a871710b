#include "rules/projection.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace distir {
namespace rules {

using mesh::AxisList;
using mesh::AxisRef;
using mesh::Sharding;

namespace {

// Only compares tensors, so any size that is neither negligible nor dominant will do.
constexpr double kAssumedSymbolicSize = 1024;

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

void Project(const FactorRule& rule, const TensorFactors& tensor, const Sharding& sharding,
             FactorShardings* out) {
  for (size_t d = 0; d < tensor.size(); ++d) {
    if (sharding.dims[d].empty()) continue;
    AxisList rest = sharding.dims[d];
    for (int f : tensor[d]) {
      int64_t size = rule.factors[f].size;
      AxisList prefix = FittingPrefix(rest, size);
      if (prefix.empty()) break;
      (*out)[f] = prefix;
      rest = mesh::RemovePrefix(rest, prefix);
      if (size < 0 || mesh::NumShards(prefix) != size) break;
    }
  }
}

Sharding Compose(const FactorRule& rule, const TensorFactors& tensor,
                 const FactorShardings& factors) {
  Sharding sharding = Sharding::Replicated(static_cast<int>(tensor.size()));
  for (size_t d = 0; d < tensor.size(); ++d) {
    AxisList& axes = sharding.dims[d];
    for (int f : tensor[d]) {
      axes.insert(axes.end(), factors[f].begin(), factors[f].end());
      if (rule.factors[f].size < 0 || mesh::NumShards(factors[f]) != rule.factors[f].size) break;
    }
    if (axes.size() > 1) axes = mesh::Canonical(axes);
  }
  return sharding;
}

namespace {

/*! \brief What every tensor says about every factor. */
struct Candidates {
  std::vector<FactorShardings> operands;
  std::vector<FactorShardings> results;
};

std::vector<FactorShardings> ProjectAll(const FactorRule& rule,
                                        const std::vector<TensorFactors>& tensors,
                                        const std::vector<const Sharding*>& shardings) {
  std::vector<FactorShardings> all(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (shardings[i] == nullptr) continue;
    all[i].resize(rule.factors.size());
    Project(rule, tensors[i], *shardings[i], &all[i]);
  }
  return all;
}

const AxisList* FirstOf(const std::vector<FactorShardings>& tensors, size_t factor) {
  for (const FactorShardings& tensor : tensors) {
    if (!tensor.empty() && !tensor[factor].empty()) return &tensor[factor];
  }
  return nullptr;
}

int LargestOperandOf(const Candidates& candidates, size_t factor,
                     const std::vector<double>& elements) {
  int best = -1;
  for (size_t i = 0; i < candidates.operands.size(); ++i) {
    const FactorShardings& tensor = candidates.operands[i];
    if (tensor.empty() || tensor[factor].empty()) continue;
    if (best < 0 || elements[i] > elements[best]) best = static_cast<int>(i);
  }
  return best;
}

AxisList ExtendByOthers(AxisList base, const Candidates& candidates, size_t factor) {
  for (const auto* tensors : {&candidates.results, &candidates.operands}) {
    for (const FactorShardings& tensor : *tensors) {
      if (tensor.empty()) continue;
      const AxisList& other = tensor[factor];
      if (mesh::NumShards(other) > mesh::NumShards(base) && mesh::IsPrefix(base, other))
        base = other;
    }
  }
  return base;
}

// Clears factors whose shards would not be contiguous in some tensor; repeated because one may
// uncover another.
void DropUnnestable(const FactorRule& rule, FactorShardings* factors) {
  bool changed = true;
  while (changed) {
    changed = false;
    for (const auto* tensors : {&rule.operands, &rule.results}) {
      for (const TensorFactors& tensor : *tensors) {
        for (const FactorList& dim : tensor) {
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

}  // namespace

CallSharding DecideCall(const FactorRule& rule, const std::vector<const Sharding*>& operands,
                        const std::vector<const Sharding*>& results,
                        const std::vector<double>& operand_elements) {
  Candidates candidates{ProjectAll(rule, rule.operands, operands),
                        ProjectAll(rule, rule.results, results)};

  struct Choice {
    size_t factor;
    const AxisList* axes;
    double priority;  // results before all operands
  };
  std::vector<Choice> choices;
  for (size_t f = 0; f < rule.factors.size(); ++f) {
    if (rule.factors[f].kind == FactorKind::kReplicate) continue;
    if (const AxisList* axes = FirstOf(candidates.results, f)) {
      choices.push_back({f, axes, std::numeric_limits<double>::infinity()});
    } else if (int source = LargestOperandOf(candidates, f, operand_elements); source >= 0) {
      choices.push_back({f, &candidates.operands[source][f], operand_elements[source]});
    }
  }
  std::stable_sort(choices.begin(), choices.end(),
                   [](const Choice& a, const Choice& b) { return a.priority > b.priority; });

  CallSharding decision;
  decision.factors.resize(rule.factors.size());
  AxisList taken;
  for (const Choice& choice : choices) {
    AxisList axes = ExtendByOthers(*choice.axes, candidates, choice.factor);
    axes = FittingPrefix(mesh::PrefixDisjointFrom(axes, taken), rule.factors[choice.factor].size);
    taken.insert(taken.end(), axes.begin(), axes.end());
    decision.factors[choice.factor] = std::move(axes);
  }
  DropUnnestable(rule, &decision.factors);

  for (const TensorFactors& tensor : rule.operands) {
    decision.operands.push_back(Compose(rule, tensor, decision.factors));
  }
  for (const TensorFactors& tensor : rule.results) {
    decision.results.push_back(Compose(rule, tensor, decision.factors));
  }
  for (size_t f = 0; f < rule.factors.size(); ++f) {
    if (rule.factors[f].kind != FactorKind::kReduction || decision.factors[f].empty()) continue;
    decision.reduction = rule.factors[f].reduction;
    decision.partial.insert(decision.partial.end(), decision.factors[f].begin(),
                            decision.factors[f].end());
  }
  return decision;
}

double NumElements(const ir::TensorType& type) {
  double elements = 1;
  for (int64_t size : StaticSizes(type))
    elements *= size < 0 ? kAssumedSymbolicSize : static_cast<double>(size);
  return elements;
}

}  // namespace rules
}  // namespace distir
