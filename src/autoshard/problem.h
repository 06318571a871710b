/*!
 * \file autoshard/problem.h
 * \brief Optimisation problem: choose one strategy per node so that nodes and edges cost least,
 * within limits of memory. It knows no IR.
 *
 * Nodes have strategies with a cost and memory; an edge has a cost for each pair of strategies of
 * its nodes. What a node takes of memory counts at the times [begin, end) of a usage, and no time
 * may exceed its limit. Costs from kInfinite on are forbidden.
 *
 *     nodes  a: costs 3 5     b: costs 0 4       one edge a-b with costs 9 0 / 0 9
 *     Choices (a, b): (0, 1) costs 3 + 4 + 0 = 7, (1, 0) costs 5 + 0 + 0 = 5, which is the least.
 */
#ifndef DISTIR_AUTOSHARD_PROBLEM_H_
#define DISTIR_AUTOSHARD_PROBLEM_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace distir::autoshard {

/*! \brief The least cost that is forbidden. */
constexpr int64_t kInfinite = 1'000'000'000'000'000'000;
/*! \brief The limit of a time at which memory is not limited. */
constexpr int64_t kUnlimited = INT64_MAX;

/*! \brief Adds costs, of which any may be forbidden. */
inline int64_t AddCosts(int64_t left, int64_t right) {
  return left >= kInfinite || right >= kInfinite ? kInfinite : left + right;
}

/*! \brief Memory that each strategy of a node takes at the times [begin, end). */
struct Usage {
  int32_t begin = 0;
  int32_t end = 0;
  std::vector<int64_t> amounts;
};

struct Node {
  std::vector<int64_t> costs;
  std::vector<Usage> usages;
};

/*! \brief Costs row-major: rows are the strategies of `from`. */
struct Edge {
  int32_t from = 0;
  int32_t to = 0;
  std::vector<int64_t> costs;
};

struct Problem {
  std::vector<Node> nodes;
  std::vector<Edge> edges;
  /*! \brief The limit of each time. */
  std::vector<int64_t> limits;
  /*! \brief Added to the cost of every choice. */
  int64_t constant = 0;
};

/*! \brief The strategy of each node. */
using Choice = std::vector<int32_t>;

/*! \brief The cost of a choice, kInfinite if it is forbidden. */
int64_t CostOf(const Problem& problem, const Choice& choice);

/*! \brief True if no time exceeds its limit. */
bool FitsMemory(const Problem& problem, const Choice& choice);

}  // namespace distir::autoshard

#endif  // DISTIR_AUTOSHARD_PROBLEM_H_
