/*!
 * \file rules/tir/partial_buffers.h
 * \brief Finds buffers of a kernel that would hold partial results if its reductions were sharded.
 *
 * A reduction over a sharded class leaves its buffer partial over that class. A value computed from
 * a partial buffer is partial in turn, if the computation commutes with the reduction; otherwise
 * the class is pinned, since every device then needs the finished result.
 *
 * Worked example, the mean of rows: S[i] += A[i, k]; M[i] = S[i] * 0.25. S is partial over k as a
 * sum, and so is M, since a product with a number commutes with sums. With M[i] = sqrt(S[i]), k is
 * pinned.
 */
#ifndef DISTIR_RULES_TIR_PARTIAL_BUFFERS_H_
#define DISTIR_RULES_TIR_PARTIAL_BUFFERS_H_

#include <map>

#include "rules/tir/kernel.h"

namespace distir::rules {

/*! \brief A type of this library, so that the map's code is not exported from it. */
struct ByClass {
  bool operator()(int a, int b) const { return a < b; }
};
/*! \brief Over which classes, and how, a buffer still has to be reduced. */
using PartialClasses = std::map<int, mesh::Reduction, ByClass>;

class PartialBuffers {
 public:
  /*! \param digits Of the kernel, solved; gets pins. */
  PartialBuffers(const Kernel& kernel, DigitTable* digits) : kernel_(kernel), digits_(*digits) {}

  /*! \brief Follows partial results from statement to statement, until nothing changes. */
  void Spread();
  /*! \brief Partial classes of a buffer, with those that were pinned later. */
  const PartialClasses& Of(const ffi::Object* buffer) const;

 private:
  /*! \brief Notes that a buffer is partial; pins the class if it is so in two ways. Returns whether
   * anything changed. */
  bool Enter(const ffi::Object* buffer, int index, mesh::Reduction kind);
  bool PassOn(const Statement& statement);
  bool IsPassedOn(const Statement& statement, int index, mesh::Reduction kind) const;
  bool IsPartial(const ir::Expr& expr, int index) const;
  /*! \brief True if reducing the expression's value is the same as the expression of the reduced
   * values. */
  bool Commutes(const ir::Expr& expr, int index, mesh::Reduction kind) const;

  const Kernel& kernel_;
  DigitTable& digits_;
  std::map<const ffi::Object*, PartialClasses> partial_;
};

}  // namespace distir::rules
#endif  // DISTIR_RULES_TIR_PARTIAL_BUFFERS_H_
