/*!
 * \file planning/search.h
 * \brief A* over the shardings of a Space; planning/planner.h says what its edges and its bound
 * are.
 */
#ifndef DISTIR_PLANNING_SEARCH_H_
#define DISTIR_PLANNING_SEARCH_H_

#include <cstdint>
#include <vector>

#include "mesh/collective.h"
#include "planning/space.h"

namespace distir::planning {

/*! \brief An edge of the way found. */
struct Move {
  mesh::CollectiveKind kind;
  int node;         // where it leads
  AtomSet reduced;  // of a reduction
  double seconds;
  double received;  // bytes, by the device that receives most
};

struct Question {
  int source;
  int target;
  std::vector<int64_t> divisors;  // per dimension, what its number of shards has to divide
  double bytes;                   // of the whole tensor
  bool only_nearer;               // only moves that bring the target nearer, and exchanges to it
};

/*! \brief The fastest way; among those within a millionth of each other, the simplest. */
std::vector<Move> FindWay(Space* space, const Question& question);

}  // namespace distir::planning
#endif  // DISTIR_PLANNING_SEARCH_H_
