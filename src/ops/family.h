/*!
 * \file ops/family.h
 * \brief Includes for the files of operator families.
 *
 * Such a file states factor rules (RuleBuilder), decompositions (Writer) and what else is
 * particular about its operators, and enters their records (Operators). It is all that is known of
 * them: tests/ops/test_records.py finds no operator named elsewhere.
 */
#ifndef DISTIR_OPS_FAMILY_H_
#define DISTIR_OPS_FAMILY_H_

#include "decompose/algorithm.h"
#include "ir/make_operators.h"
#include "ir/operator_attrs.h"
#include "rules/factor/axes.h"
#include "rules/factor/decomposed_factor.h"
#include "rules/operator.h"
#include "support/dtypes.h"

namespace distir::ops {

namespace ffi = tvm::ffi;
using decompose::DecomposedCall;
using decompose::DtypeOf;
using decompose::Marked;
using decompose::RankOf;
using decompose::SplitShape;
using decompose::TensorTypeOf;
using decompose::Writer;
using rules::Accumulation;
using rules::AxisMask;
using rules::Commutation;
using rules::DecomposedFactor;
using rules::DecomposedIf;
using rules::DecomposedIfKnown;
using rules::DescribedOperators;
using rules::Exchanged;
using rules::FactorKind;
using rules::FactorRule;
using rules::In;
using rules::IntegersOf;
using rules::kIncreasing;
using rules::kMoving;
using rules::kMovingFirst;
using rules::MovedAlong;
using rules::Movement;
using rules::NormalizeAxis;
using rules::NumElements;
using rules::OperandTails;
using rules::Operator;
using rules::Operators;
using rules::OpView;
using rules::Padding;
using rules::ParallelFactor;
using rules::ReadAxes;
using rules::ReplicateAll;
using rules::ReplicatedOperators;
using rules::RuleBuilder;
using rules::SameSize;
using rules::ShardableRank;
using rules::Sizes;
using rules::StaticSizes;
using rules::Summary;
using rules::Tail;
using rules::ViewCall;
using rules::WithStatistics;

/*! \brief True if the elements of a tensor are floating-point numbers. */
inline bool IsFloat(const ir::TensorType& type) {
  return type.has_dtype() && distir::IsFloat(type.dtype());
}
using distir::IsFloat;
inline bool OnFloats(const OpView& view) { return IsFloat(view.operands[0]); }

}  // namespace distir::ops
#endif  // DISTIR_OPS_FAMILY_H_
