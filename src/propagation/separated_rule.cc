// Matches factors of a rule with those of the rule on separate dimensions.
#include "propagation/separated_rule.h"

#include <map>
#include <utility>

namespace distir::propagation {

using rules::Factor;
using rules::FactorList;
using rules::FactorRule;
using rules::TensorFactors;

namespace {

class RuleMatch {
 public:
  /*! \param first_order As SeparatedCall has it. */
  RuleMatch(const FactorRule& merged, const FactorRule& apart, const Parts& parts,
            const std::vector<int64_t>& first_order)
      : merged_(merged), apart_(apart), parts_(parts), first_order_(first_order) {}

  bool Holds() {
    return Match(merged_.operands, apart_.operands, first_order_) &&
           Match(merged_.results, apart_.results, {});
  }

 private:
  bool Match(const std::vector<TensorFactors>& merged, const std::vector<TensorFactors>& apart,
             const std::vector<int64_t>& first_order) {
    if (merged.size() != apart.size()) return false;
    for (size_t t = 0; t < merged.size(); ++t) {
      std::vector<FactorList> expected;  // ids of factors, or of parts of them
      for (const FactorList& dim : merged[t]) {
        const bool is_merged = dim.size() == 1 && parts_[dim[0]] != nullptr;
        if (!is_merged && !dim.empty()) expected.push_back(Ids(dim));
        for (size_t k = 0; is_merged && k < parts_[dim[0]]->size(); ++k)
          expected.push_back({Id(dim[0], k)});
      }
      if (t == 0) expected = InOrderOf(first_order, expected);
      // Dimensions without factors are of size 1, or need replication in both.
      std::vector<FactorList> found;
      for (const FactorList& dim : apart[t]) {
        if (!dim.empty()) found.push_back(dim);
      }
      if (expected.size() != found.size()) return false;
      for (size_t d = 0; d < found.size(); ++d) {
        if (expected[d].size() != found[d].size()) return false;
        for (size_t k = 0; k < found[d].size(); ++k) {
          if (!MatchFactor(expected[d][k], found[d][k])) return false;
        }
      }
    }
    return true;
  }

  FactorList Ids(const FactorList& dim) {
    FactorList ids;
    for (int f : dim) ids.push_back(Id(f, 0));
    return ids;
  }

  int Id(int factor, size_t part) {
    const auto key = std::make_pair(factor, part);
    auto [found, is_new] = ids_.try_emplace(key, static_cast<int>(factors_.size()));
    if (is_new) factors_.push_back(factor);
    return found->second;
  }

  bool MatchFactor(int id, int apart) {
    const Factor& factor = merged_.factors[factors_[id]];
    if (!(factor.kind == apart_.factors[apart].kind)) return false;
    const auto one = match_.try_emplace(id, apart).first;
    const auto other = back_.try_emplace(apart, id).first;
    return one->second == apart && other->second == id;
  }

  const FactorRule& merged_;
  const FactorRule& apart_;
  const Parts& parts_;
  const std::vector<int64_t>& first_order_;
  std::map<std::pair<int, size_t>, int> ids_;
  std::vector<int> factors_;  // by id
  std::map<int, int> match_, back_;
};

}  // namespace

bool IsSameApart(const FactorRule& merged, const FactorRule& apart, const Parts& parts,
                 const std::vector<int64_t>& first_order) {
  return RuleMatch(merged, apart, parts, first_order).Holds();
}

}  // namespace distir::propagation
