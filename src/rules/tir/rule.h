/*!
 * \file rules/tir/rule.h
 * \brief Factor rules of calls of TIR kernels: R.call_tir and local views.
 *
 * The rule of a kernel (rules/tir/kernel_rule.h) knows its parameters; a call says which of them
 * are operands and which are results. A rule that a user states for the kernel comes before the
 * derived one.
 *
 * Worked example: R.call_tir_inplace(add, (x, y), inplace_indices=[0], ..) of a kernel with the
 * parameters x and y, of which it writes x: ParamsOfResults is [0], and the dimensions of the
 * result have the factors of x.
 */
#ifndef DISTIR_RULES_TIR_RULE_H_
#define DISTIR_RULES_TIR_RULE_H_

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "ir/node.h"
#include "rules/factor/factor_rule.h"
#include "rules/tir/kernel_rule.h"

namespace distir::rules {

/*! \brief The kernels of a module: the rule of each is derived once, on first use. */
class KernelTable {
 public:
  explicit KernelTable(ir::FunctionMap functions) : functions_(std::move(functions)) {}
  /*! \brief True if a call is R.call_tir, in place or with a gradient or neither. */
  static bool IsKernelCall(const ir::Expr& op);
  /*! \brief The kernel of such a call or of a local view; null for other calls, and for what is no
   * PrimFunc of the module. */
  const KernelRule* Find(const ir::Call& call);

 private:
  ir::FunctionMap functions_;
  std::unordered_map<const ffi::Object*, std::unique_ptr<KernelRule>> rules_;
};

/*! \brief Name of a call's kernel in messages. */
std::string KernelName(const ir::Call& call);

/*!
 * \brief Parameter index of each result of a kernel call, counted among its tensors: one of the
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

}  // namespace distir::rules
#endif  // DISTIR_RULES_TIR_RULE_H_
