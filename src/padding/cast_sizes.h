/*!
 * \file padding/cast_sizes.h
 * \brief Maps symbolic sizes that R.match_cast of known shapes defines to sizes of parameters: of x
 * (n, 8) cast to (m, 8), m is n.
 */
#ifndef DISTIR_PADDING_CAST_SIZES_H_
#define DISTIR_PADDING_CAST_SIZES_H_

#include <unordered_map>
#include <unordered_set>

#include "ir/node.h"

namespace distir::padding {

class CastSizes {
 public:
  CastSizes() = default;
  explicit CastSizes(const ir::Function& function);

  /*! \brief An extent in the sizes of parameters, as far as they say it. */
  ir::Expr InParams(const ir::Expr& extent) const;
  /*! \brief True if they do. */
  bool IsKnown(const ir::Expr& extent) const;

 private:
  void Read(const ir::MatchCast& cast);

  std::unordered_set<const tvm::ffi::Object*> of_params_;
  std::unordered_map<const tvm::ffi::Object*, ir::Expr> sizes_;  // by variable, of others
};

}  // namespace distir::padding
#endif  // DISTIR_PADDING_CAST_SIZES_H_
