/*!
 * \file redistribute/partial.h
 * \brief What a call on DTensors leaves to be reduced.
 *
 * Worked example: matmul of a (8, 16) sharded "S[1]" and a (16, 32) sharded "S[0]" on one mesh axis
 * x gives every device a sum over its part of the 16: [-|-] partial=sum{x}.
 */
#ifndef DISTIR_REDISTRIBUTE_PARTIAL_H_
#define DISTIR_REDISTRIBUTE_PARTIAL_H_

#include <optional>

#include "ir/node.h"
#include "mesh/sharding.h"
#include "op/mesh_table.h"
#include "rules/tir_rule.h"

namespace distir {
namespace redistribute {

struct PartialValue {
  int root;                 // in the table given
  mesh::Sharding sharding;  // with partial axes
};

/*!
 * \brief The partial value that a call computes; nullopt when its result is whole.
 * \param kernels The kernels of the module; without them R.call_tir leaves nothing partial.
 */
std::optional<PartialValue> PartialResult(const ir::Call& call, op::MeshTable* meshes,
                                          rules::KernelTable* kernels = nullptr);

}  // namespace redistribute
}  // namespace distir
#endif  // DISTIR_REDISTRIBUTE_PARTIAL_H_
