// Lists all ways to compute a call on a mesh: which factor of its rule has which mesh axes.
#include "autosharding/ways.h"

#include <algorithm>
#include <utility>

#include "rules/call/call_cost.h"
#include "rules/call/ways.h"

namespace distir::autosharding {

using mesh::AxisList;
using rules::Factor;
using rules::FactorRule;
using rules::FactorShardings;

namespace {

// A device may compute this much more than its even share, for the sake of padding.
constexpr double kMostPadding = 1.5;

/*! \brief Assigns the axes of a mesh to factors, one after the other. */
class Enumeration {
 public:
  Enumeration(const FactorRule& rule, const mesh::Mesh& mesh)
      : rule_(rule), mesh_(mesh), factors_(rule.factors.size()) {
    for (size_t f = 0; f < rule.factors.size(); ++f) all_.push_back(static_cast<int>(f));
  }

  std::vector<Way> Run() {
    Assign(0);
    return std::move(found_);
  }

 private:
  void Assign(int axis) {
    if (axis == mesh_.ndim()) return Add();
    Assign(axis + 1);
    if (mesh_.shape[axis] < 2) return;
    for (size_t f = 0; f < factors_.size(); ++f) {
      factors_[f].push_back(mesh::FullAxis(mesh_, axis));
      if (Fits(rule_.factors[f], factors_[f])) Assign(axis + 1);
      factors_[f].pop_back();
    }
  }

  static bool Fits(const Factor& factor, const AxisList& axes) {
    if (factor.Is<rules::ReplicatedFactor>() || factor.size == 0) return false;
    if (factor.size < 0) return factor.Is<rules::ParallelFactor>();
    if (rules::FittingPrefix(axes, factor) != axes) return false;
    return Padding(factor, mesh::NumShards(axes)) <= kMostPadding;
  }

  static double Padding(const Factor& factor, int64_t shards) {
    if (factor.size < 0) return 1;
    return static_cast<double>(mesh::EvenExtent(factor.size, shards)) /
           static_cast<double>(factor.size);
  }

  void Add() {
    FactorShardings nested = factors_;
    rules::DropUnnestable(rule_, &nested);
    rules::DropDisordered(rule_, all_, &nested);
    if (nested != factors_) return;
    Way way;
    way.factors = factors_;
    for (const rules::TensorFactors& operand : rule_.operands)
      way.operands.push_back(rules::Compose(rule_, rules::Side::kOperand, operand, factors_));
    for (size_t r = 0; r < rule_.results.size(); ++r)
      way.results.push_back(rules::ComputedResult(rule_, r, factors_));
    for (size_t f = 0; f < factors_.size(); ++f) {
      const int64_t shards = mesh::NumShards(factors_[f]);
      if (shards > 1)
        way.fraction *= Padding(rule_.factors[f], shards) / static_cast<double>(shards);
    }
    found_.push_back(std::move(way));
  }

  const FactorRule& rule_;
  const mesh::Mesh& mesh_;
  FactorShardings factors_;
  std::vector<int> all_;
  std::vector<Way> found_;
};

}  // namespace

std::vector<Way> WaysOf(const FactorRule& rule, const mesh::Mesh& mesh) {
  std::vector<Way> ways = Enumeration(rule, mesh).Run();
  if (ways.size() > kMostWays) {
    std::stable_sort(ways.begin() + 1, ways.end(),
                     [](const Way& a, const Way& b) { return a.fraction < b.fraction; });
    ways.resize(kMostWays);
  }
  return ways;
}

}  // namespace distir::autosharding
