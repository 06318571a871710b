/*!
 * \file expand/pass.h
 * \brief ExpandSharded: calls that are sharded along what they look along are computed by parts.
 */
#ifndef DISTIR_EXPAND_PASS_H_
#define DISTIR_EXPAND_PASS_H_

#include "ir/node.h"
#include "op/mesh_table.h"

namespace distir {
namespace expand {

/*! \brief Rewrites the calls of which a special factor is sharded, see expand/algorithm.h; the
 * and makes values in pieces, see expand/creation.h; the module itself where there is neither. */
ir::IRModule ExpandSharded(const ir::IRModule& mod);
/*! \brief Rewrites only the calls of which a special factor is uneven, before they are padded,
 * where their algorithm takes that (rules/tails.h); the module itself where there are none. */
ir::IRModule ExpandUneven(const ir::IRModule& mod);
/*! \brief Whether a call on DTensors has to be expanded. */
bool IsSharded(const ir::Call& call, op::MeshTable* meshes);

}  // namespace expand
}  // namespace distir
#endif  // DISTIR_EXPAND_PASS_H_
