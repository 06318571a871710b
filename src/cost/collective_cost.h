/*!
 * \file cost/collective_cost.h
 * \brief Time and bytes of a collective: the one model of planner, passes and analysis.
 *
 * n devices of a group, b bytes of the argument on each, link (alpha, beta):
 *
 *   all_gather       steps(n) alpha + (n-1) b / beta
 *   reduce_scatter   steps(n) alpha + (n-1) b / (n beta)
 *   all_reduce       min( 2 steps(n) alpha + 2 (n-1) b / (n beta),       both of the above
 *                         2 ceil(log2 n) alpha + 2 b / beta )            two trees
 *   all_to_all       (n-1) alpha + (n-1) b / (n beta)                    pairwise
 *   slice, view      0
 *
 * plus the cluster's launch time. steps(n) is log2 n where n is a power of two (recursive doubling
 * and halving), else n-1 (ring).
 *
 * Ring: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
 * 2009. Trees: Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast,
 * reduction and scan", 2009. Doubling, halving, pairwise: Thakur, Rabenseifner and Gropp,
 * "Optimization of collective communication operations in MPICH", 2005. Permutes, exchanges and
 * transfers are grouped sends and receives: cost/exchange.h.
 */
#ifndef DISTIR_COST_COLLECTIVE_COST_H_
#define DISTIR_COST_COLLECTIVE_COST_H_

#include <cstdint>

#include "cost/cluster.h"
#include "mesh/collective.h"

namespace distir {
namespace cost {

/*!
 * \brief Seconds that a collective inside groups takes.
 * \param kind Not kPermute, kExchange or kTransfer.
 * \param launch Seconds to start it.
 * \param link The slowest link between devices of a group.
 * \param group_size Devices per group, n >= 1.
 * \param local_bytes Bytes of the collective's argument on each device.
 * \throws ValueError for other kinds.
 */
double Seconds(mesh::CollectiveKind kind, double launch, const Link& link, int64_t group_size,
               double local_bytes);

/*!
 * \brief Bytes that a device sends by the ring or pairwise algorithm; parameters as above. A device
 * receives as many.
 */
double BytesSent(mesh::CollectiveKind kind, int64_t group_size, double local_bytes);

}  // namespace cost
}  // namespace distir
#endif  // DISTIR_COST_COLLECTIVE_COST_H_
