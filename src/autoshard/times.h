/*!
 * \file autoshard/times.h
 * \brief Leaves out times whose limit cannot be exceeded or follows from the limit of another time.
 */
#ifndef DISTIR_AUTOSHARD_TIMES_H_
#define DISTIR_AUTOSHARD_TIMES_H_

#include <cstdint>
#include <vector>

#include "autoshard/problem.h"

namespace distir::autoshard {

/*!
 * \brief Moves what a node takes with every strategy into the limits, and leaves out times.
 *
 * With usages at [0, 3) and [1, 4), time 1 is kept: times 0 and 3 have fewer nodes, 2 the same
 * ones.
 * \param nodes Their usages are changed; empty ones disappear.
 * \param limits One per time; changed.
 * \return For each node whether a usage of it disappeared; empty if a limit cannot be kept.
 */
std::vector<bool> CompressTimes(const std::vector<Node*>& nodes, std::vector<int64_t>* limits,
                                bool* is_feasible);

}  // namespace distir::autoshard

#endif  // DISTIR_AUTOSHARD_TIMES_H_
