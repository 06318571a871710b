/*!
 * \file padding/callee_sizes.h
 * \brief What a call makes the symbolic sizes of the function that it calls.
 */
#ifndef DISTIR_PADDING_CALLEE_SIZES_H_
#define DISTIR_PADDING_CALLEE_SIZES_H_

#include <unordered_map>

#include "ir/node.h"

namespace distir {
namespace padding {

class CalleeSizes {
 public:
  /*! \param call Of the function, both as before they are padded. */
  CalleeSizes(const ir::Function& callee, const ir::Call& call);

  /*! \brief An extent in the sizes of the function, in those of its caller. */
  ir::Expr InCaller(const ir::Expr& extent) const;
  /*! \brief The same of a variable; null where no argument says it. */
  ir::Expr Find(const ir::Expr& size) const;

 private:
  std::unordered_map<const tvm::ffi::Object*, ir::Expr> sizes_;
};

}  // namespace padding
}  // namespace distir
#endif  // DISTIR_PADDING_CALLEE_SIZES_H_
