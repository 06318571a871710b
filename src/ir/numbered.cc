#include "ir/numbered.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <optional>
#include <utility>

namespace distir {
namespace ir {

namespace {

constexpr size_t kMostDigits = 9;
// No function has more layers; a text that claims more would take all memory.
constexpr int64_t kLongestRun = 1'000'000;

struct Group {
  std::optional<int64_t> number;
  size_t begin = 0;  // in the entries
  std::vector<std::string> patterns;
};

bool IsDigit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

/*! \brief Replaces the first number of an entry's name by braces; none where it has none. */
std::optional<int64_t> TakeNumber(std::string* entry) {
  if (entry->find_first_of("{}") != std::string::npos) return std::nullopt;
  const size_t name_end = std::min(entry->rfind(": "), entry->size());
  size_t begin = 0;
  while (begin < name_end && !IsDigit((*entry)[begin])) ++begin;
  size_t end = begin;
  while (end < name_end && IsDigit((*entry)[end])) ++end;
  const std::string digits = entry->substr(begin, end - begin);
  const bool is_padded = digits.size() > 1 && digits[0] == '0';
  if (digits.empty() || digits.size() > kMostDigits || is_padded) return std::nullopt;
  entry->replace(begin, end - begin, "{}");
  return std::stoll(digits);
}

/*! \brief Neighbours with one number. */
std::vector<Group> Groups(const std::vector<std::string>& entries) {
  std::vector<Group> groups;
  for (size_t i = 0; i < entries.size(); ++i) {
    std::string pattern = entries[i];
    const std::optional<int64_t> number = TakeNumber(&pattern);
    if (groups.empty() || !number.has_value() || groups.back().number != number)
      groups.push_back({number, i, {}});
    groups.back().patterns.push_back(std::move(pattern));
  }
  return groups;
}

}  // namespace

ffi::Array<ffi::Any> FoldNumbered(const std::vector<std::string>& entries) {
  const std::vector<Group> groups = Groups(entries);
  ffi::Array<ffi::Any> folded;
  for (size_t i = 0; i < groups.size();) {
    const Group& first = groups[i];
    size_t end = i + 1;
    while (first.number.has_value() && end < groups.size() &&
           groups[end].number == groups[end - 1].number.value() + 1 &&
           groups[end].patterns == first.patterns) {
      ++end;
    }
    if (end - i > 1) {
      ffi::Array<ffi::Any> run{ffi::String(std::to_string(*first.number) + ".." +
                                           std::to_string(*groups[end - 1].number))};
      for (const std::string& pattern : first.patterns) run.push_back(ffi::String(pattern));
      folded.push_back(run);
    } else {
      for (size_t j = 0; j < first.patterns.size(); ++j)
        folded.push_back(ffi::String(entries[first.begin + j]));
    }
    i = end;
  }
  return folded;
}

namespace {

/*! \brief The numbers of "3..7"; nullopt for another text. */
std::optional<std::pair<int64_t, int64_t>> ReadRange(const std::string& text) {
  const size_t dots = text.find("..");
  if (dots == std::string::npos) return std::nullopt;
  const std::string ends[] = {text.substr(0, dots), text.substr(dots + 2)};
  for (const std::string& end : ends) {
    if (end.empty() || end.size() > kMostDigits || !std::all_of(end.begin(), end.end(), IsDigit))
      return std::nullopt;
  }
  const int64_t first = std::stoll(ends[0]), last = std::stoll(ends[1]);
  if (last - first >= kLongestRun) return std::nullopt;
  return std::make_pair(first, last);
}

void UnfoldRun(const ffi::Array<ffi::Any>& run, std::vector<std::string>* entries) {
  std::vector<std::string> texts;
  for (const ffi::Any& each : run) {
    auto text = each.try_cast<ffi::String>();
    if (!text.has_value()) return;
    texts.push_back(*text);
  }
  const auto range = texts.empty() ? std::nullopt : ReadRange(texts[0]);
  if (!range) return;
  for (int64_t number = range->first; number <= range->second; ++number) {
    for (size_t i = 1; i < texts.size(); ++i) {
      std::string entry = texts[i];
      const size_t braces = entry.find("{}");
      if (braces == std::string::npos) return;
      entries->push_back(entry.replace(braces, 2, std::to_string(number)));
    }
  }
}

}  // namespace

std::vector<std::string> UnfoldNumbered(const ffi::Any& folded) {
  std::vector<std::string> entries;
  auto items = folded.try_cast<ffi::Array<ffi::Any>>();
  if (!items.has_value()) return entries;
  for (const ffi::Any& item : *items) {
    if (auto text = item.try_cast<ffi::String>(); text.has_value()) {
      entries.push_back(*text);
    } else if (auto run = item.try_cast<ffi::Array<ffi::Any>>(); run.has_value()) {
      UnfoldRun(*run, &entries);
    }
  }
  return entries;
}

}  // namespace ir
}  // namespace distir
