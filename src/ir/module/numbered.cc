// Folds lists of names that differ by a number, and unfolds them.
#include "ir/module/numbered.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "support/functions.h"
#include "support/name_set.h"

namespace distir::ir {

namespace {

struct Group {
  std::optional<int64_t> number;
  size_t begin = 0;  // in the entries
  std::vector<std::string> patterns;
};

/*! \brief An entry with braces in place of the first number of its name. */
struct Pattern {
  std::string text;
  std::optional<int64_t> number;  // none: the name has none, and the text is the entry itself
};

Pattern PatternOf(const std::string& entry) {
  if (entry.find_first_of("{}") != std::string::npos) return {entry, std::nullopt};
  const size_t first = entry.find_first_of("0123456789");
  if (first >= std::min(entry.rfind(": "), entry.size())) return {entry, std::nullopt};
  const support::Digits digits = support::DigitsAt(entry, first);
  if (!digits.number) return {entry, std::nullopt};
  return {entry.substr(0, first) + "{}" + entry.substr(digits.end), digits.number};
}

/*! \brief Neighbours with one number. */
std::vector<Group> Groups(const std::vector<std::string>& entries) {
  std::vector<Group> groups;
  for (size_t i = 0; i < entries.size(); ++i) {
    Pattern pattern = PatternOf(entries[i]);
    if (groups.empty() || !pattern.number.has_value() || groups.back().number != pattern.number)
      groups.push_back({pattern.number, i, {}});
    groups.back().patterns.push_back(std::move(pattern.text));
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

ffi::Array<ffi::Any> FoldNames(const std::vector<std::string>& names) {
  ffi::Array<ffi::Any> folded;
  for (const support::FoldedNames& entry : support::FoldNames(names)) {
    if (entry.size() == 1) {
      folded.push_back(ffi::String(entry[0]));
    } else {
      folded.push_back(ffi::Array<ffi::Any>(entry.begin(), entry.end()));
    }
  }
  return folded;
}

std::vector<std::string> UnfoldNames(const ffi::Any& folded) {
  std::vector<std::string> names;
  auto items = folded.try_cast<ffi::Array<ffi::Any>>();
  if (!items.has_value()) return names;
  for (const ffi::Any& item : *items) {
    if (auto text = item.try_cast<ffi::String>(); text.has_value()) {
      names.push_back(*text);
    } else if (auto entry = item.try_cast<ffi::Array<ffi::String>>(); entry.has_value()) {
      if (entry->size() > 1) support::UnfoldNames({entry->begin(), entry->end()}, &names);
    }
  }
  return names;
}

TVM_FFI_STATIC_INIT_BLOCK() {
  support::Functions().def("distir.ir.UnfoldNames", [](const ffi::Any& folded) {
    ffi::Array<ffi::String> names;
    for (const std::string& name : UnfoldNames(folded)) names.push_back(name);
    return names;
  });
}

}  // namespace distir::ir
