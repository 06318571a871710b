/*!
 * \file ir/symbolic.h
 * \brief Integer arithmetic on tensor dimensions, which are constants or expressions of symbolic
 * variables.
 */
#ifndef DISTIR_IR_SYMBOLIC_H_
#define DISTIR_IR_SYMBOLIC_H_

#include <functional>
#include <vector>

#include "ir/node.h"

namespace distir::ir {

/*! \brief The value of a constant dimension, or -1 for a symbolic one. */
int64_t StaticDim(const Expr& dim);
/*! \brief The dimensions of a tensor type; empty when the shape is unknown and ndim is not 0 (see
 * HasKnownShape). */
const NodeArray<Expr>& ShapeOf(const TensorType& type);
bool HasKnownShape(const TensorType& type);
/*! \brief Bytes of an element; those of a float32 if the dtype is unknown. */
double BytesPerElement(const TensorType& type);
/*! \brief The type with the dimensions written out where its shape is a variable whose type has
 * them, so that it can stand where the variable is not defined. */
TensorType WithKnownShape(const TensorType& type);

Expr Multiply(const Expr& dim, int64_t factor);
Expr FloorDivide(const Expr& dim, int64_t divisor);
/*! \brief True if a dimension provably leaves a remainder, whatever its variables are. */
bool NeverDivides(const Expr& dim, int64_t divisor);
Expr Simplify(const Expr& dim);
/*! \brief True if two dimensions are provably equal. */
bool SameDim(const Expr& a, const Expr& b);
/*! \brief The product of dimensions. */
Expr Product(const std::vector<Expr>& dims);

/*! \brief Proves where indices lie, from the ranges of their variables. */
class IndexProofs {
 public:
  IndexProofs();
  /*! \brief States that a variable is a size that is not 0. */
  void BindSize(const Var& var);
  /*! \brief States that a variable runs from `min` over `extent` values. */
  void Bind(const Var& var, const Expr& min, const Expr& extent);
  /*! \brief True if 0 <= index < size is proven. */
  bool IsWithin(const Expr& index, const Expr& size);

 private:
  bool Holds(const Expr& claim);
  bool IsBelow(const Expr& index, const Expr& size);

  ffi::Any analyzer_;
};

/*! \brief Replaces symbolic variables; `replace` returns null to keep one. The result is
 * simplified. */
Expr SubstituteVars(const Expr& dim, const std::function<Expr(const Var&)>& replace);
/*! \brief Calls `visit` for every symbolic variable in the expression. */
void VisitVars(const Expr& dim, const std::function<void(const Var&)>& visit);
/*! \brief The type with `map` applied to every dimension in it: of tensors, shapes and tuples of
 * them. The same object where nothing changes. */
Type MapDims(const Type& type, const std::function<Expr(const Expr&)>& map);

}  // namespace distir::ir
#endif  // DISTIR_IR_SYMBOLIC_H_
