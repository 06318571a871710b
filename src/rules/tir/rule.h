/*!
 * \file rules/tir/rule.h
 * \brief Factor rules of TIR kernels, derived from their index maps.
 *
 * A dimension that is indexed by an iterator takes the iterator's factor, through any number of
 * blocks and intermediate buffers. A spatial iterator is a parallel factor; a reduction iterator is
 * a reduction factor where the partial result reaches the one output unchanged or scaled (a mean is
 * a sum times a constant), else it is replicated. Whatever cannot be proven is replicated.
 *
 * Worked example: C[i, j] = sum over k of A[i, k] * B[k, j] gives the factors of a matrix product;
 * softmax(A)[i, j] gives i parallel, j replicated.
 */
#ifndef DISTIR_RULES_TIR_RULE_H_
#define DISTIR_RULES_TIR_RULE_H_

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "ir/tir_node.h"
#include "rules/factor/factor_rule.h"

namespace distir {
namespace rules {

struct KernelRule {
  ir::PrimFunc function;
  std::vector<Factor> factors;
  /*! \brief Of each factor, why its loops and dimensions cannot be cut together even where the user
   * states that the kernel may run on shards; empty where they can. */
  std::vector<std::string> uncuttable;
  /*! \brief Of every loop and block iterator, by its variable: the factors it runs over. */
  std::unordered_map<const ffi::Object*, FactorList> iterators;
  std::unordered_map<const ffi::Object*, ir::Expr> extents;  // of the same
  std::vector<ir::Var> iterator_order;                       // the same, as they stand there
  /*! \brief Of every buffer, parameters and intermediate ones. */
  std::unordered_map<const ffi::Object*, TensorFactors> buffers;
  /*! \brief Every intermediate buffer. */
  std::vector<ir::Var> intermediates;
  std::vector<bool> is_written;  // by parameter
  /*! \brief Why nothing can be said about the kernel; empty when a rule was derived. */
  std::string failure;
};

/*! \brief The rule of a kernel; its parameters follow call_tir's order only once a call is known.
 */
KernelRule DeriveKernelRule(const ir::PrimFunc& function);

/*! \brief A rule as text: "x[0][1] w[1][2] y[0][2]; 0: 8 parallel, 1: 16 sum, 2: ? parallel".
 * Factors are numbered in order of appearance; "-" is one that is replicated, "?" a symbolic size.
 */
std::string Describe(const KernelRule& rule);

/*! \brief The kernels of a module: the rule of each is derived once, on first use. */
class KernelTable {
 public:
  explicit KernelTable(ir::FunctionMap functions) : functions_(std::move(functions)) {}
  /*! \brief Whether a call is R.call_tir, in place or with a gradient or neither. */
  static bool IsKernelCall(const ir::Expr& op);
  /*! \brief The kernel of such a call or of a local view; null for other calls, and for what is no
   * PrimFunc of the module. */
  const KernelRule* Find(const ir::Call& call);

 private:
  ir::FunctionMap functions_;
  std::unordered_map<const ffi::Object*, std::unique_ptr<KernelRule>> rules_;
};

/*!
 * \brief Which parameter is each result of a kernel call, counted among its tensors: one of the
 * operands where it is computed in place, else the next one behind them.
 */
std::vector<size_t> ParamsOfResults(const ir::Call& call, size_t num_operands, size_t num_results);

/*! \brief The rule of a kernel call; ReplicateAll, with a warning that names the kernel, where none
 * can be derived or the call does not fit the kernel. */
FactorRule RuleOfKernelCall(const OpView& view);
/*!
 * \brief The rule of a local view, of the sizes of whole tensors: that of its kernel, each factor
 * as many times as large as its dimension is. Nothing is spread unevenly by it. ReplicateAll where
 * nothing can be said.
 */
FactorRule RuleOfLocalView(const OpView& view);

}  // namespace rules
}  // namespace distir
#endif  // DISTIR_RULES_TIR_RULE_H_
