// Cuts a list of items into contiguous stages of equal time with the least transfer.
#include "stages/partition.h"

#include <algorithm>
#include <deque>
#include <limits>

#include "support/error.h"

namespace distir::stages {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// Halvings after which a search among doubles of one magnitude has found the least.
constexpr int kHalvings = 60;
// Sums of the same numbers in another order differ by less.
constexpr double kRounding = 1e-9;

struct Cut {
  double transfers = kNever;
  std::vector<size_t> first_items;
};

class Partitioner {
 public:
  explicit Partitioner(const PartitionProblem& problem)
      : problem_(problem), num_items_(problem.work.size()), num_stages_(problem.devices.size()) {
    work_.push_back(0);
    operators_.push_back(0);
    for (size_t i = 0; i < num_items_; ++i) {
      work_.push_back(work_.back() + problem.work[i]);
      operators_.push_back(operators_.back() + problem.is_operator[i]);
    }
  }

  std::vector<size_t> Run() const {
    DISTIR_REQUIRE(operators_.back() >= num_stages_, ValueError)
        << num_stages_ << " stages need at least as many operators, the function has "
        << operators_.back();
    const double balanced = LeastBound();
    double most = balanced * (1 + problem_.slack + kRounding);
    const double transfers = LeastTransfers(most).transfers * (1 + kRounding);
    double least = balanced * (1 - kRounding);
    for (int i = 0; i < kHalvings && most - least > kRounding * most; ++i) {
      const double middle = (least + most) / 2;
      (LeastTransfers(middle).transfers <= transfers ? most : least) = middle;
    }
    return LeastTransfers(most).first_items;
  }

 private:
  double Seconds(size_t stage, size_t begin, size_t end) const {
    return (work_[end] - work_[begin]) / problem_.devices[stage];
  }

  /*! \brief The least time of the slowest stage. */
  double LeastBound() const {
    double least = 0;
    double most =
        work_.back() / *std::min_element(problem_.devices.begin(), problem_.devices.end());
    if (IsFeasible(least)) return least;
    for (int i = 0; i < kHalvings; ++i) {
      const double middle = (least + most) / 2;
      (IsFeasible(middle) ? most : least) = middle;
    }
    return most;
  }

  /*! \brief True if stages of at most `bound` seconds hold all items: each takes all it can. */
  bool IsFeasible(double bound) const {
    size_t begin = 0;
    for (size_t stage = 0; stage < num_stages_; ++stage) {
      const size_t later = num_stages_ - 1 - stage;
      size_t end = begin;
      while (end < num_items_ && Seconds(stage, begin, end + 1) <= bound &&
             operators_.back() - operators_[end + 1] >= later) {
        ++end;
      }
      if (operators_[end] == operators_[begin]) return false;
      begin = end;
    }
    return begin == num_items_;
  }

  /*!
   * \brief The cut with the least transfers whose stages take at most `bound` seconds.
   *
   * best[j] is for the first `stage` stages on the first j items. The items that a stage may begin
   * with, if it ends before j, are a window that only moves forward with j; a queue with ascending
   * costs has the best of it in front.
   */
  Cut LeastTransfers(double bound) const {
    std::vector<double> best(num_items_ + 1, kNever);
    best[0] = 0;
    std::vector<std::vector<size_t>> begins(num_stages_,
                                            std::vector<size_t>(num_items_ + 1, num_items_));
    for (size_t stage = 0; stage < num_stages_; ++stage) {
      std::vector<double> next(num_items_ + 1, kNever);
      std::vector<double> cost(num_items_ + 1, kNever);
      for (size_t i = 0; i < num_items_; ++i) {
        cost[i] = best[i] + (stage == 0 ? 0 : problem_.transfer[stage][i]);
      }
      std::deque<size_t> window;
      size_t entering = 0;
      for (size_t end = 1; end <= num_items_; ++end) {
        for (; operators_[entering] < operators_[end]; ++entering) {
          if (cost[entering] == kNever) continue;
          while (!window.empty() && cost[window.back()] >= cost[entering]) window.pop_back();
          window.push_back(entering);
        }
        while (!window.empty() && Seconds(stage, window.front(), end) > bound) window.pop_front();
        if (window.empty()) continue;
        next[end] = cost[window.front()];
        begins[stage][end] = window.front();
      }
      best = std::move(next);
    }
    Cut cut;
    cut.transfers = best[num_items_];
    if (cut.transfers == kNever) return cut;
    cut.first_items.resize(num_stages_);
    size_t end = num_items_;
    for (size_t stage = num_stages_; stage-- > 0;) {
      end = begins[stage][end];
      cut.first_items[stage] = end;
    }
    return cut;
  }

  const PartitionProblem& problem_;
  const size_t num_items_;
  const size_t num_stages_;
  std::vector<double> work_;       // of the items before each, and of all
  std::vector<size_t> operators_;  // among the items before each, and among all
};

}  // namespace

std::vector<size_t> Partition(const PartitionProblem& problem) {
  return Partitioner(problem).Run();
}

}  // namespace distir::stages
