/*!
 * \file rules/tir/digits.h
 * \brief Unifies equal parts of iterators and buffer dimensions: mixed-radix digits, no IR.
 *
 * A *range* is an iterator or a dimension of a buffer, a set 0 .. size - 1. A part [low, high) of
 * a range are its digits between these place values: of a range of 32, [8, 32) is the digit
 * x // 8, [1, 8) is x % 8. Links state that two parts are the same digit; solving cuts the ranges
 * at the ends of all parts until the pieces correspond one to one, and joins the pieces that
 * correspond. Linked pieces are one *class*: a factor.
 *
 * Worked example: out[i, j] = in[i * 8 + j] with i of 4, j of 8, in of 32. Links: in [8, 32) is i,
 * in [1, 8) is j. Solved: in = [i, j], two classes of sizes 4 and 8.
 *
 * A range of symbolic size is one piece above its largest constant cut; kUnbounded is its end.
 *
 * A *pinned* piece needs replication, for instance since its number is used as a value. Of a
 * *broken* one it is not known which pieces of other ranges are the same, so it is pinned and in no
 * class with them.
 */
#ifndef DISTIR_RULES_TIR_DIGITS_H_
#define DISTIR_RULES_TIR_DIGITS_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace distir::rules {

constexpr int64_t kUnbounded = std::numeric_limits<int64_t>::max();

class DigitTable {
 public:
  /*! \brief A new range; size -1 is symbolic. Returns its index. */
  int AddRange(int64_t size);
  int64_t SizeOf(int range) const { return ranges_[range].size; }
  int num_ranges() const { return static_cast<int>(ranges_.size()); }
  /*! \brief The place value behind the last digit: the size, or kUnbounded. */
  int64_t EndOf(int range) const;
  /*! \brief States that part [low, low * extent) of one range is part [other_low, ..) of another;
   * an extent of kUnbounded reaches to the ends of both, which must be symbolic. */
  void Link(int range, int64_t low, int other, int64_t other_low, int64_t extent);
  /*! \brief Pins part [low, low * extent) of a range; an extent below 0 reaches to its end. */
  void Pin(int range, int64_t low = 1, int64_t extent = -1);
  /*! \brief Nothing is known about where the digits of this range go, for this reason. */
  void Break(int range, const std::string& why);

  /*! \brief Cuts and joins; afterwards nothing may be added but pins of classes. */
  void Solve();
  /*! \brief The classes of a range, major to minor; no class for a range of size 1. */
  const std::vector<int>& ClassesOf(int range) const { return ranges_[range].classes; }
  /*! \brief The classes of several ranges, one after the other. */
  std::vector<int> ClassesOf(const std::vector<int>& ranges) const;
  int num_classes() const { return static_cast<int>(class_sizes_.size()); }
  /*! \brief Size of a class, -1 if symbolic. */
  int64_t ClassSize(int index) const { return class_sizes_[index]; }
  bool IsPinned(int index) const { return class_pinned_[index]; }
  void PinClass(int index) { class_pinned_[index] = true; }
  /*! \brief Reason why a class has broken pieces, empty if it has none. */
  const std::string& WhyBroken(int index) const { return class_broken_[index]; }

 private:
  struct RangeState {
    int64_t size;
    std::string broken;                               // why, empty: it is not
    std::vector<std::pair<int64_t, int64_t>> pinned;  // parts, by place value
    std::set<int64_t> cuts;                           // place values, with 1 and the end
    std::vector<int> classes;
  };
  struct LinkState {
    int range[2];
    int64_t low[2];
    int64_t high[2];
  };

  /*! \brief Adds a cut; breaks the range when the cut does not divide evenly. */
  bool Cut(int range, int64_t place);
  bool SpreadCuts(const LinkState& link, int from);

  std::vector<RangeState> ranges_;
  std::vector<LinkState> links_;
  std::vector<int64_t> class_sizes_;
  std::vector<bool> class_pinned_;
  std::vector<std::string> class_broken_;
};

}  // namespace distir::rules
#endif  // DISTIR_RULES_TIR_DIGITS_H_
