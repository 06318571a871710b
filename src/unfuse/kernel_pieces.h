/*!
 * \file unfuse/kernel_pieces.h
 * \brief Splits a kernel into R.concat, R.split, operators such as softmax, and smaller kernels.
 *
 *     fused(a, b, out):                               t = R.call_tir(fused_1, (a,))
 *       t[i, j] = a[j, i]                      ->     out = R.concat((t, b), axis=1)
 *       out[i, j] = t[i, j] if j < 4 else b[i, j - 4]
 *
 * LegalizeOps writes operators as such kernels, and FuseTIR puts others around them. More is known
 * of operators than of a kernel: how they move elements between shards, which products were
 * combined, what of a softmax can be reduced shard by shard (unfuse/operator_kernels.h). A kernel
 * needs the dimension along which it works replicated. TVM's FuseOps makes the pieces one kernel
 * again when the program is compiled.
 */
#ifndef DISTIR_UNFUSE_KERNEL_PIECES_H_
#define DISTIR_UNFUSE_KERNEL_PIECES_H_

#include <optional>
#include <string>
#include <vector>

#include "ir/tir_node.h"
#include "unfuse/operator_kernels.h"

namespace distir::unfuse {

namespace ffi = tvm::ffi;

/*! \brief Operator or kernel of one piece. */
struct Piece {
  enum class Kind { kKernel, kConcat, kSplit, kOperator };
  Kind kind;
  /*! \brief Buffers of the whole kernel: what it takes, and what it gives. */
  std::vector<ir::Var> takes, gives;
  int axis = 0;                      // of R.concat and R.split
  std::vector<int64_t> points = {};  // of R.split: where it cuts
  ir::PrimFunc kernel = {};          // of kKernel
  MakeOperator make = {};            // of kOperator
};

/*!
 * \brief The pieces of a kernel, in an order in which they can run; nullopt for a kernel that
 * has none of these operators, or that cannot be cut around them.
 *
 * The parameters of the kernel are operands and behind them results, each of which some piece
 * gives. Shapes of what pieces give are of constants and sizes of parameters.
 */
std::optional<std::vector<Piece>> PiecesOf(const std::string& name, const ir::PrimFunc& kernel);

}  // namespace distir::unfuse
#endif  // DISTIR_UNFUSE_KERNEL_PIECES_H_
