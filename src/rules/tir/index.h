/*!
 * \file rules/tir/index.h
 * \brief Reads an index expression as a sum of digits of iterators.
 *
 * Understood are sums, products with constants, and quotients and remainders by constants that cut
 * between digits, and the same with a symbolic size that an iterator runs to; the rest is no index
 * pattern. Worked example, i of 4, j of 8, k of n: (i * 8 + j) // 4 is {i, times 2} + {j // 4,
 * times 1}; (i * 8 + j) % 6 is none; (i * n + k) // n is {i, times 1}.
 *
 * The other way, digits are *written* as the shortest index that has them: {i, times 4} + {j // 2,
 * times 1} is i * 4 + j // 2, where a kernel may say (i * 8 + j) % 32 // 2.
 */
#ifndef DISTIR_RULES_TIR_INDEX_H_
#define DISTIR_RULES_TIR_INDEX_H_

#include <functional>
#include <optional>
#include <vector>

#include "ir/node.h"

namespace distir::rules {

/*! \brief ((iterator // low) % extent) * scale. */
struct Digit {
  int range;
  int64_t low;
  int64_t extent;  // -1: all of an iterator of symbolic size; low is 1 then
  int64_t scale;
};

/*! \brief The digits of an index, by descending scale. */
using DigitSum = std::vector<Digit>;

struct Iterator {
  int range;
  ir::Expr extent;
};

/*! \brief The iterator that a variable is, if any. */
using FindIterator = std::function<std::optional<Iterator>(const ir::Var&)>;

/*! \brief The digits that sum up to the index; nullopt when it is no such sum, or not from 0. */
std::optional<DigitSum> ReadIndex(const ir::Expr& index, const FindIterator& find);

/*!
 * \brief The index that has these digits, as ReadIndex read them from `index`; null where its
 * iterators are of another type than it is.
 *
 * Sizes of iterators stand in it only where a digit is cut off by them.
 */
ir::Expr WriteIndex(const DigitSum& digits, const ir::Expr& index, const FindIterator& find);

}  // namespace distir::rules
#endif  // DISTIR_RULES_TIR_INDEX_H_
