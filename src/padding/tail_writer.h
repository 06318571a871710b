/*!
 * \file padding/tail_writer.h
 * \brief Rewriter that fills the tails of padded tensors and changes extents.
 *
 * Worked example: x is R.DTensor((8, 4), "S[0]") of 7 true rows on 2 devices. Filled with zeros it
 * is
 *
 *     positions = R.arange(0, 8, 1)                               # every device alike
 *     positions_1 = R.dist.redistribute(positions, mesh, "S[0]")  # the worker's part
 *     inside = R.less(positions_1, 7)
 *     inside_1 = R.expand_dims(inside, axis=[1])
 *     x_1 = R.where(inside_1, x, 0)
 *
 * If the true number is symbolic, positions run from -n on, and are compared with 0. Masks are
 * shared by what is written in one scope.
 */
#ifndef DISTIR_PADDING_TAIL_WRITER_H_
#define DISTIR_PADDING_TAIL_WRITER_H_

#include <functional>
#include <map>
#include <vector>

#include "ir/rewriter.h"
#include "padding/extents.h"
#include "rules/factor/factor_rule.h"
#include "rules/tails.h"

namespace distir::padding {

namespace ffi = tvm::ffi;

class TailWriter : public ir::FunctionRewriter {
 protected:
  /*!
   * \brief The value with other elements behind the true extents.
   * \param value Padded.
   * \param type Its type before it was padded.
   * \param dims Dimensions of which the tail is filled.
   */
  ir::Expr Filled(const ir::Expr& value, const ir::DTensorType& type, const std::vector<int>& dims,
                  rules::Tail tail);
  /*! \brief The value cut, or padded with zeros, to `extents` along dimensions that are not
   * sharded. `before` are its extents before it was padded. */
  ir::Expr Resized(const ir::Expr& value, const Extents& before, const Extents& extents);
  /*! \brief A number in the element type of `like`, on its mesh. */
  ir::Expr Number(const ir::Expr& number, const ir::DTensorType& like);
  /*! \brief Maps the tensors of a value; `map` gets each with its type in `type`, null for a plain
   * Tensor. */
  ir::Expr MapTensors(const ir::Expr& value, const ir::Type& type,
                      const std::function<ir::Expr(const ir::Expr&, const ir::DTensorType&)>& map);
  /*! \brief A variable that stands for the expression. */
  ir::Expr AsVar(const ir::Expr& value);

 private:
  using MaskKey = std::vector<int64_t>;
  struct KnownMask {
    ir::Expr size, extent;
    ir::Expr mask;
  };

  void EnterScope() override { scopes_.push_back(mask_log_.size()); }
  void LeaveScope() override;

  /*! \brief True if a position along a dimension is before the true extent, to be broadcast. */
  ir::Expr Mask(const ir::DTensorType& padded, int dim, const ir::Expr& extent);

  /*! \brief A scalar, as it is written, in the element type of `like`. */
  ir::Expr Converted(const ffi::Any& written, const ir::DTensorType& like);

  /*! \brief A symbolic number as an array of one element, in the element type of `like`. */
  ir::Expr SymbolicNumber(const ir::Expr& number, const ir::DTensorType& like);
  /*! \brief Zeros of a type. */
  ir::Expr Zeros(const ir::DTensorType& type);

  std::map<MaskKey, std::vector<KnownMask>> masks_;
  std::vector<MaskKey> mask_log_;  // keys of masks_ in the order of entry
  std::vector<size_t> scopes_;     // length of the log where each scope begins
};

}  // namespace distir::padding
#endif  // DISTIR_PADDING_TAIL_WRITER_H_
