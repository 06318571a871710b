/*!
 * \file autosharding/ways.h
 * \brief All ways to compute a call on a mesh: which factor of its rule has which mesh axes.
 *
 * rules/call/ways.h finds the cheapest way where the shardings of a call's tensors are known; here
 * nothing is known, and the ways are strategies that autoshard/ chooses among.
 *
 * Worked example, a product of (8, 16) and (16, 32) on one axis of 4 devices: nothing is sharded;
 * the rows, the columns, or the contracted dimension are, the last with a partial result: four
 * ways.
 */
#ifndef DISTIR_AUTOSHARDING_WAYS_H_
#define DISTIR_AUTOSHARDING_WAYS_H_

#include <vector>

#include "mesh/sharding.h"
#include "rules/call/projection.h"
#include "rules/factor/factor_rule.h"

namespace distir::autosharding {

struct Way {
  rules::FactorShardings factors;
  std::vector<mesh::Sharding> operands;
  std::vector<mesh::Sharding> results;  // as computed: `partial` says over which axes
  /*! \brief The part of the work that a device does; padding included. */
  double fraction = 1;
};

/*! \brief The ways of a rule, and the numbers of their shardings (autosharding/moves.h). */
struct NumberedWays {
  std::vector<Way> ways;
  std::vector<std::vector<int>> operands, results;  // by tensor, one per way
};

/*! \brief Ways of a call that are looked at, at most. */
constexpr size_t kMostWays = 384;

/*!
 * \brief The ways of a rule, by whole axes of a mesh, the one without sharding first. Of more than
 * kMostWays those are kept that leave a device the least of the work.
 */
std::vector<Way> WaysOf(const rules::FactorRule& rule, const mesh::Mesh& mesh);

}  // namespace distir::autosharding
#endif  // DISTIR_AUTOSHARDING_WAYS_H_
