/*!
 * \file unfuse/sorted_rows.h
 * \brief Computes rows that are sorted, computed row by row and put back in their own order
 * instead.
 *
 *     perm = R.argsort(ids)                             # choices by expert
 *     rows = R.take(x, perm // 2, axis=0)               r = R.repeat(x, 2)
 *     w = R.take(experts, R.take(ids, perm), axis=0)    w = R.take(experts, ids, axis=0)
 *     h = R.matmul(rows, w)                       ->    y = R.matmul(r, w)
 *     y = R.take(h, R.argsort(perm), axis=0)
 *
 * A sort may take a row to any device, so sharded tokens would all be gathered for it. Which
 * operators work row by row is read off their factor rules. Rows may also be put back by a scatter
 * to where they come from, which may add them up there.
 */
#ifndef DISTIR_UNFUSE_SORTED_ROWS_H_
#define DISTIR_UNFUSE_SORTED_ROWS_H_

#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ir/node.h"
#include "support/pointer_map.h"

namespace distir::unfuse {

namespace ffi = tvm::ffi;

class SortedRows {
 public:
  explicit SortedRows(const ir::Function& function);

  bool empty() const { return found_.empty(); }
  /*! \brief True if a binding puts rows back in their order. */
  bool Replaces(const ir::Var& var) const { return found_.count(var.get()) > 0; }
  /*! \brief True if nothing uses a binding once those are replaced. */
  bool IsUnused(const ir::Var& var) const { return unused_.count(var.get()) > 0; }

  using Emit = std::function<ir::Expr(const ir::Expr&)>;  // binds a value; gives the variable
  /*! \brief The value of such a binding, in terms of the function's variables. */
  ir::Expr Write(const ir::Var& var, const Emit& emit) const;

 private:
  /*! \brief Value that is put back into its own order. */
  struct Restored {
    ir::Var order;
    ir::Expr rows;
    /*! \brief Tensor that rows are added to, and the positions there. */
    ir::Expr data, positions;
  };
  /*! \brief Values in their own order, as far as they are written. */
  using Written = std::unordered_map<const ffi::Object*, ir::Expr>;

  ir::Expr ValueOf(const ir::Expr& var) const;
  ir::Call CallOf(const ir::Expr& var) const { return ir::Call::Cast(ValueOf(var)); }
  /*! \brief The value without changes of its type. */
  ir::Expr WithoutCasts(ir::Expr value) const;
  /*! \brief The permutation of 0, 1, .. that a value is; null for others. */
  ir::Var PermutationOf(const ir::Expr& value) const;
  /*! \brief The permutation that a value undoes; null for others. */
  ir::Var UndoneBy(const ir::Expr& value) const;
  /*! \brief The positions along rows that a call writes to; null for others. */
  ir::Expr PositionsOf(const ir::Call& scatter) const;
  /*! \brief Positions (n,) of which each row of a value has one, maybe several times. */
  ir::Expr ListOf(const ir::Expr& positions) const;
  std::optional<Restored> ReadRestored(const ir::Call& call);
  std::optional<Restored> ReadScatter(const ir::Call& call);
  /*! \brief The order that the rows of a value are in, of which those in their own order are known;
   * null for others. */
  ir::Var OrderOf(const ir::Expr& value);
  ir::Var FindOrder(const ir::Expr& value);
  ir::Var OrderOfCall(const ir::Call& call);
  ir::Var OrderOfSort(const ir::Call& call) const;
  /*! \brief True if a call takes all rows in the order of a permutation. */
  bool IsTakenInOrder(const ir::Call& call) const;
  bool DropChain(const ir::Call& call);

  ir::Expr InOwnOrder(const ir::Expr& value, const Emit& emit, Written* written) const;
  ir::Expr Repeated(const ir::Call& take, const Emit& emit) const;
  ir::Expr AddedUp(const Restored& restored, const ir::Call& call, const Emit& emit,
                   Written* written) const;
  /*! \brief k where a value is order // k; 0 for others. */
  int64_t DividedBy(const ir::Expr& value) const;

  PointerMap<ir::Expr> values_;  // by variable
  std::unordered_map<const ffi::Object*, ir::Var> orders_;
  std::vector<std::pair<ir::Var, ir::Call>> argsorts_;
  std::unordered_map<const ffi::Object*, int> num_uses_;
  std::unordered_map<const ffi::Object*, Restored> found_;
  std::unordered_set<const ffi::Object*> unused_;
};

/*! \brief The module with such rows in their own order. */
ir::IRModule KeepOwnOrder(const ir::IRModule& mod);

}  // namespace distir::unfuse
#endif  // DISTIR_UNFUSE_SORTED_ROWS_H_
