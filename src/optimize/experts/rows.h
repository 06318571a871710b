/*!
 * \file optimize/experts/rows.h
 * \brief Moves rows of tokens to the devices of their experts, computes them row by row, and moves
 * the results back.
 *
 *     t = R.dist.dispatch_tokens(x, ids, ..)
 *     h = R.dist.grouped_matmul(t[0], up, t[1])      # value: h, counts: t[1]
 *     a = R.nn.silu(h)                               # lifted: silu of x times up, row by row
 *     z = R.dist.combine_tokens(a, ids, t[1], ..)
 *
 * Row-wise operators are recognised by their factor rules. Behind its rows a device has room
 * for more; what is computed there is never used. If all devices have the same rows, each
 * selects those of its experts, and the results are summed up (dialect/operators/token_dispatch.h).
 */
#ifndef DISTIR_OPTIMIZE_EXPERTS_ROWS_H_
#define DISTIR_OPTIMIZE_EXPERTS_ROWS_H_

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "optimize/experts/product.h"

namespace distir::optimize {

/*! \brief Rows where their experts are, and how many of them. */
struct Rows {
  ir::Expr value, counts;
  ir::Expr first;  // of rows that were selected: the first expert of each device
};

class ExpertRows {
 public:
  ExpertRows(EditableFunction* editable, dialect::MeshTable* meshes)
      : editable_(*editable), meshes_(*meshes) {}

  /*! \brief Computes a product where the experts are, and what follows it as far as it has to be.
   * \param at The binding of the call, in front of which all else is written. */
  void Write(EditableBinding* at, const ir::Call& call, const Product& product);
  /*! \brief Removes what was written and nothing uses. */
  void Finish();

 private:
  using Key =
      std::tuple<const ffi::Object*, const ffi::Object*, int64_t, std::vector<int>, const Block*>;
  static Key KeyOf(const ir::Expr& value, const Choice& choice, const EditableBinding* at) {
    return {value.get(), choice.ids.get(), choice.num_experts, choice.axes, at->block};
  }

  void LiftUsers(EditableBinding* product, const Choice& choice);
  Rows RowsOf(EditableBinding* at, const Product& product);
  Rows Brought(EditableBinding* at, const std::string& name, const ir::Expr& flat,
               const Choice& choice);
  ir::Expr BroughtBack(EditableBinding* at, const std::string& name, const ir::Expr& flat,
                       const Rows& rows, const Choice& choice);
  void SetBack(EditableBinding* at, ir::Expr back, const Choice& choice);
  std::optional<Rows> Lift(EditableBinding* at, const ir::Expr& value, const Choice& choice);
  bool IsLookup(const ir::Expr& value, const Choice& choice) const;
  std::optional<Rows> LiftTake(EditableBinding* at, const Lookup& lookup, const ir::Var& taken,
                               const Choice& choice);
  std::optional<Rows> LiftCall(EditableBinding* at, const ir::Call& call, const Choice& choice);
  std::optional<ir::Expr> ShardOf(EditableBinding* at, const ir::Expr& table, const Choice& choice,
                                  const std::string& name);
  ir::Expr Placed(EditableBinding* at, const std::string& name, const ir::Call& made,
                  const ir::DTensorType& like, const ir::Placement& placement);
  ir::Expr Ones(EditableBinding* at, const ir::Expr& rows, const ir::DTensorType& like);
  ir::Expr FirstExperts(EditableBinding* at, const Choice& choice);
  void Keep(const Key& key, const Rows& rows);
  void Drop(const ir::Expr& value);

  EditableFunction& editable_;
  dialect::MeshTable& meshes_;
  // By value, choices, experts, axes and block; without a value, the rows that were brought.
  std::map<Key, Rows> lifted_;
  std::vector<ir::Expr> made_;
};

}  // namespace distir::optimize
#endif  // DISTIR_OPTIMIZE_EXPERTS_ROWS_H_
