/*!
 * \file propagation/separated_call.h
 * \brief Writes a call whose operands have merged dimensions on the dimensions that were merged.
 *
 * Few operators are named here: a call on separate dimensions has the same operator, and attributes
 * that name the same dimensions, and it is taken only if its factor rule says the same of the
 * separate dimensions as that of the call says of the merged one.
 *
 * Worked example: softmax of (4 * 8, 16, 16) along dimension 2 is the softmax of (4, 8, 16, 16)
 * along dimension 3. The rule of both gives a parallel factor to the dimensions before it. An
 * operator that works along the merged dimension, such as a sort, cannot be written so. A product
 * that contracts it, such as the gradient of a linear layer, is the einsum that its rule says.
 */
#ifndef DISTIR_PROPAGATION_SEPARATED_CALL_H_
#define DISTIR_PROPAGATION_SEPARATED_CALL_H_

#include <optional>
#include <vector>

#include "ir/node.h"

namespace distir::propagation {

/*! \brief Dimensions, major to minor. */
using Dims = std::vector<ir::Expr>;
/*! \brief The dimensions that each dimension of a tensor consists of: itself, where it stays. */
using Separated = std::vector<Dims>;

bool SameDims(const Dims& a, const Dims& b);
bool HasDims(const std::vector<Dims>& all, const Dims& dims);
/*! \brief The shape of a tensor that is not placed yet; nullopt if it is not known, or placed. */
std::optional<Dims> KnownShape(const ir::Expr& value);
/*! \brief All dimensions in order. */
Dims Flat(const Separated& separated);

struct SeparatedCall {
  /*! \brief The call whose arguments, but for tensors, are those on separate dimensions. */
  ir::Call call;
  ir::Node attrs;
  std::vector<Dims> operands;  // shapes of the tensor operands, tuples flattened
  /*! \brief Order in which the call takes the dimensions of its first operand; empty: as they are.
   */
  std::vector<int64_t> first_order;
  std::vector<Separated> results;  // the fields of a tuple
  /*! \brief Written as an einsum of the operands: a product that contracts a merged dimension. */
  bool is_einsum = false;
};

/*!
 * \brief The call on separate dimensions; nullopt if there is none that computes the same.
 * \param type Of the call's value.
 * \param operands By tensor operand, tuples flattened; null for those that have no merged
 * dimension.
 */
std::optional<SeparatedCall> Separate(const ir::Call& call, const ir::Type& type,
                                      const std::vector<const Separated*>& operands);

/*! \brief The arguments of a call, with the tensors among them replaced in order. */
tvm::ffi::Array<ir::Expr> WithTensors(const ir::Call& call, const std::vector<ir::Expr>& tensors);

}  // namespace distir::propagation
#endif  // DISTIR_PROPAGATION_SEPARATED_CALL_H_
