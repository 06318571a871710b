/*!
 * \file lower/spmd/combined_collective.h
 * \brief Lowers one collective of several local tensors: concatenates them, communicates once, and
 * splits the result.
 *
 * Worked example, an all-reduce of a: (2, 3) and b: (4,):
 *
 *     concat((reshape(a, (6,)), reshape(b, (4,)))) -> all_reduce -> split at 6 -> reshape
 *
 * An all-gather over n devices gathers the row (1, 10) to (n, 10), whose columns are cut apart;
 * each part (n, 6) gets its n in front of the gathered dimension. A reduce-scatter is the reverse.
 */
#ifndef DISTIR_LOWER_SPMD_COMBINED_COLLECTIVE_H_
#define DISTIR_LOWER_SPMD_COMBINED_COLLECTIVE_H_

#include <functional>
#include <utility>
#include <vector>

#include "ir/node.h"
#include "mesh/collective.h"

namespace distir::lower {

namespace ffi = tvm::ffi;

/*! \brief One tensor of a combined collective on a worker. */
struct CombinedPart {
  ir::Expr value;
  ir::TensorType target;
  int dim = -1;  // that is gathered or scattered
};

/*!
 * \brief Emits the collective; gives the results in order.
 * \param emit Binds a value to a new variable.
 * \param attrs Groups and reduction of the local collective.
 */
ffi::Array<ir::Expr> EmitCombined(mesh::CollectiveKind kind, const std::vector<CombinedPart>& parts,
                                  int64_t group_size,
                                  std::vector<std::pair<const char*, ffi::Any>> attrs,
                                  const std::function<ir::Expr(const ir::Expr&)>& emit);

}  // namespace distir::lower
#endif  // DISTIR_LOWER_SPMD_COMBINED_COLLECTIVE_H_
