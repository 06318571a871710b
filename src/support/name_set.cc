// Folds sets of names into patterns and ranges, and unfolds them.
#include "support/name_set.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "support/small_vector.h"

namespace distir::support {

namespace {

constexpr size_t kMostDigits = 9;
// Blocks of layers that are longer than this are not looked for.
constexpr size_t kLongestBlock = 64;
// Two repetitions are shorter when written out.
constexpr size_t kFewestBlocks = 3;
// No function has more variables; a text that claims more would take all memory.
constexpr size_t kMostNames = 1'000'000;
constexpr int kDeepest = 16;

/*! \brief The numbers of one name. */
using Numbers = SmallVector<int64_t, 2>;

bool IsDigit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

Numbers Difference(const Numbers& to, const Numbers& from) {
  Numbers difference(to.size());
  for (size_t i = 0; i < to.size(); ++i) difference[i] = to[i] - from[i];
  return difference;
}

/*! \brief True if a - b is c - d. */
bool AreAsFarApart(const Numbers& a, const Numbers& b, const Numbers& c, const Numbers& d) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] - b[i] != c[i] - d[i]) return false;
  }
  return true;
}

/*! \brief A name with braces for its numbers. */
std::string Pattern(const std::string& name, Numbers* numbers) {
  std::string pattern;
  for (size_t i = 0; i < name.size();) {
    const Digits digits = DigitsAt(name, i);
    const size_t end = std::max(digits.end, i + 1);
    if (digits.number) {
      pattern += "{}";
      numbers->push_back(*digits.number);
    } else {
      pattern.append(name, i, end - i);
    }
    i = end;
  }
  return pattern;
}

// ---- numbers as text

std::string Text(const Numbers& numbers) {
  std::string text;
  for (int64_t number : numbers) text += (text.empty() ? "" : ":") + std::to_string(number);
  return text;
}

/*! \brief begin, begin + step, .., `count` of them. */
struct Run {
  Numbers begin;
  Numbers step;
  size_t count;

  std::string ToText() const {
    if (count == 1) return Text(begin);
    if (step == Numbers{1})
      return Text(begin) + ".." + std::to_string(begin[0] + static_cast<int64_t>(count) - 1);
    return Text(begin) + " + " + Text(step) + " * 0.." + std::to_string(count - 1);
  }
};

/*! \brief True if neighbours belong into one range. */
bool IsUnitStep(const Numbers& step) {
  return std::count(step.begin(), step.end(), 0) + 1 == static_cast<int64_t>(step.size()) &&
         std::count(step.begin(), step.end(), 1) == 1;
}

std::vector<Run> Ranges(const std::vector<Numbers>& sorted) {
  std::vector<Run> runs;
  for (const Numbers& numbers : sorted) {
    if (!runs.empty()) {
      Run& last = runs.back();
      Numbers end = last.begin;
      for (size_t i = 0; i < end.size(); ++i)
        end[i] += static_cast<int64_t>(last.count - 1) * last.step[i];
      const Numbers step = Difference(numbers, end);
      if (IsUnitStep(step) && (last.count == 1 || step == last.step)) {
        last.step = step;
        ++last.count;
        continue;
      }
    }
    runs.push_back({numbers, Numbers(numbers.size(), 0), 1});
  }
  return runs;
}

/*! \brief Counts repetitions of the block of `size` runs, from `begin` on, at equal distances. */
size_t CountBlocks(const std::vector<Run>& runs, size_t begin, size_t end, size_t size) {
  const Run* first = &runs[begin];
  size_t at = begin;
  while (at + size < end && runs[at + size].count == runs[at].count &&
         runs[at + size].step == runs[at].step &&
         AreAsFarApart(runs[at + size].begin, runs[at].begin, first[size].begin, first->begin)) {
    ++at;
  }
  return 1 + (at - begin) / size;
}

std::string BlocksText(const std::vector<Run>& runs, size_t begin, size_t end) {
  std::string text;
  while (begin < end) {
    size_t best = 1, blocks = 1;
    for (size_t size = 1; size <= kLongestBlock && begin + size < end; ++size) {
      const size_t count = CountBlocks(runs, begin, end, size);
      if (count >= kFewestBlocks && count * size > best * blocks) {
        best = size;
        blocks = count;
      }
    }
    if (!text.empty()) text += ", ";
    const bool is_list = best > 1 || runs[begin].count > 1;
    if (blocks == 1) {
      text += runs[begin].ToText();
    } else {
      const std::string block =
          best == 1 ? runs[begin].ToText() : BlocksText(runs, begin, begin + best);
      text += (is_list ? "(" + block + ")" : block) + " + " +
              Text(Difference(runs[begin + best].begin, runs[begin].begin)) + " * 0.." +
              std::to_string(blocks - 1);
    }
    begin += best * blocks;
  }
  return text;
}

std::string NumbersText(std::vector<Numbers> numbers) {
  if (!std::is_sorted(numbers.begin(), numbers.end())) std::sort(numbers.begin(), numbers.end());
  const std::vector<Run> runs = Ranges(numbers);
  return BlocksText(runs, 0, runs.size());
}

// ---- and back

/*! \brief Reads `items`: ranges and blocks, as BlocksText writes them. */
class NumbersReader {
 public:
  explicit NumbersReader(std::string_view text) : rest_(text) {}

  /*! \brief nullopt where the text is malformed, or too much. */
  std::optional<std::vector<Numbers>> Read() {
    std::vector<Numbers> found;
    if (!Items(0, &found) || !rest_.empty()) return std::nullopt;
    return found;
  }

 private:
  bool Items(int depth, std::vector<Numbers>* found) {
    do {
      if (!Item(depth, found)) return false;
    } while (Take(", "));
    return true;
  }

  bool Item(int depth, std::vector<Numbers>* found) {
    std::vector<Numbers> block;
    Numbers step;
    int64_t last;
    if (Take("(")) {
      if (depth == kDeepest || !Items(depth + 1, &block) || !Take(")")) return false;
    } else {
      Numbers begin;
      if (!Tuple(&begin)) return false;
      block.push_back(begin);
      if (Take("..")) {
        if (begin.size() != 1 || !Integer(&last) || last < begin[0]) return false;
        return Repeat({begin}, {1}, last - begin[0], found);
      }
    }
    if (!Take(" + ")) return Repeat(block, Numbers(block[0].size(), 0), 0, found);
    return Tuple(&step) && Take(" * 0..") && Integer(&last) && Repeat(block, step, last, found);
  }

  static bool Repeat(const std::vector<Numbers>& block, const Numbers& step, int64_t last,
                     std::vector<Numbers>* found) {
    if (last < 0 || (static_cast<size_t>(last) + 1) * block.size() + found->size() > kMostNames)
      return false;
    for (int64_t i = 0; i <= last; ++i) {
      for (Numbers numbers : block) {
        if (numbers.size() != step.size()) return false;
        for (size_t k = 0; k < step.size(); ++k) numbers[k] += i * step[k];
        found->push_back(std::move(numbers));
      }
    }
    return true;
  }

  bool Tuple(Numbers* numbers) {
    do {
      int64_t number;
      if (!Integer(&number)) return false;
      numbers->push_back(number);
    } while (Take(":"));
    return true;
  }

  bool Integer(int64_t* number) {
    const bool is_negative = Take("-");
    size_t digits = 0;
    while (digits < rest_.size() && IsDigit(rest_[digits])) ++digits;
    if (digits == 0 || digits > kMostDigits) return false;
    *number = std::stoll(std::string(rest_.substr(0, digits))) * (is_negative ? -1 : 1);
    rest_.remove_prefix(digits);
    return true;
  }

  bool Take(std::string_view token) {
    if (rest_.substr(0, token.size()) != token) return false;
    rest_.remove_prefix(token.size());
    return true;
  }

  std::string_view rest_;
};

/*! \brief A pattern with its numbers; nullopt where it has other many. */
std::optional<std::string> Fill(const std::string& pattern, const Numbers& numbers) {
  std::string name;
  size_t begin = 0;
  for (int64_t number : numbers) {
    const size_t braces = pattern.find("{}", begin);
    if (braces == std::string::npos) return std::nullopt;
    name.append(pattern, begin, braces - begin).append(std::to_string(number));
    begin = braces + 2;
  }
  if (pattern.find("{}", begin) != std::string::npos) return std::nullopt;
  name.append(pattern, begin);
  return name;
}

}  // namespace

Digits DigitsAt(const std::string& name, size_t begin) {
  size_t end = begin;
  while (end < name.size() && IsDigit(name[end])) ++end;
  const size_t count = end - begin;
  const bool is_padded = count > 1 && name[begin] == '0';
  if (count == 0 || count > kMostDigits || is_padded) return {end, std::nullopt};
  int64_t number = 0;
  for (size_t i = begin; i < end; ++i) number = 10 * number + (name[i] - '0');
  return {end, number};
}

std::vector<FoldedNames> FoldNames(const std::vector<std::string>& names) {
  struct Group {
    std::string pattern;
    std::vector<Numbers> numbers;
  };
  std::vector<Group> groups;
  std::unordered_map<std::string, size_t> group_of;
  std::vector<FoldedNames> folded;
  for (const std::string& name : names) {
    if (name.find_first_of("{}") != std::string::npos) {
      folded.push_back({name});
      continue;
    }
    Numbers numbers;
    std::string pattern = Pattern(name, &numbers);
    auto [found, is_new] = group_of.try_emplace(pattern, groups.size());
    if (is_new) groups.push_back({std::move(pattern), {}});
    groups[found->second].numbers.push_back(std::move(numbers));
  }
  std::unordered_map<std::string, size_t> entry_of;  // by the text of numbers
  for (Group& group : groups) {
    const bool is_alone = group.numbers.size() == 1 || group.numbers[0].empty();
    if (is_alone) {
      for (const Numbers& numbers : group.numbers)
        folded.push_back({Fill(group.pattern, numbers).value()});
      continue;
    }
    const std::string text = NumbersText(std::move(group.numbers));
    auto [found, is_new] = entry_of.try_emplace(text, folded.size());
    if (is_new) folded.push_back({text});
    folded[found->second].push_back(group.pattern);
  }
  return folded;
}

void UnfoldNames(const FoldedNames& entry, std::vector<std::string>* names) {
  if (entry.size() == 1) names->push_back(entry[0]);
  if (entry.size() < 2) return;
  const auto all = NumbersReader(entry[0]).Read();
  if (!all) return;
  for (const Numbers& numbers : *all) {
    for (size_t i = 1; i < entry.size(); ++i) {
      auto name = Fill(entry[i], numbers);
      if (!name) return;
      names->push_back(std::move(*name));
    }
  }
}

}  // namespace distir::support
