/*!
 * \file autoshard/elimination.h
 * \brief Removes a node with two edges: finds its best strategy for each pair of its neighbours'
 * strategies.
 *
 * Worked example: a node of costs 1, 2 between two others, with edges of costs 0 for equal
 * strategies and 9 for others. For the pair (0, 0) it costs 1, by strategy 0; for (1, 1) 2.
 */
#ifndef DISTIR_AUTOSHARD_ELIMINATION_H_
#define DISTIR_AUTOSHARD_ELIMINATION_H_

#include <cstdint>
#include <vector>

namespace distir::autoshard {

/*! \brief An edge, as one of its ends sees it. */
struct Sight {
  int64_t* costs;
  int32_t row;     // step from a strategy of this end to the next
  int32_t column;  // step from a strategy of the other end to the next
  int64_t& At(int32_t mine, int32_t others) const { return costs[mine * row + others * column]; }
};

/*! \brief The other end of an edge; one strategy and no costs, if there is none. */
struct Neighbour {
  int32_t size = 1;
  Sight sight = {nullptr, 0, 0};
};

/*! \brief Least costs of an eliminated node by pair of its neighbours' strategies, row-major. */
struct Eliminated {
  std::vector<int64_t> costs;
  std::vector<int16_t> best;  // -1 where all is forbidden
};

Eliminated LeastOf(const std::vector<int64_t>& costs, const Neighbour& first,
                   const Neighbour& second);

}  // namespace distir::autoshard

#endif  // DISTIR_AUTOSHARD_ELIMINATION_H_
