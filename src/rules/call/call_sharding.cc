// Decides how a call is computed, and reads the decision back from the shardings of its tensors.
#include "rules/call/call_sharding.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "rules/call/call_cost.h"
#include "rules/call/ways.h"

namespace distir::rules {

using mesh::AxisList;
using mesh::Sharding;

namespace {

/*! \brief Shardings that every tensor gives every factor. */
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

bool IsReplicated(const Sharding* sharding) {
  return sharding == nullptr || sharding->IsReplicated();
}

/*! \brief No factor is sharded. */
CallSharding WithoutSharding(const FactorRule& rule) {
  CallSharding call;
  call.factors.resize(rule.factors.size());
  for (const TensorFactors& tensor : rule.operands)
    call.operands.push_back(Sharding::Replicated(static_cast<int>(tensor.size())));
  for (const TensorFactors& tensor : rule.results)
    call.results.push_back(Sharding::Replicated(static_cast<int>(tensor.size())));
  return call;
}

std::vector<TensorChoice> Tensors(const FactorRule& rule, const Candidates& candidates,
                                  const std::vector<double>& operand_elements) {
  std::vector<TensorChoice> tensors;
  for (size_t i = 0; i < rule.operands.size(); ++i)
    tensors.push_back({&rule.operands[i], &candidates.operands[i], operand_elements[i], false});
  for (size_t r = 0; r < rule.results.size(); ++r)
    tensors.push_back({&rule.results[r], &candidates.results[r], 0, true});
  return tensors;
}

/*! \brief Both ImpliedSharding and, with what the ways cost, DecideCall. */
CallSharding ShardingOfCall(const FactorRule& rule, const std::vector<const Sharding*>& operands,
                            const std::vector<const Sharding*>& results,
                            const std::vector<double>& operand_elements, const CallCost* cost) {
  if (std::all_of(operands.begin(), operands.end(), IsReplicated) &&
      std::all_of(results.begin(), results.end(), IsReplicated))
    return WithoutSharding(rule);
  Candidates candidates{ProjectAll(rule, rule.operands, operands),
                        ProjectAll(rule, rule.results, results)};

  std::vector<FactorChoice> choices;
  for (size_t f = 0; f < rule.factors.size(); ++f) {
    if (rule.factors[f].Is<ReplicatedFactor>()) continue;
    const AxisList* axes = FirstOf(candidates.results, f);
    const int source = LargestOperandOf(candidates, f, operand_elements);
    // If only one side has the sharding, nothing is exchanged along a blocked factor.
    if (rule.factors[f].is_blocked() && cost != nullptr && (axes == nullptr || source < 0))
      continue;
    if (axes != nullptr) {
      // Results come before all operands.
      choices.push_back(
          {f, ExtendByOthers(*axes, candidates, f), std::numeric_limits<double>::infinity()});
    } else if (source >= 0) {
      choices.push_back({f, ExtendByOthers(candidates.operands[source][f], candidates, f),
                         operand_elements[source]});
    }
  }
  std::stable_sort(choices.begin(), choices.end(),
                   [&rule](const FactorChoice& a, const FactorChoice& b) {
                     bool a_waits = rule.factors[a.factor].Is<DecomposedFactor>();
                     bool b_waits = rule.factors[b.factor].Is<DecomposedFactor>();
                     return a_waits != b_waits ? b_waits : a.priority > b.priority;
                   });
  // Nothing is exchanged for these, so they have what axes the others leave.
  const auto from_whole =
      std::stable_partition(choices.begin(), choices.end(), [&rule](const FactorChoice& choice) {
        return !HasOnlyShortOperands(rule, choice.factor, mesh::NumShards(choice.axes));
      });
  const std::vector<FactorChoice> last(from_whole, choices.end());
  choices.erase(from_whole, choices.end());
  if (cost != nullptr)
    choices = CheapestWay(rule, std::move(choices), Tensors(rule, candidates, operand_elements),
                          /*is_final=*/true, *cost);
  choices.insert(choices.end(), last.begin(), last.end());

  CallSharding call;
  call.factors = Assign(rule, choices);
  std::vector<int> chosen;
  for (const FactorChoice& choice : choices) chosen.push_back(static_cast<int>(choice.factor));
  DropUnnestable(rule, &call.factors);
  DropDisordered(rule, chosen, &call.factors);
  if (cost != nullptr) {
    const std::vector<int> extended = cost->Rehome(&call.factors);
    if (!extended.empty()) {
      chosen.insert(chosen.end(), extended.begin(), extended.end());
      DropDisordered(rule, chosen, &call.factors);
    }
  }

  call.operands.reserve(rule.operands.size());
  for (const TensorFactors& tensor : rule.operands) {
    call.operands.push_back(Compose(rule, Side::kOperand, tensor, call.factors));
  }
  call.results.reserve(rule.results.size());
  for (const TensorFactors& tensor : rule.results) {
    call.results.push_back(Compose(rule, Side::kResult, tensor, call.factors));
  }
  for (size_t f = 0; f < rule.factors.size(); ++f) {
    if (call.factors[f].empty()) continue;
    if (rule.factors[f].Is<DecomposedFactor>()) call.is_decomposed = true;
    if (!rule.factors[f].Is<ReductionFactor>()) continue;
    call.reduction = rule.factors[f].reduction();
    call.partial.insert(call.partial.end(), call.factors[f].begin(), call.factors[f].end());
  }
  return call;
}

}  // namespace

CallSharding ImpliedSharding(const FactorRule& rule, const std::vector<const Sharding*>& operands,
                             const std::vector<const Sharding*>& results,
                             const std::vector<double>& operand_elements) {
  return ShardingOfCall(rule, operands, results, operand_elements, nullptr);
}

CallSharding DecideCall(const FactorRule& rule, const std::vector<const Sharding*>& operands,
                        const std::vector<const Sharding*>& results,
                        const std::vector<double>& operand_elements, const CallCost& cost) {
  return ShardingOfCall(rule, operands, results, operand_elements, &cost);
}

}  // namespace distir::rules
