/*!
 * \file target/products/contraction.h
 * \brief Product of two tensors for a library: its operands, their labels, and what the same call
 * does to the result.
 *
 * Example: y = R.matmul(x, R.permute_dims(w)) is operands (x, w), labels "ab" and "cb", result
 * "ac".
 */
#ifndef DISTIR_TARGET_PRODUCTS_CONTRACTION_H_
#define DISTIR_TARGET_PRODUCTS_CONTRACTION_H_

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "ir/node.h"
#include "rules/factor/axes.h"
#include "rules/factor/equation.h"

namespace distir::target {

using Labels = rules::Labels;

/*! \brief activation(product + addend + bias), in this order; what is undefined or empty is not
 * there. */
struct Epilogue {
  ir::Expr bias;           // one number for each position of the result's last dimension
  ir::Expr addend;         // shaped as the result
  std::string activation;  // "relu", "gelu_tanh"
  bool empty() const { return !bias.defined() && !addend.defined() && activation.empty(); }
};

/*! \brief result[..] = sum of operands[0][..] * operands[1][..]. */
struct Contraction {
  std::array<ir::Expr, 2> operands;
  std::array<Labels, 2> labels;
  Labels result;
  Epilogue epilogue;
};

/*! \brief R.matmul or R.einsum of two tensors as a contraction with static or symbolic sizes, of
 * which enough is multiplied to be worth a call. */
std::optional<Contraction> ReadContraction(const ir::Call& call, const ir::Type& type);

/*! \brief Such as "ab,bc->ac"; nullopt where there are more labels than letters. */
std::optional<std::string> Subscripts(const Contraction& contraction);

}  // namespace distir::target
#endif  // DISTIR_TARGET_PRODUCTS_CONTRACTION_H_
