/*!
 * \file optimize/experts/product.h
 * \brief Products of rows by the matrices of the experts that they have chosen:
 *
 *     w = R.take(experts, ids, axis=0)
 *     y = R.matmul(x, w)
 */
#ifndef DISTIR_OPTIMIZE_EXPERTS_PRODUCT_H_
#define DISTIR_OPTIMIZE_EXPERTS_PRODUCT_H_

#include <optional>
#include <vector>

#include "optimize/experts/lookup.h"

namespace distir::optimize {

/*! \brief The experts that rows have chosen, and where they are. */
struct Choice {
  ir::Expr ids;
  std::vector<int> axes;  // of the mesh, along which the experts lie
  int64_t num_experts = 0;
  /*! \brief True if all devices along these axes have the same rows; else they are sharded. */
  bool has_copies = false;
};

/*! \brief One row per choice by the matrix of its expert. */
struct Product {
  Choice choice;
  ir::Expr experts;  // (E, D, F), sharded along E; of matrices (F, D), transposed
  bool transposed = false;
  ir::Expr x;
  ir::Expr matrices;      // the operand that was looked up
  int row_dim;            // of x (N, 1, D), or (N, D, 1) behind the matrices: the 1
  double sent_bytes = 0;  // for the matrices
};

/*! \brief The product that a call of R.matmul is, of which the experts are sharded; nullopt else.
 */
std::optional<Product> ReadProduct(const ir::Call& call, const EditableFunction& editable,
                                   dialect::MeshTable* meshes);
/*! \brief Reason why a product cannot be computed where the experts are, by sizes, types and
 * placements; null if it can. Notes if all devices have the same rows. */
const char* WhyNotThere(const ir::Call& call, Product* product);

}  // namespace distir::optimize
#endif  // DISTIR_OPTIMIZE_EXPERTS_PRODUCT_H_
