/*!
 * \file optimize/program/slot_mask.h
 * \brief Recognises masks that assign tokens to few of many slots.
 */
#ifndef DISTIR_OPTIMIZE_PROGRAM_SLOT_MASK_H_
#define DISTIR_OPTIMIZE_PROGRAM_SLOT_MASK_H_

#include <map>
#include <set>
#include <string>
#include <vector>

#include "optimize/program/editable_function.h"

namespace distir::optimize {

/*! \brief True if a call is of one of these operators. */
bool IsOneOf(const ir::Call& call, const std::set<std::string>& names);

/*!
 * \brief Tells from the operators that compute a value how many elements of a token are not zero.
 *
 * A one-hot, a comparison of a column with a row (ids and `arange`) and a scatter into zeros have
 * one per token; products have those of one factor, sums those of all terms. This is what such
 * operators are used for, not a proof: no result may depend on it, only the way in which values are
 * sent.
 *
 *     a = R.one_hot(ids, .., depth=64)                 # (512, 64): 1
 *     b = R.one_hot(place, .., depth=16)               # (512, 16): 1
 *     m = R.expand_dims(a, 2) * R.expand_dims(b, 1)    # (512, 64, 16): 1
 */
class SlotMasks {
 public:
  explicit SlotMasks(const EditableFunction& editable) : editable_(editable) {}

  /*! \brief True if there is any call that a mask comes from in the end; most functions have none.
   */
  static bool MayBeIn(const std::vector<EditableBinding*>& bindings);
  /*! \brief Elements per token that are not zero; 0: not known to be a mask. */
  int64_t Choices(const ir::Expr& value);
  /*! \brief True if a value is made of zeros only, whatever its shape. */
  bool IsZero(const ir::Expr& value) const;

 private:
  int64_t Find(const ir::Call& call);
  int64_t OfReduction(const ir::Call& call);

  const EditableFunction& editable_;
  std::map<const ffi::Object*, int64_t> known_;
};

}  // namespace distir::optimize
#endif  // DISTIR_OPTIMIZE_PROGRAM_SLOT_MASK_H_
