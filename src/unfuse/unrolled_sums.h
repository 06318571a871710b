/*!
 * \file unfuse/unrolled_sums.h
 * \brief Joins sums whose terms were written one by one, for each slice of a sharded tensor.
 *
 *     w0 = R.take(w, 0, axis=0)
 *     y0 = R.multiply(R.matmul(x, w0), m[:, 0:1])      y = R.matmul(x, w)              # (E, T, F)
 *     w1 = R.take(w, 1, axis=0)                   ->   y = R.multiply(y, m')           # (E, T, 1)
 *     y1 = R.multiply(R.matmul(x, w1), m[:, 1:2])      z = R.sum(y, axis=0)
 *     z = R.add(y0, y1); ..
 *
 * This is how a loop over experts is exported in which every expert computes all tokens. A slice
 * along a sharded dimension lies on one device, so written one by one, each slice would be sent to
 * all devices. Computed together, each device computes its own terms, and their sums are reduced
 * once. Terms consist of elementwise operators, products, and changes of shape, and are alike but
 * for the slice.
 */
#ifndef DISTIR_UNFUSE_UNROLLED_SUMS_H_
#define DISTIR_UNFUSE_UNROLLED_SUMS_H_

#include <functional>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "ir/node.h"
#include "support/pointer_map.h"

namespace distir::unfuse {

namespace ffi = tvm::ffi;

class UnrolledSums {
 public:
  explicit UnrolledSums(const ir::Function& function);

  bool empty() const { return found_.empty(); }
  /*! \brief True if a binding is such a sum. */
  bool Replaces(const ir::Var& var) const { return found_.count(var.get()) > 0; }
  /*! \brief True if nothing uses a binding once the sums are replaced. */
  bool IsUnused(const ir::Var& var) const { return unused_.count(var.get()) > 0; }

  using Emit = std::function<ir::Expr(const ir::Expr&)>;  // binds a value; gives the variable
  ir::Expr Write(const ir::Var& var, const Emit& emit) const;

 private:
  /*! \brief One element along a dimension of a tensor. */
  struct Slice {
    ir::Expr base;
    int dim;
    int64_t index;
    bool keeps_dim;  // as 1
  };
  /*! \brief Slices that a value is made of. */
  struct Made {
    int64_t index;
    int64_t extent;
    bool is_sharded;  // along the dimension of one of the slices
  };
  struct Sum {
    ir::Expr term;                 // the first one
    std::vector<ir::Expr> others;  // what is added that is no such term
  };
  /*! \brief Values for all slices at once, as far as they are written; null where they have none.
   */
  using Written = std::unordered_map<const ffi::Object*, ir::Expr>;

  ir::Expr ValueOf(const ir::Expr& var) const;
  ir::Call CallOf(const ir::Expr& var) const { return ir::Call::Cast(ValueOf(var)); }
  std::optional<Slice> ReadSlice(const ir::Expr& value) const;
  bool IsShardedAlong(const Slice& slice) const;
  std::optional<Sum> ReadSum(const ir::Call& sum, std::unordered_set<const ffi::Object*>* kept);
  /*! \brief Reads a value made of slices of one index and extent; nullopt for others. */
  std::optional<Made> MadeOf(const ir::Expr& value) const;
  std::optional<Made> ReadMade(const ir::Var& var, const ir::Expr& value) const;
  /*! \brief True if two values are alike, but for the indices of their slices. */
  bool IsAlike(const ir::Expr& first, const ir::Expr& value, int64_t first_index, int64_t index,
               std::unordered_set<const ffi::Object*>* kept) const;
  bool MayTogether(const ir::Call& call) const;
  void DropUnused(const ir::Call& sum, const std::unordered_set<const ffi::Object*>& kept);

  ir::Expr Together(const ir::Expr& value, const Emit& emit, Written* written) const;
  ir::Expr TogetherCall(const ir::Call& call, const Emit& emit, Written* written) const;
  ir::Expr AllOf(const Slice& slice, const Emit& emit) const;

  PointerMap<ir::Expr> values_;  // by variable
  std::unordered_map<const ffi::Object*, Made> made_;
  std::unordered_map<const ffi::Object*, int> num_uses_;
  std::unordered_map<const ffi::Object*, Sum> found_;
  std::unordered_set<const ffi::Object*> unused_;
};

/*! \brief The module with the terms of such sums computed together. */
ir::IRModule JoinTerms(const ir::IRModule& mod);

}  // namespace distir::unfuse
#endif  // DISTIR_UNFUSE_UNROLLED_SUMS_H_
