/*!
 * \file padding/size.h
 * \brief Represents the size of a dimension as a product, to find common divisors and quotients,
 * symbolic ones too: n * 4 and n * m * 6 have the common divisor n * 2.
 */
#ifndef DISTIR_PADDING_SIZE_H_
#define DISTIR_PADDING_SIZE_H_

#include <vector>

#include "ir/node.h"

namespace distir::padding {

class Size {
 public:
  explicit Size(int64_t number) : number_(number) {}
  /*! \brief Reads a dimension of known size. */
  explicit Size(const ir::Expr& dim);

  bool is_symbolic() const { return !symbols_.empty(); }
  /*! \brief True if the size may be as large as `number`; a symbolic one may. */
  bool MayReach(int64_t number) const { return !symbols_.empty() || number_ >= number; }
  bool operator==(const Size& other) const;

  /*! \brief The least multiple of `shards` that is not below it. */
  ir::Expr Even(int64_t shards) const;
  /*! \brief Pads each of so many grains: grains * Even(shards), for a divisor's quotient. */
  static ir::Expr Padded(const Size& grain, const Size& units, int64_t shards);

  static Size CommonDivisor(const Size& a, const Size& b);
  /*! \brief The quotient by a divisor of it. */
  Size DividedBy(const Size& divisor) const;

 private:
  ir::Expr ToExpr() const;

  int64_t number_ = 1;
  std::vector<ir::Expr> symbols_;  // none of which is a product
};

}  // namespace distir::padding
#endif  // DISTIR_PADDING_SIZE_H_
