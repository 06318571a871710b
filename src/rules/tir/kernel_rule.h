/*!
 * \file rules/tir/kernel_rule.h
 * \brief Derives the factor rules of TIR kernels from their index maps.
 *
 * A dimension that is indexed by an iterator takes the iterator's factor, through any number of
 * blocks and intermediate buffers. A spatial iterator is a parallel factor; a reduction iterator is
 * a reduction factor where the partial result reaches the one output unchanged or scaled (a mean is
 * a sum times a constant), else it is replicated. Whatever cannot be proven is replicated.
 *
 * Worked example: C[i, j] = sum over k of A[i, k] * B[k, j] gives the factors of a matrix product;
 * softmax(A)[i, j] gives i parallel, j replicated.
 */
#ifndef DISTIR_RULES_TIR_KERNEL_RULE_H_
#define DISTIR_RULES_TIR_KERNEL_RULE_H_

#include <string>
#include <unordered_map>
#include <vector>

#include "ir/tir_node.h"
#include "rules/factor/factor_rule.h"

namespace distir::rules {

struct KernelRule {
  /*! \brief The kernel, its indices written without quotients and remainders that say nothing, so
   * that it can have other extents. The variables are those of the kernel. */
  ir::PrimFunc function;
  std::vector<Factor> factors;
  /*! \brief Reason per factor why its loops and dimensions cannot be cut together, even if the user
   * states that the kernel may run on shards; empty if they can. */
  std::vector<std::string> uncuttable;
  /*! \brief Factors of every loop and block iterator, by its variable. */
  std::unordered_map<const ffi::Object*, FactorList> iterators;
  std::unordered_map<const ffi::Object*, ir::Expr> extents;  // of the same
  std::vector<ir::Var> iterator_order;                       // the same, as they stand there
  /*! \brief Factors of every buffer, parameters and intermediate ones. */
  std::unordered_map<const ffi::Object*, TensorFactors> buffers;
  /*! \brief Every intermediate buffer. */
  std::vector<ir::Var> intermediates;
  std::vector<bool> is_written;  // by parameter
  /*! \brief Reason why no rule was derived; empty if one was. */
  std::string failure;
};

/*! \brief The rule of a kernel by itself; rules/tir/rule.h gives those of its calls. */
KernelRule DeriveKernelRule(const ir::PrimFunc& function);

/*! \brief A rule as text: "x[0][1] w[1][2] y[0][2]; 0: 8 parallel, 1: 16 sum, 2: ? parallel".
 * Factors are numbered in order of appearance; "-" is one that is replicated, "?" a symbolic size.
 */
std::string Describe(const KernelRule& rule);

}  // namespace distir::rules
#endif  // DISTIR_RULES_TIR_KERNEL_RULE_H_
