// Solves a problem in rounds: raises the lower bound, searches a better choice, reduces the rest.
#include "autoshard/solver.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <exception>
#include <future>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "autoshard/branch.h"
#include "autoshard/dual.h"
#include "autoshard/graph.h"
#include "autoshard/mixing.h"
#include "autoshard/reduction.h"
#include "autoshard/search.h"

namespace distir::autoshard {

namespace {

/*! \brief Passes of message passing, and least moves of each search, in the first round. */
constexpr int32_t kFirstPasses = 100;
/*! \brief Part of the gap that is asked for within which passes end early. */
constexpr double kEarly = 0.1;
constexpr int64_t kFirstMoves = 2'000;
constexpr int64_t kMovesPerNode = 4;
/*! \brief Rounds after which passes, and moves, do not double any more. */
constexpr int32_t kPassDoublings = 3;
constexpr int32_t kMoveDoublings = 8;
/*! \brief Work of branch and bound in the first round, and the strategies it is tried on. */
constexpr int64_t kFirstWork = 30'000'000;
constexpr size_t kMostBranched = 4'000;
/*! \brief Strategies of a problem that is small. */
constexpr size_t kSmall = 20'000;
/*! \brief Part of all strategies whose exclusion is worth another reduction. */
constexpr double kWorthReducing = 0.02;
/*! \brief Heats of rounds in turn, and the last one of a round, relative to the cost per node. */
constexpr double kHeats[] = {0.1, 10, 1};
constexpr double kCold = 1e-3;
/*! \brief Rounds that bring the gap down by less than this part of the gap that is asked for, one
 * after the other, end the search. */
constexpr double kStalled = 0.1;
constexpr int32_t kMostStalled = 2;
/*! \brief Prices that are tried, and by what they change until one fits and one does not. */
constexpr int32_t kMostBrackets = 8;
constexpr double kScaling = 1.5;
constexpr std::chrono::milliseconds kBetweenQuestions{20};

/*! \brief The whole number that no cost is below if none is below a bound. */
int64_t WholeBound(double bound) {
  return static_cast<int64_t>(std::ceil(bound - 1e-11 * std::abs(bound) - 1e-6));
}

/*!
 * \brief A problem in which memory has a price at each time, in place of limits.
 * \param of_limits What memory within the limits costs.
 */
Problem WithPrices(const Problem& problem, const std::vector<double>& prices, double scale,
                   double* of_limits) {
  Problem priced = problem;
  std::vector<double> sums = {0};
  *of_limits = 0;
  for (size_t time = 0; time < prices.size(); ++time) {
    const double price = scale * std::max(0.0, prices[time]);
    sums.push_back(sums.back() + price);
    if (price > 0) *of_limits += price * static_cast<double>(problem.limits[time]);
  }
  for (Node& node : priced.nodes) {
    std::vector<double> costs(node.costs.size(), 0);
    for (const Usage& usage : node.usages) {
      for (size_t i = 0; i < costs.size(); ++i)
        costs[i] += (sums[usage.end] - sums[usage.begin]) * static_cast<double>(usage.amounts[i]);
    }
    for (size_t i = 0; i < costs.size(); ++i)
      node.costs[i] = AddCosts(node.costs[i], std::llround(costs[i]));
    node.usages.clear();
  }
  priced.limits.clear();
  return priced;
}

class Solver {
 public:
  Solver(const Problem& problem, double gap, const std::function<bool(const Solution&)>& stop,
         bool mixes)
      : original_(problem), gap_(gap), stop_(stop), mixes_(mixes) {}

  Solution Run(int32_t rounds) {
    bool is_open = Reduce(original_);
    int32_t stalled = 0;
    for (int32_t round = 0; is_open && round < rounds && !Ask() && !IsCloseEnough(); ++round) {
      // A whole round of a small problem takes little.
      wanted_ = round == 0 && graph_->strategies() <= kSmall ? kEarly * gap_ : gap_;
      const double before = Gap();
      is_open = Round(round);
      const bool is_better = best_.cost >= kInfinite || before - Gap() >= kStalled * gap_;
      stalled = is_better ? 0 : stalled + 1;
      wanted_ = gap_;
      if (gap_ > 0 && stalled >= kMostStalled) break;
    }
    if (error_) std::rethrow_exception(error_);
    return best_;
  }

 private:
  const Problem& Current() const { return levels_.back()->problem(); }

  /*! \brief Part of the best cost by which it exceeds the bound; 1 if there is none of them. */
  double Gap() const {
    if (best_.cost >= kInfinite || best_.bound <= -kInfinite) return 1;
    const auto cost = static_cast<double>(best_.cost);
    return best_.bound >= best_.cost
               ? 0
               : (cost - static_cast<double>(best_.bound)) / std::max(1.0, std::abs(cost));
  }

  bool IsCloseEnough() const { return best_.cost < kInfinite && Gap() <= wanted_; }

  /*! \brief Asks whether to stop; an error stops everything, and is thrown when threads have ended.
   */
  bool Ask() {
    if (is_stopped_) return true;
    try {
      if (stop_(best_)) is_stopped_ = true;
    } catch (...) {
      error_ = std::current_exception();
      is_stopped_ = true;
    }
    return is_stopped_;
  }

  /*! \brief Goes on with a problem once it is reduced; false if nothing better remains in it. */
  bool Reduce(const Problem& problem) {
    auto reduction = std::make_unique<Reduction>(problem);
    if (!reduction->is_feasible()) {
      best_.bound = best_.cost;
      return false;
    }
    dual_.reset();
    graph_.reset();
    exceeding_.clear();
    levels_.push_back(std::move(reduction));
    if (Current().nodes.empty()) {
      Offer({});
      best_.bound = best_.cost;
      return false;
    }
    graph_ = std::make_unique<Graph>(Current());
    dual_ = std::make_unique<Dual>(*graph_);
    return true;
  }

  /*! \brief Keeps a choice for the current problem if it is better than the best. */
  void Offer(Choice choice) {
    for (auto level = levels_.rbegin(); level != levels_.rend(); ++level)
      choice = (*level)->Expand(choice);
    const int64_t cost = CostOf(original_, choice);
    if (cost >= best_.cost || !FitsMemory(original_, choice)) return;
    best_.cost = cost;
    best_.choice = std::move(choice);
  }

  /*! \brief The best choice for the current problem, completed by the last one of `dual_`. */
  Choice FirstChoice() const {
    if (best_.choice.empty()) return dual_->choice();
    Choice choice = best_.choice;
    for (const auto& level : levels_) choice = level->Restrict(choice);
    for (size_t v = 0; v < choice.size(); ++v) {
      if (choice[v] < 0) choice[v] = dual_->choice()[v];
    }
    return choice;
  }

  /*! \brief Raises the bound; false if that shows the best choice to be optimal. */
  bool RaiseBound() {
    if (Excludes(dual_->bound(), best_.cost)) {
      best_.bound = best_.cost;
      return false;
    }
    best_.bound = std::max(best_.bound, std::min(best_.cost, WholeBound(dual_->bound())));
    return best_.bound < best_.cost;
  }

  /*! \brief Passes messages; returns the best choice that was found on the way, or none. */
  Choice Bound(int32_t passes) {
    Choice best, exceeding;
    Choice fitting = best_.choice.empty() ? Choice() : FirstChoice();
    if (!fitting.empty() && !FitsMemory(Current(), fitting)) fitting.clear();
    int64_t least = best_.cost;
    for (int32_t pass = 1; pass <= passes && !is_stopped_; ++pass) {
      dual_->Pass();
      if (pass % 2 == 1) continue;
      const Choice& choice = dual_->choice();
      const int64_t cost = CostOf(Current(), choice);
      const bool fits = cost < kInfinite && FitsMemory(Current(), choice);
      if (fits && cost < least) {
        least = cost;
        best = fitting = choice;
      }
      if (cost < least && !fits) exceeding = choice;
      // A limit lies between both.
      const Choice& other = fits ? exceeding : choice;
      const Choice& within = fits ? choice : fitting;
      if (mixes_ && !within.empty() && !other.empty() && cost < kInfinite) {
        Choice mixed = Mix(Current(), within, other, least);
        if (!mixed.empty()) {
          least = CostOf(Current(), mixed);
          best = fitting = std::move(mixed);
        }
      }
      if (Excludes(dual_->bound(), least)) break;
      const double bound = dual_->bound();
      const auto least_cost = static_cast<double>(least);
      if (least < kInfinite && least_cost - bound <= kEarly * gap_ * std::abs(least_cost)) break;
      dual_->UpdatePrices(least < kInfinite ? static_cast<double>(least) : 2 * std::abs(bound) + 1);
    }
    return best;
  }

  /*!
   * \brief Solves the problem with prices in place of limits, for prices between those with which
   * a choice fits and those with which it exceeds a limit, and mixes both choices.
   *
   * Without limits, most problems are solved by reduction alone. Each gives a bound, too
   * (Lagrangian relaxation).
   */
  void Bracket() {
    const std::vector<double> prices = dual_->prices();
    if (std::all_of(prices.begin(), prices.end(), [](double price) { return price <= 0; })) return;
    Choice fitting;
    exceeding_.clear();
    double scale = 1, fits_at = 0, exceeds_at = 0;
    for (int32_t attempt = 0; attempt < kMostBrackets && !IsCloseEnough() && !Ask(); ++attempt) {
      double of_limits = 0;
      const Problem priced = WithPrices(Current(), prices, scale, &of_limits);
      const Solution found =
          Solve(priced, 1, gap_ * kEarly, [this](const Solution&) { return Ask(); });
      if (found.choice.empty()) return;
      if (!is_stopped_) {
        // Costs with prices were rounded.
        const double least = static_cast<double>(found.bound) - of_limits -
                             static_cast<double>(Current().nodes.size());
        best_.bound = std::max(best_.bound, std::min(best_.cost, WholeBound(least)));
      }
      const bool fits = FitsMemory(Current(), found.choice);
      (fits ? fitting : exceeding_) = found.choice;
      (fits ? fits_at : exceeds_at) = scale;
      if (fits) Offer(found.choice);
      if (fitting.empty()) {
        scale *= kScaling;
      } else if (exceeding_.empty()) {
        scale /= kScaling;
      } else {
        const Choice mixed = Mix(Current(), fitting, exceeding_, kInfinite);
        if (!mixed.empty()) Offer(mixed);
        scale = std::sqrt(fits_at * exceeds_at);
      }
    }
  }

  /*! \brief One search; its moves and heat depend on the round. */
  void Look(Search* search, int32_t round, const std::function<bool()>& stop) {
    const double scale = std::max(
        1.0,
        std::abs(search->current_cost() < kInfinite ? search->current_cost() : dual_->bound()) /
            graph_->size());
    const double heat = kHeats[round % std::size(kHeats)] * scale;
    const int64_t moves = std::max(kFirstMoves, kMovesPerNode * graph_->size());
    search->Run(moves << std::min(round, kMoveDoublings), heat, heat * kCold, stop);
  }

  /*! \brief Branches, searches and bounds; false if the best choice is optimal. */
  bool Round(int32_t round) {
    const int32_t passes = kFirstPasses << std::min(round, kPassDoublings);
    if (round == 0) {
      const Choice found = Bound(passes);
      if (!found.empty()) Offer(found);
      if (!RaiseBound()) return false;
      if (IsCloseEnough()) return true;
      if (mixes_) Bracket();
      if (best_.bound >= best_.cost) return false;
      if (IsCloseEnough()) return true;
    }
    if (graph_->strategies() <= kMostBranched) {
      Branch branch(best_.cost, kFirstWork << std::min(round, kMoveDoublings),
                    [this] { return Ask(); });
      const Choice found = branch.Explore(Current());
      if (!found.empty()) Offer(found);
      if (branch.is_complete()) {
        best_.bound = best_.cost;
        return false;
      }
    }
    if (Ask()) return true;
    const auto seed = static_cast<uint64_t>(2 * round);
    Search ours(*graph_, seed);
    Search others(*graph_, seed + 1);
    const Choice first = FirstChoice();
    ours.Start(first);
    others.Start(exceeding_.size() == first.size() ? exceeding_ : Choice(dual_->choice()));
    exceeding_.clear();
    Choice bounded;
    auto work = std::async(std::launch::async, [&] {
      bounded = Bound(passes);
      Look(&others, round + 1, [this] { return is_stopped_.load(); });
    });
    Look(&ours, round, [this] { return Ask(); });
    while (work.wait_for(kBetweenQuestions) != std::future_status::ready) Ask();
    work.get();
    for (const Choice& found : {bounded, ours.best(), others.best()}) {
      if (!found.empty()) Offer(found);
    }
    if (!RaiseBound()) return false;
    const std::vector<double>& bounds = dual_->bounds();
    const auto excluded = std::count_if(
        bounds.begin(), bounds.end(), [this](double bound) { return Excludes(bound, best_.cost); });
    if (static_cast<double>(excluded) < kWorthReducing * static_cast<double>(bounds.size()))
      return true;
    return Reduce(Tighten(Current(), *dual_, best_.cost));
  }

  const Problem& original_;
  const double gap_;
  const std::function<bool(const Solution&)>& stop_;
  const bool mixes_;
  double wanted_ = gap_;
  std::vector<std::unique_ptr<Reduction>> levels_;
  std::unique_ptr<Graph> graph_;
  std::unique_ptr<Dual> dual_;
  /*! \brief The best choice for current prices that exceeds a limit, if it is known. */
  Choice exceeding_;
  std::atomic<bool> is_stopped_{false};
  std::exception_ptr error_;
  Solution best_;
};

}  // namespace

Solution Solve(const Problem& problem, int32_t rounds, double gap,
               const std::function<bool(const Solution&)>& stop, bool mixes) {
  return Solver(problem, gap, stop, mixes).Run(rounds);
}

}  // namespace distir::autoshard
