/*!
 * \file ops/movement.h
 * \brief Rules and parts of decompositions that operators share that only move elements: slices and
 * pads (ops/slicing.cc), joins, splits and flips (ops/movement.cc).
 */
#ifndef DISTIR_OPS_MOVEMENT_H_
#define DISTIR_OPS_MOVEMENT_H_

#include <limits>
#include <vector>

#include "ops/family.h"

namespace distir::ops {

/*! \brief Number of elements where it is not known. */
inline constexpr double kAllElements = std::numeric_limits<double>::infinity();
inline constexpr DLDataType kInt8{kDLInt, 8, 1};

/*! \brief Movement of elements along the dimensions of a mask: all are needed, or elements move, in
 * any case or where operand and result are sharded alike anyway. What is split or joined are often
 * different things (the gates of a cell, the halves of a rotation), which are used as their own
 * shardings say. */
enum class Along { kWhole, kMoved, kMovedIfUsed };

/*! \brief All operands and results have one rank; along the dimensions in `mask` all is needed or
 * elements move, at most `elements` of each to a shard; empty: any number. */
FactorRule SameRank(const OpView& view, const std::vector<bool>& mask, Along along,
                    const std::vector<double>& elements = {});

int64_t SizeOf(const ir::Type& type, int dim);
int64_t SizeOf(const ir::Expr& x, int dim);

/*! \brief A segment that is shorter than there are shards: every device adds what it has to a
 * replicated one. */
ir::Expr LookUpSegment(const ir::Expr& x, int dim, const mesh::Segment& segment, Writer* w);

/*! \brief True if a result has fewer elements along a dimension than the operand has shards. */
bool IsShort(const DecomposedCall& call, size_t result, int dim);

}  // namespace distir::ops
#endif  // DISTIR_OPS_MOVEMENT_H_
