/*!
 * \file padding/padded_kernel.h
 * \brief TIR kernels of padded extents.
 *
 * A kernel of which factors are padded is copied with the extents of its loops, and the shapes of
 * its buffers, along them; nothing else in it says their size (rules/tir/kernel_rule.h). Example,
 * C[i] = sum over j of A[i, j], rows in 2 shards:
 *
 *     row_sum: A (7, 5), C (7), loops 7, 5
 *  -> row_sum_padded: A (8, 5), C (8), loops 8, 5
 */
#ifndef DISTIR_PADDING_PADDED_KERNEL_H_
#define DISTIR_PADDING_PADDED_KERNEL_H_

#include <map>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ir/module/names.h"
#include "ir/node.h"
#include "rules/tir/kernel_rule.h"

namespace distir {
namespace padding {

namespace ffi = tvm::ffi;

/*! \brief The padded extents of factors, by their index. */
using FactorExtents = std::map<int, int64_t>;

class PaddedKernels {
 public:
  /*! \param functions Of the module; new kernels get other names. */
  explicit PaddedKernels(const ir::FunctionMap& functions);

  /*! \brief What is called in place of a kernel: itself where no extent changes. Copies are shared
   * by calls that pad it alike. */
  ir::GlobalVar Padded(const ir::GlobalVar& name, const rules::KernelRule& kernel,
                       const FactorExtents& extents);
  /*! \brief The copies made so far. */
  const std::vector<std::pair<ir::GlobalVar, ir::PrimFunc>>& made() const { return made_; }

 private:
  ir::FunctionNames names_;
  std::map<std::pair<const ffi::Object*, FactorExtents>, ir::GlobalVar> known_;
  std::vector<std::pair<ir::GlobalVar, ir::PrimFunc>> made_;
};

}  // namespace padding
}  // namespace distir
#endif  // DISTIR_PADDING_PADDED_KERNEL_H_
