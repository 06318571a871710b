/*!
 * \file lower/local/local_kernel.h
 * \brief TIR kernels on the shards of one worker.
 *
 * A kernel called on DTensors is copied with the extents of its loops, and the shapes of its
 * buffers, divided by the number of shards of their factors. Copies are shared by calls of one
 * kernel that divide it alike. Example, A and C sharded along rows over 4 devices:
 *
 *     matmul: A (8, 16), B (16, 32), C (8, 32), loops 8, 32, 16
 *  -> matmul_local: A (2, 16), B (16, 32), C (2, 32), loops 2, 32, 16
 *
 * A symbolic size n, known to the kernel only as a dimension, becomes n * k where that dimension is
 * in k shards, so that whatever else the kernel computes from it keeps its meaning.
 */
#ifndef DISTIR_LOWER_LOCAL_LOCAL_KERNEL_H_
#define DISTIR_LOWER_LOCAL_LOCAL_KERNEL_H_

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "dialect/mesh_table.h"
#include "ir/node.h"
#include "rules/call/decision.h"
#include "rules/tir/rule.h"

namespace distir::lower {

namespace ffi = tvm::ffi;

class LocalKernels {
 public:
  /*! \brief Adds a function to the module under a fresh name made from the given one. */
  using AddFunction = std::function<ir::GlobalVar(const std::string&, const ir::BaseFunc&)>;

  LocalKernels(const ir::FunctionMap& functions, dialect::MeshTable* meshes, AddFunction add)
      : table_(functions), meshes_(*meshes), decisions_(meshes, &table_), add_(std::move(add)) {}

  /*!
   * \brief Callee of a worker for an R.call_tir on DTensors: the kernel itself if nothing is
   * sharded.
   * \throws ValueError naming the kernel and the tensor that is sharded in a way that its index
   * maps do not allow.
   */
  ir::Expr Localize(const ir::Call& call);

 private:
  /*! \throws ValueError where the call's types state what its index maps do not allow. */
  void CheckTypes(const ir::Call& call, const rules::Decision& decision);

  rules::KernelTable table_;
  dialect::MeshTable& meshes_;
  rules::Decisions decisions_;
  AddFunction add_;
  /*! \brief Copies by kernel and number of shards of each factor. */
  std::map<std::pair<const ffi::Object*, std::vector<int64_t>>, ir::GlobalVar> made_;
};

/*!
 * \brief The copy of a kernel whose factor f is in shards[f] parts.
 * \param what The kernel and its rule, for messages.
 * \throws ValueError when a symbolic size is in different numbers of shards that do not divide each
 * other, or the copy is not proven to stay within its buffers.
 */
ir::PrimFunc MakeLocalKernel(const std::string& what, const rules::KernelRule& kernel,
                             const std::vector<int64_t>& shards);

}  // namespace distir::lower
#endif  // DISTIR_LOWER_LOCAL_LOCAL_KERNEL_H_
