/*!
 * \file support/name_set.h
 * \brief Sets of names, stated so that repeated layers are stated once: passes note names in a
 * module, and these are printed with it.
 *
 * Numbers of names become braces; names of one pattern are the numbers that stand there. These are
 * stated as ranges, and as blocks that come again at equal distances:
 *
 *     layers.0.up, .., layers.31.up    {"0..31", "layers.{}.up"}
 *     lv3, lv4, lv9, lv13, lv14, lv19, lv23, lv24, lv29    {"(3..4, 9) + 10 * 0..2", "lv{}"}
 *     lv3_1, lv13_1, lv23_1    {"3:1 + 10:0 * 0..2", "lv{}_{}"}
 *
 * Patterns with the same numbers share an entry: {"0..31", "layers.{}.up", "layers.{}.down"}.
 */
#ifndef DISTIR_SUPPORT_NAME_SET_H_
#define DISTIR_SUPPORT_NAME_SET_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace distir::support {

/*! \brief Digits in a name, and the number that can stand for them. */
struct Digits {
  size_t end;
  std::optional<int64_t> number;  // none for leading zeros, and for more than nine digits
};

/*! \brief The digits from a place on; there may be none. */
Digits DigitsAt(const std::string& name, size_t begin);

/*! \brief A name; or numbers and patterns. */
using FoldedNames = std::vector<std::string>;

/*! \brief States a set of names in linear time, but for sorting; in the order in which patterns
 * first appear. */
std::vector<FoldedNames> FoldNames(const std::vector<std::string>& names);

/*! \brief Adds the names of an entry, in no particular order; none where it is malformed. */
void UnfoldNames(const FoldedNames& entry, std::vector<std::string>* names);

}  // namespace distir::support
#endif  // DISTIR_SUPPORT_NAME_SET_H_
