/*!
 * \file decompose/pass.h
 * \brief DecomposeSharded: rewrites calls that need all of a sharded dimension to operators on
 * shards.
 */
#ifndef DISTIR_DECOMPOSE_PASS_H_
#define DISTIR_DECOMPOSE_PASS_H_

#include "ir/node.h"
#include "rules/call/decision.h"

namespace distir::decompose {

/*! \brief Rewrites the calls of which a decomposed factor is sharded, see decompose/algorithm.h,
 * and makes values in pieces, see decompose/creation.h; the module itself where there is neither.
 */
ir::IRModule DecomposeSharded(const ir::IRModule& mod);
/*! \brief Rewrites only the calls of which a decomposed factor is uneven, before they are padded,
 * where their decomposition takes that (rules/tails.h); the module itself where there are none. */
ir::IRModule DecomposeUneven(const ir::IRModule& mod);
/*! \brief True if a call on DTensors has to be decomposed. */
bool IsSharded(const ir::Call& call, rules::Decisions* decisions);

}  // namespace distir::decompose
#endif  // DISTIR_DECOMPOSE_PASS_H_
