/*!
 * \file target/products/products.h
 * \brief Finds the bindings of a function that a library of matrix products computes.
 *
 * Permutations of dimensions in front of a contraction, and one behind it, become part of its
 * subscripts, and so do dimensions along which an operand is repeated: it is read where it lies, by
 * all. So do, for a library that has them, additions and activations behind it.
 */
#ifndef DISTIR_TARGET_PRODUCTS_PRODUCTS_H_
#define DISTIR_TARGET_PRODUCTS_PRODUCTS_H_

#include <functional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "target/products/contraction.h"

namespace distir::target {

namespace ffi = tvm::ffi;

/*! \brief A library, as far as programs are concerned. */
struct ProductLibrary {
  /*! \brief The function of the runtime that calls it. */
  std::string builtin;
  /*! \brief Reason for which the library does not compute a contraction; null if it does. */
  std::function<const char*(const Contraction&, const ir::TensorType& result)> refuses;
  /*! \brief True if sums and activations behind a product can be part of its call. */
  bool has_epilogues;
};

/*! \brief Contractions by the variable that gets their result. */
class Products {
 public:
  Products(const ir::Function& function, const ProductLibrary& library);

  bool empty() const { return contractions_.empty(); }
  const Contraction* Find(const ir::Var& var) const;
  /*! \brief True for a variable that nothing uses any more. */
  bool IsDropped(const ir::Var& var) const { return dropped_.count(var.get()) > 0; }

 private:
  /*! \brief A tensor whose elements are those of another one in another order, or several times. */
  struct View {
    ir::Expr source;
    /*! \brief Per dimension that of the source, or kNone for one that the source lacks. */
    std::vector<int> axes;
    ir::Expr operand;  // of the call; the source, or a view of it
    const ffi::Object* block;
  };
  static constexpr int kNone = -1;

  void Visit(const ir::SeqExpr& seq);
  void VisitCall(const ir::BindingBlock& block, const ir::Var& var, const ir::Call& call);
  void VisitPermutation(const ir::BindingBlock& block, const ir::Var& var, const ir::Call& call);
  void VisitExpansion(const ir::BindingBlock& block, const ir::Var& var, const ir::Call& call);
  void AddView(const ir::BindingBlock& block, const ir::Var& var, const ir::Expr& operand,
               std::vector<int> axes);
  /*! \brief Reads an operand where the source of its view lies; false if that cannot be. */
  bool Fold(const ir::BindingBlock& block, int operand, Contraction* contraction) const;
  void DropUnused();
  bool VisitEpilogue(const ir::BindingBlock& block, const ir::Var& var, const ir::Call& call);
  bool AddTerm(const ir::Expr& term, const ir::TensorType& type, Contraction* contraction) const;
  const View* FindView(const ir::BindingBlock& block, const ir::Expr& operand) const;
  /*! \brief The contraction whose only use is in this block; null for other expressions. */
  Contraction* FindMovable(const ir::BindingBlock& block, const ir::Expr& value);
  void Move(const ir::Expr& from, const ir::Var& to, const ir::BindingBlock& block,
            const Contraction& moved);

  const ProductLibrary library_;
  std::unordered_map<const ffi::Object*, int> uses_;
  std::unordered_map<const ffi::Object*, int> folded_uses_;
  std::unordered_map<const ffi::Object*, View> views_;
  std::unordered_map<const ffi::Object*, Contraction> contractions_;
  std::unordered_map<const ffi::Object*, const ffi::Object*> block_of_;
  std::unordered_set<const ffi::Object*> dropped_;
};

}  // namespace distir::target
#endif  // DISTIR_TARGET_PRODUCTS_PRODUCTS_H_
