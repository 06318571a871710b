/*!
 * \file rules/tir/resized_kernels.h
 * \brief Copies of TIR kernels with other extents.
 *
 * A kernel of which factors get other sizes is copied with the extents of its loops, and the shapes
 * of its buffers, along them; nothing else in it says their size where a factor may be uneven
 * (rules/tir/kernel_rule.h). Example, C[i] = sum over j of A[i, j], rows in 2 shards:
 *
 *     row_sum: A (7, 5), C (7), loops 7, 5
 *  -> row_sum_padded: A (8, 5), C (8), loops 8, 5
 */
#ifndef DISTIR_RULES_TIR_RESIZED_KERNELS_H_
#define DISTIR_RULES_TIR_RESIZED_KERNELS_H_

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ir/module/names.h"
#include "ir/node.h"
#include "rules/tir/kernel_rule.h"

namespace distir::rules {

/*! \brief The new sizes of factors, by their index. */
using FactorExtents = std::map<int, int64_t>;

class ResizedKernels {
 public:
  /*!
   * \param functions Of the module; new kernels get other names.
   * \param suffix Of these names, and for messages what is done: "padded".
   */
  ResizedKernels(const ir::FunctionMap& functions, std::string suffix);

  /*! \brief Replacement of a kernel: itself if no extent changes. Copies are shared by calls that
   * resize it alike. */
  ir::GlobalVar Resized(const ir::GlobalVar& name, const KernelRule& kernel,
                        const FactorExtents& extents);
  /*! \brief The copies made so far. */
  const std::vector<std::pair<ir::GlobalVar, ir::PrimFunc>>& made() const { return made_; }

 private:
  ir::FunctionNames names_;
  const std::string suffix_;
  std::map<std::pair<const ffi::Object*, FactorExtents>, ir::GlobalVar> known_;
  std::vector<std::pair<ir::GlobalVar, ir::PrimFunc>> made_;
};

}  // namespace distir::rules
#endif  // DISTIR_RULES_TIR_RESIZED_KERNELS_H_
