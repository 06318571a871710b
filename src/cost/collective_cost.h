/*!
 * \file cost/collective_cost.h
 * \brief Time and bytes of a collective: the one model of planner, passes and analysis.
 *
 * n devices of a group, b bytes of the argument on each, link (alpha, g, beta):
 *
 *   all_gather       turns(n) + (n-1) b / beta
 *   reduce_scatter   turns(n) + (n-1) b / (n beta)
 *   all_reduce       min( 2 turns(n) + 2 (n-1) b / (n beta),            both of the above
 *                         2 ceil(log2 n) (alpha + g) + 2 b / beta )     two trees
 *   all_to_all       alpha + (n-1) (g + b / (n beta))                   all peers at once
 *   slice, view      0
 *
 * plus the cluster's launch time. turns(n) is alpha + (n-1) g (all peers at once; a ring takes no
 * less) or, where n is a power of two and that is less, log2 n (alpha + g) (recursive doubling and
 * halving).
 *
 * Ring: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
 * 2009. Trees: Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast,
 * reduction and scan", 2009. Doubling and halving: Thakur, Rabenseifner and Gropp,
 * "Optimization of collective communication operations in MPICH", 2005. Permutes, exchanges and
 * transfers are grouped sends and receives: cost/exchange.h.
 */
#ifndef DISTIR_COST_COLLECTIVE_COST_H_
#define DISTIR_COST_COLLECTIVE_COST_H_

#include <cstdint>

#include "cost/cluster.h"
#include "mesh/collective.h"

namespace distir::abi {
enum class Collective : uint8_t;
}  // namespace distir::abi

namespace distir::cost {

/*!
 * \brief Seconds that a collective inside groups takes.
 * \param collective One of groups, not of a plan.
 * \param launch Seconds to start it.
 * \param link The slowest link between devices of a group.
 * \param group_size Devices per group, n >= 1.
 * \param local_bytes Bytes of the collective's argument on each device.
 * \throws ValueError for those of plans.
 */
double Seconds(abi::Collective collective, double launch, const Link& link, int64_t group_size,
               double local_bytes);
double Seconds(mesh::CollectiveKind kind, double launch, const Link& link, int64_t group_size,
               double local_bytes);

/*!
 * \brief Bytes that a device sends by the ring or pairwise algorithm; parameters as above. A device
 * receives as many.
 */
double BytesSent(mesh::CollectiveKind kind, int64_t group_size, double local_bytes);

}  // namespace distir::cost
#endif  // DISTIR_COST_COLLECTIVE_COST_H_
