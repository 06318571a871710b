/*!
 * \file unfuse/new_kernels.h
 * \brief Adds kernels that a pass makes to a module, one for equal kernels.
 */
#ifndef DISTIR_UNFUSE_NEW_KERNELS_H_
#define DISTIR_UNFUSE_NEW_KERNELS_H_

#include <string>
#include <utility>
#include <vector>

#include "ir/module/names.h"
#include "ir/tir_node.h"
#include "unfuse/statements.h"

namespace distir::unfuse {

class NewKernels {
 public:
  explicit NewKernels(const ir::IRModule& mod);

  /*! \brief The kernel of this name; null where it is none. */
  ir::PrimFunc Find(const ir::GlobalVar& name) const;
  /*! \brief A further kernel, under a name made from the given one. */
  ir::GlobalVar Add(const std::string& name, const ir::PrimFunc& kernel);
  /*! \brief The module with the further kernels. */
  ir::IRModule AddedTo(const ir::IRModule& mod) const;

 private:
  const ir::FunctionMap functions_;
  ir::FunctionNames names_;
  std::vector<std::pair<ir::GlobalVar, ir::PrimFunc>> made_;
};

/*! \brief The module with kernels. */
ir::IRModule WithKernels(const ir::IRModule& mod,
                         const std::vector<std::pair<ir::GlobalVar, ir::PrimFunc>>& kernels);

/*! \brief The kernel that a plain R.call_tir calls with these operands, one per parameter that is
 * no result, all of known shapes; null for any other call. */
ir::PrimFunc KernelOf(const ir::Call& call, const NewKernels& kernels);

/*! \brief Sizes of a kernel's buffer, as a call that is bound to a variable has them. */
ffi::Array<ir::Expr> ShapeIn(const ir::Call& call, const ir::Var& var,
                             const std::vector<SizeOf>& sizes);

/*! \brief A call of another kernel in place of one. */
ir::Call MakeKernelCall(const ir::Call& like, const ir::GlobalVar& kernel,
                        const ir::NodeArray<ir::Expr>& operands, const ir::Type& type);

}  // namespace distir::unfuse
#endif  // DISTIR_UNFUSE_NEW_KERNELS_H_
