/*!
 * \file padding/callee_sizes.h
 * \brief Finds the values that a callee's symbolic sizes have at a call.
 */
#ifndef DISTIR_PADDING_CALLEE_SIZES_H_
#define DISTIR_PADDING_CALLEE_SIZES_H_

#include <unordered_map>

#include "ir/node.h"

namespace distir::padding {

class CalleeSizes {
 public:
  /*! \param call Of the function, both as before they are padded. */
  CalleeSizes(const ir::Function& callee, const ir::Call& call);

  /*! \brief An extent in the sizes of the function, in those of its caller. */
  ir::Expr InCaller(const ir::Expr& extent) const;
  /*! \brief Value of a variable; null if no argument states it. */
  ir::Expr Find(const ir::Expr& size) const;

 private:
  std::unordered_map<const tvm::ffi::Object*, ir::Expr> sizes_;
};

}  // namespace distir::padding
#endif  // DISTIR_PADDING_CALLEE_SIZES_H_
