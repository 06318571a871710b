/*!
 * \file split/combined_products.h
 * \brief Products that were combined into one and are split behind it, each by itself again.
 *
 *     w = R.concat((wq, wk), axis=1)
 *     y = R.matmul(x, w)                          q = R.matmul(x, wq)
 *     s = R.split(y, [64], axis=1)          ->    k = R.matmul(x, wk)
 *     q = s[0]; k = s[1]
 *
 * With the columns of wq and wk sharded, w would be exchanged: its shards lie elsewhere. A bias
 * that is joined alike, and what goes element by element, may stand between the product and the
 * split.
 */
#ifndef DISTIR_SPLIT_COMBINED_PRODUCTS_H_
#define DISTIR_SPLIT_COMBINED_PRODUCTS_H_

#include <functional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "ir/node.h"

namespace distir {
namespace split {

namespace ffi = tvm::ffi;

class CombinedProducts {
 public:
  explicit CombinedProducts(const ir::Function& function);

  bool empty() const { return found_.empty(); }
  /*! \brief Whether a binding is R.split behind such a product. */
  bool IsSplit(const ir::Var& var) const { return found_.count(var.get()) > 0; }
  /*! \brief Whether nothing uses a binding once its splits are replaced. */
  bool IsUnused(const ir::Var& var) const { return unused_.count(var.get()) > 0; }

  using Emit = std::function<ir::Expr(const ir::Expr&)>;  // binds a value; gives the variable
  /*! \brief The values that a split gives, in terms of the function's variables. */
  std::vector<ir::Expr> Write(const ir::Var& split, const Emit& emit) const;

 private:
  /*! \brief A split: of what, and how many elements of the last dimension each value has. */
  struct Split {
    ir::Expr value;
    std::vector<int64_t> widths;
  };

  std::optional<Split> ReadSplit(const ir::Call& call);
  /*! \brief Whether the last dimension of a value is made part by part. Notes what is used for it.
   */
  bool IsJoined(const ir::Expr& value, const Split& split, bool* has_product,
                std::vector<ir::Var>* chain);
  bool IsJoinedCall(const ir::Call& call, const Split& split, bool* has_product,
                    std::vector<ir::Var>* chain);
  ir::Expr PartOf(const ir::Expr& value, size_t part, const Split& split, const Emit& emit) const;
  ir::Call CallOf(const ir::Expr& value) const;

  std::unordered_map<const ffi::Object*, ir::Call> calls_;  // by variable
  std::unordered_map<const ffi::Object*, int> num_uses_;
  std::unordered_map<const ffi::Object*, Split> found_;
  std::unordered_set<const ffi::Object*> unused_;
};

}  // namespace split
}  // namespace distir
#endif  // DISTIR_SPLIT_COMBINED_PRODUCTS_H_
