// Lists ways to compute a call, which assign mesh axes to its factors, and finds the cheapest.
#include "rules/call/ways.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "rules/call/call_cost.h"

namespace distir::rules {

using mesh::AxisList;

namespace {

/*! \brief The sharded factors of every dimension that has several, major to minor. */
std::vector<FactorList> NestedFactors(const FactorRule& rule, const FactorShardings& factors) {
  std::vector<FactorList> nested;
  for (const auto* tensors : {&rule.operands, &rule.results}) {
    for (const TensorFactors& tensor : *tensors) {
      for (const FactorList& dim : tensor) {
        if (dim.size() < 2) continue;
        FactorList sharded;
        for (int f : dim) {
          if (!factors[f].empty()) sharded.push_back(f);
        }
        if (sharded.size() > 1) nested.push_back(std::move(sharded));
      }
    }
  }
  return nested;
}

/*! \brief Factors that no order of all factors can serve; empty if one does. */
std::set<int> Disordered(const std::vector<FactorList>& nested) {
  std::map<int, std::set<int>> before;
  for (const FactorList& dim : nested) {
    for (size_t i = 0; i < dim.size(); ++i) {
      std::set<int>& earlier = before[dim[i]];
      if (i > 0) earlier.insert(dim[i - 1]);
    }
  }
  while (true) {
    auto next = std::find_if(before.begin(), before.end(),
                             [](const auto& entry) { return entry.second.empty(); });
    if (next == before.end()) break;
    int factor = next->first;
    before.erase(next);
    for (auto& [other, earlier] : before) earlier.erase(factor);
  }
  std::set<int> rest;
  for (const auto& [factor, earlier] : before) rest.insert(factor);
  return rest;
}

/*! \brief The ways of one call that were looked at, and the cheapest. */
class Ways {
 public:
  Ways(const FactorRule& rule, std::vector<FactorChoice> choices,
       const std::vector<TensorChoice>& tensors, bool is_final, const CallCost& cost)
      : rule_(rule), given_(std::move(choices)), tensors_(tensors), cost_(cost), best_(given_) {
    tried_.push_back(Shardings(given_));
    is_final_ = is_final;
    stays_replicated_ = is_final;
    for (size_t f = 0; f < rule.factors.size(); ++f) {
      const DecomposedFactor* decomposed = rule.factors[f].decomposed();
      const bool has_statistics =
          decomposed != nullptr && decomposed->exchanged == Exchanged::kStatistics;
      if (rule.IsCombined(f) || has_statistics) stays_replicated_ = false;
    }
  }

  std::vector<FactorChoice> Find() {
    if (IsAgreed()) return best_;
    TryContested();
    std::vector<const TensorChoice*> operands;
    for (const TensorChoice& tensor : tensors_) {
      if (!tensor.is_result && !tensor.factors->empty()) operands.push_back(&tensor);
    }
    std::stable_sort(operands.begin(), operands.end(),
                     [](const auto* a, const auto* b) { return a->elements > b->elements; });
    TryWith(operands, given_);
    for (const TensorChoice& tensor : tensors_) TryWith({&tensor}, given_);
    // Each round is cheaper than the one before, so there is a last one.
    for (bool is_better = true; is_better;) {
      is_better = false;
      for (const TensorChoice& tensor : tensors_) {
        if (TryWith({&tensor}, std::vector<FactorChoice>(best_))) is_better = true;
      }
    }
    if (is_final_) TryUncombined();
    return best_;
  }

 private:
  FactorShardings Shardings(const std::vector<FactorChoice>& choices) const {
    FactorShardings factors = Assign(rule_, choices);
    std::vector<int> chosen;
    for (const FactorChoice& choice : choices) chosen.push_back(static_cast<int>(choice.factor));
    DropUnnestable(rule_, &factors);
    DropDisordered(rule_, chosen, &factors);
    return factors;
  }

  /*! \brief True if all tensors have what the choices say. */
  bool IsAgreed() const {
    const FactorShardings& factors = tried_.front();
    return std::all_of(tensors_.begin(), tensors_.end(), [&](const TensorChoice& tensor) {
      for (const FactorList& dim : *tensor.tensor) {
        for (int f : dim) {
          if (tensor.factors->empty() ? !factors[f].empty() : (*tensor.factors)[f] != factors[f])
            return false;
        }
      }
      return true;
    });
  }

  /*! \brief Tries every choice first that wants an axis which others want. */
  void TryContested() {
    for (size_t i = 0; i < given_.size(); ++i) {
      const bool is_contested =
          std::any_of(given_.begin(), given_.end(), [&](const FactorChoice& other) {
            return other.factor != given_[i].factor && mesh::Overlaps(other.axes, given_[i].axes);
          });
      if (!is_contested) continue;
      std::vector<FactorChoice> order = given_;
      std::rotate(order.begin(), order.begin() + i, order.begin() + i + 1);
      Try(std::move(order));
    }
  }

  /*! \brief Tries to give the axes of what is combined to a factor that every device computes
   * alone: rows of a product may be exchanged once, in place of partial sums. What a decomposition
   * exchanges besides, such as the rows beside a window, is not priced, so it stays where it is. */
  void TryUncombined() {
    for (const Factor& factor : rule_.factors) {
      if (factor.decomposed() != nullptr) return;
    }
    const FactorShardings factors = Shardings(best_);
    const std::vector<FactorChoice> others = best_;
    for (size_t combined = 0; combined < factors.size(); ++combined) {
      if (factors[combined].empty() || !rule_.IsCombined(combined)) continue;
      for (size_t f = 0; f < factors.size(); ++f) {
        if (!rule_.factors[f].Is<ParallelFactor>()) continue;
        AxisList axes = factors[f];
        axes.insert(axes.end(), factors[combined].begin(), factors[combined].end());
        std::vector<FactorChoice> choices;
        choices.push_back({f, std::move(axes), 0});
        for (const FactorChoice& other : others) {
          if (other.factor != f) choices.push_back(other);
        }
        Try(std::move(choices));
      }
    }
  }

  /*! \brief Tries the way in which some tensors stay as they are, the first of them above all, and
   * other factors are as in `others`. Returns whether that is the cheapest so far. */
  bool TryWith(const std::vector<const TensorChoice*>& kept,
               const std::vector<FactorChoice>& others) {
    std::vector<FactorChoice> sharded, all;
    std::set<size_t> has_axes, is_kept;
    for (const TensorChoice* tensor : kept) {
      for (const FactorList& dim : *tensor->tensor) {
        for (int f : dim) {
          is_kept.insert(f);
          if (tensor->factors->empty() || (*tensor->factors)[f].empty()) continue;
          if (Given(f) && has_axes.insert(f).second)
            sharded.push_back({static_cast<size_t>(f), (*tensor->factors)[f], tensor->elements});
        }
      }
    }
    bool is_better = false;
    if (!sharded.empty()) {
      all = sharded;
      for (const FactorChoice& other : others) {
        if (has_axes.count(other.factor) == 0) all.push_back(other);
      }
      is_better = Try(std::move(all));
    }
    if (!stays_replicated_) return is_better;
    all = std::move(sharded);
    for (const FactorChoice& other : others) {
      if (is_kept.count(other.factor) == 0) all.push_back(other);
    }
    return Try(std::move(all)) || is_better;
  }

  bool Given(int factor) const {
    return std::any_of(given_.begin(), given_.end(), [factor](const FactorChoice& choice) {
      return static_cast<int>(choice.factor) == factor;
    });
  }

  bool Try(std::vector<FactorChoice> choices) {
    FactorShardings factors = Shardings(choices);
    if (std::find(tried_.begin(), tried_.end(), factors) != tried_.end()) return false;
    if (least_ < 0) least_ = cost_.Seconds(tried_.front());
    const double seconds = cost_.Seconds(factors);
    tried_.push_back(std::move(factors));
    // A rounding error is no reason to leave the first.
    if (seconds >= least_ * (1 - 1e-9)) return false;
    least_ = seconds;
    best_ = std::move(choices);
    return true;
  }

  const FactorRule& rule_;
  const std::vector<FactorChoice> given_;
  const std::vector<TensorChoice>& tensors_;
  const CallCost& cost_;
  bool is_final_, stays_replicated_;
  std::vector<FactorShardings> tried_;  // the first as given
  double least_ = -1;                   // seconds of the cheapest; not known yet if negative
  std::vector<FactorChoice> best_;
};

}  // namespace

void DropDisordered(const FactorRule& rule, const std::vector<int>& chosen,
                    FactorShardings* factors) {
  while (true) {
    std::vector<FactorList> nested = NestedFactors(rule, *factors);
    if (nested.size() < 2) return;
    std::set<int> disordered = Disordered(nested);
    if (disordered.empty()) return;
    auto last = std::find_if(chosen.rbegin(), chosen.rend(),
                             [&](int factor) { return disordered.count(factor) > 0; });
    (*factors)[*last].clear();
    DropUnnestable(rule, factors);
  }
}

bool HasOnlyShortOperands(const FactorRule& rule, size_t factor, int64_t shards) {
  if (!rule.factors[factor].moves()) return false;
  for (const TensorFactors& tensor : rule.operands) {
    for (const FactorList& dim : tensor) {
      if (!dim.empty() && dim[0] == static_cast<int>(factor) && dim.HasRoomFor(shards))
        return false;
    }
  }
  return true;
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

std::vector<FactorChoice> CheapestWay(const FactorRule& rule, std::vector<FactorChoice> choices,
                                      const std::vector<TensorChoice>& tensors, bool is_final,
                                      const CallCost& cost) {
  return Ways(rule, std::move(choices), tensors, is_final, cost).Find();
}

}  // namespace distir::rules
