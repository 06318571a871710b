/*!
 * \file optimize/pairs/pair_rows.h
 * \brief Restricts values that all experts compute for all tokens to the pairs of a token and an
 * expert with a nonzero weight.
 *
 * A value (16, 24, 48) of 16 experts and 24 tokens becomes (1, 384, 48): there is one row for each
 * pair, of which those in front count (dialect/operators/pair_selection.h). Operators stay as they
 * are, for these sizes; products with the matrices of experts are grouped; values that come from
 * outside (tokens, biases) are selected for the pairs:
 *
 *     # x (1, 24, 48), w (16, 48, 32), bias (16, 32)
 *     h = R.matmul(x, w)                    # (16, 24, 32)
 *     b = R.add(h, R.expand_dims(bias, 1))  # (16, 24, 32)
 *
 * is written, for the weights m (24, 16), as
 *
 *     t = R.dist.select_pairs(R.reshape(x, (24, 1, 48)), m)
 *     h = R.dist.grouped_matmul(t[0], w, t[1])
 *     s = R.dist.select_pairs(R.reshape(bias, (1, 16, 32)), m)
 *     b = R.add(R.reshape(h, (1, 384, 32)), R.reshape(s[0], (1, 384, 32)))
 */
#ifndef DISTIR_OPTIMIZE_PAIRS_PAIR_ROWS_H_
#define DISTIR_OPTIMIZE_PAIRS_PAIR_ROWS_H_

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "optimize/pairs/weighted_sum.h"

namespace distir::optimize {

/*! \brief Tokens, the same for all experts, from which the rows of pairs were selected. */
struct SelectedTokens {
  ir::Expr value;
  PairDims dims;
  EditableBinding* matrix;  // the value as (tokens, 1, width), which is selected from
};

class PairRows {
 public:
  /*! \param weights As a matrix (tokens, experts), bound in front of `at`. */
  PairRows(EditableFunction* editable, EditableBinding* at, const WeightedSum& sum,
           const ir::Expr& weights)
      : editable_(*editable), at_(at), sum_(sum), weights_(weights) {}

  /*! \brief A value, by rows of pairs; null where it cannot be. */
  ir::Expr Lift(const ir::Expr& value, const PairDims& dims);
  /*! \brief Such a value as a matrix of rows; null where it has several dimensions that are wide.
   */
  ir::Expr Flat(const ir::Expr& rows, const PairDims& dims);

  /*! \brief Binds a value in front of `at`, its name as that of `like`. */
  ir::Expr Bind(const std::string& like, const ir::Expr& value);

  /*! \brief Products with the matrices of experts, written or not. */
  bool has_products() const { return has_products_; }
  int num_products() const { return num_products_; }
  const std::vector<SelectedTokens>& tokens() const { return tokens_; }
  /*! \brief Bound values, in order. */
  const std::vector<ir::Expr>& made() const { return made_; }

 private:
  ir::Expr LiftCall(const ir::Expr& value, const PairDims& dims);
  ir::Expr LiftProduct(const RuledCall& call, const PairDims& factors);
  ir::Expr LiftSum(const ir::Call& call, const PairDims& dims);
  ir::Expr LiftRepeated(const ir::Call& call, const PairDims& dims);
  ir::Expr LiftItem(const ir::TupleGetItem& item, const PairDims& dims);
  ir::Expr LiftOperator(const RuledCall& call, const PairDims& factors, const ir::Type& type);
  ir::Expr Aligned(const ir::Expr& rows, const PairDims& dims, const PairDims& of_result);
  ir::Expr Selected(const ir::Expr& value, const PairDims& dims);
  std::optional<ir::DTensorType> LiftedType(const ir::Type& type, const PairDims& dims);

  EditableFunction& editable_;
  EditableBinding* const at_;
  const WeightedSum& sum_;
  const ir::Expr weights_;
  std::map<const ffi::Object*, ir::Expr> lifted_;
  std::vector<SelectedTokens> tokens_;
  std::vector<ir::Expr> made_;
  ir::Expr counts_;
  bool has_products_ = false;
  int num_products_ = 0;
};

/*!
 * \brief A value as (tokens or 1, experts or 1, width), bound by `bind`; null where several of its
 * dimensions are wide, or sharded so that it would have to move.
 */
ir::Expr AsCube(const ir::Expr& value, const PairDims& dims, int64_t num_experts,
                const std::function<ir::Expr(const ir::Expr&)>& bind);

}  // namespace distir::optimize
#endif  // DISTIR_OPTIMIZE_PAIRS_PAIR_ROWS_H_
