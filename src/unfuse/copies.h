/*!
 * \file unfuse/copies.h
 * \brief Reads statements that copy elements of one tensor, each from a place that is linear in the
 * target's.
 *
 *     out[i, j] = x[i, 2 * j + 3]                         along j: first 3, step 2
 *     out[i, j] = x[i, j - 2] if 2 <= j < 34 else 0       along j: first -2, step 1
 */
#ifndef DISTIR_UNFUSE_COPIES_H_
#define DISTIR_UNFUSE_COPIES_H_

#include <optional>
#include <vector>

#include "ir/tir_node.h"

namespace distir::unfuse {

/*! \brief The value of a linear index where one variable has a value and all others are 0; nullopt
 * for any other index. */
std::optional<int64_t> ValueAt(const ir::Expr& index, const ir::Var& variable, int64_t value);

/*! \brief Step of an index per value of a variable; 0 if it does not depend on it, or is not
 * linear. */
int64_t StepOf(const ir::Expr& index, const ir::Var& variable);

/*! \brief Elements along a dimension of x that make the result: at first + step * i. */
struct Along {
  int64_t first, step;
  int64_t size;    // of x, -1 if symbolic; then it is that of the result
  int64_t extent;  // of the result

  bool IsAll() const { return first == 0 && step == 1 && size == extent; }
  /*! \brief True if all of x is there, with others before and behind it. */
  bool IsPadded() const { return step == 1 && first <= 0 && Behind() >= 0; }
  int64_t Before() const { return -first; }
  int64_t Behind() const { return extent - size + first; }
};

struct Copy {
  ir::Var x;
  std::vector<Along> dims;
  ir::Expr otherwise;  // what is written where a condition does not hold; null without one
};

/*! \brief Reads a block's statement as a copy; nullopt if it does anything else. */
std::optional<Copy> ReadCopy(const ir::SBlock& block, const ir::BufferStore& store);

}  // namespace distir::unfuse
#endif  // DISTIR_UNFUSE_COPIES_H_
