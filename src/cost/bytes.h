/*!
 * \file cost/bytes.h
 * \brief Bytes that a device sends in a collective.
 *
 * Ring algorithms (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
 * workstations", 2009): of a tensor of B bytes in all, over n devices, a device sends B (n-1)/n in
 * an all-gather or reduce-scatter and twice that in an all-reduce; in an all-to-all, (n-1)/n of
 * what it holds.
 */
#ifndef DISTIR_COST_BYTES_H_
#define DISTIR_COST_BYTES_H_

#include <cstdint>

#include "mesh/collective.h"

namespace distir {
namespace cost {

/*!
 * \param kind A collective inside groups; not kPermute or kTransfer, whose plans say who sends
 * what.
 * \param group_size Devices per group, n >= 1.
 * \param local_bytes Bytes of the collective's argument on each device.
 */
double BytesSent(mesh::CollectiveKind kind, int64_t group_size, double local_bytes);

}  // namespace cost
}  // namespace distir
#endif  // DISTIR_COST_BYTES_H_
