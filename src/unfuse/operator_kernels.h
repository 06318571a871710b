/*!
 * \file unfuse/operator_kernels.h
 * \brief Recognises statements of a kernel that LegalizeOps makes of softmax, norms, lookups, and
 * the like.
 *
 *     fused_softmax_multiply(x, out):
 *       most[i] = max over k of x[i, k]
 *       e[i, j] = exp(x[i, j] - most[i])     t = R.nn.softmax(x)
 *       all[i] = sum over k of e[i, k]    -> out = R.call_tir(fused_softmax_multiply_1, (t,))
 *       t[i, j] = e[i, j] / all[i]
 *       out[i, j] = t[i, j] * t[i, j]
 *
 * Such an operator can be computed on shards of the dimension along which it works, with a
 * reduction of one number per row; a lookup, on shards of the rows of its table. A kernel needs
 * that dimension replicated.
 *
 * The first statements of the kernel suggest an operator. To be sure of it, TVM makes the kernel of
 * that operator anew, and the two must be equal but for names. A kernel that differs stays a
 * kernel.
 */
#ifndef DISTIR_UNFUSE_OPERATOR_KERNELS_H_
#define DISTIR_UNFUSE_OPERATOR_KERNELS_H_

#include <optional>
#include <vector>

#include "unfuse/candidate.h"

namespace distir::unfuse {

struct KernelOperator {
  size_t num_statements;
  std::vector<ir::Var> takes;  // buffers of the kernel, by operand
  ir::Var gives;
  MakeOperator make;
};

/*! \brief The operator that the statements of a kernel compute from `begin` on; nullopt where it is
 * none that is known here. */
std::optional<KernelOperator> OperatorAt(const ir::PrimFunc& kernel,
                                         const std::vector<ir::Stmt>& statements, size_t begin);

}  // namespace distir::unfuse
#endif  // DISTIR_UNFUSE_OPERATOR_KERNELS_H_
