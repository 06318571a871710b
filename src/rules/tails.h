/*!
 * \file rules/tails.h
 * \brief Decides which factors of a call may be padded, and what their padding must hold.
 *
 * A dimension whose shards do not divide it is padded behind its last element; what stands there is
 * its *tail*. A call may be padded along a factor that makes up whole dimensions by itself: along a
 * parallel factor every element is computed from its own, so that a tail gives nothing but a tail;
 * along a reduction the tail must hold the neutral element. Some calls may also be padded along the
 * major factor of a dimension, in whole *grains* (padding/grains.h). Operators that need all of a
 * dimension, or move its elements, may be *decomposed* (decompose/) before anything is padded:
 * decompositions take uneven shards, and what they write may be padded.
 *
 * Worked example: matmul of (6, 7) and (7, 5), contracted dimension in 2 shards. Both operands are
 * padded to 8 along it, their tails must be zero; the result is exact. Reshape of (3, 4) to (12):
 * padding 4 would put tails between elements; padding 3 to 4 puts a grain of 4 behind the 12.
 */
#ifndef DISTIR_RULES_TAILS_H_
#define DISTIR_RULES_TAILS_H_

#include "rules/operator.h"

namespace distir::rules {

/*! \brief Sets `may_be_uneven` of the factors of an operator's rule that may be padded. */
void MarkUneven(const Operator& record, const OpView& view, FactorRule* rule);

/*! \brief Part of a dimension that may be padded: all, or also its major factor, in grains. */
enum class Padded { kDims, kGrains };

/*! \brief Clears it of those that do not make up such parts of the call's tensors by themselves,
 * and of reductions of tensors that neutral elements cannot be written in. */
void RequireWhole(Padded padded, const OpView& view, FactorRule* rule);

/*! \brief Value that the tail of an operand must hold along a factor that may be uneven. */
Tail NeededTail(const OpView& view, const FactorRule& rule, size_t operand, int factor);

/*! \brief True if an operator of which a decomposed factor is uneven is decomposed before padding.
 */
bool IsDecomposedUneven(const ir::Expr& op);

/*! \brief True if an operator only moves elements, so that a tail of zeros stays one. */
bool MovesTails(const ir::Expr& op);

}  // namespace distir::rules
#endif  // DISTIR_RULES_TAILS_H_
