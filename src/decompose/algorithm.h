/*!
 * \file decompose/algorithm.h
 * \brief Decompositions: operators that need all of a dimension, written as operators on its
 * shards.
 *
 * A rule gives such a dimension a DecomposedFactor. If one is sharded, the decomposition of the
 * operator writes the call anew, in ordinary operators. Worked example, softmax
 * over a sharded axis: the maximum of each shard (partial), exp of the difference, its sum
 * (partial), divide; LegalizeRedistribute makes the two partial values all-reduces of one number
 * per row.
 *
 * Decompositions need a device's shard as a dimension of its own: (n,) sharded k ways is reshaped
 * to (k, n / k), where the first dimension is sharded and the second one is not, so that along the
 * second one every operator works alone.
 */
#ifndef DISTIR_DECOMPOSE_ALGORITHM_H_
#define DISTIR_DECOMPOSE_ALGORITHM_H_

#include <vector>

#include "decompose/writer.h"
#include "rules/call/infer_type.h"
#include "rules/operator.h"
#include "rules/parts.h"

namespace distir::decompose {

/*! \brief A call of which a decomposed factor is sharded. */
struct DecomposedCall {
  ir::Call call;  // its operands placed as decided
  const rules::FactorRule& rule;
  const rules::CallSharding& sharding;
  /*! \brief Of a call that joins tensors, the segments of each operand that it joins; empty for
   * other calls. */
  std::vector<rules::Segments> parts = {};

  ir::Expr arg(size_t i) const { return call.args()[i]; }
  const ir::Node& attrs() const { return call.attrs(); }
  /*! \brief True if a dimension of an operand has a decomposed factor that is sharded. */
  bool IsDecomposed(size_t operand, int dim) const;
  /*! \brief The type of the call's value on whole tensors. */
  ir::Type result() const { return rules::StripDistribution(call.ty()); }
  /*! \brief The axes of the first decomposed factor that is sharded. */
  const mesh::AxisList& DecomposedAxes() const;
};

/*! \brief The decomposition of an operator, or null. */
rules::Decomposition FindDecomposition(const ir::Expr& op);

/*! \brief The dimensions that a mask marks. */
std::vector<int> Marked(const std::vector<bool>& mask);

}  // namespace distir::decompose
#endif  // DISTIR_DECOMPOSE_ALGORITHM_H_
