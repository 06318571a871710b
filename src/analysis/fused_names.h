/*!
 * \file analysis/fused_names.h
 * \brief Tracks the names of variables through TVM's FuseOps, which renumbers the results of fused
 * groups: its lv3 may be another tensor than lv3 was.
 *
 *     h = call_tir(matmul, (x, w))
 *     y = call_tir(relu, (h,))            lv = fused_matmul_relu(x, w)
 *     z = call_tir(softmax, (y,))   ->    z = call_tir(softmax, (lv,))
 *
 * The bodies of the groups say that lv is relu(matmul(x, w)), which was y.
 */
#ifndef DISTIR_ANALYSIS_FUSED_NAMES_H_
#define DISTIR_ANALYSIS_FUSED_NAMES_H_

#include "ir/node.h"

namespace distir::analysis {

/*!
 * \brief The fused module, with the names of the variables that it was fused from.
 * \param before In front of FuseOps. \param fused Behind it.
 */
ir::IRModule WithNamesOf(const ir::IRModule& before, const ir::IRModule& fused);

}  // namespace distir::analysis
#endif  // DISTIR_ANALYSIS_FUSED_NAMES_H_
