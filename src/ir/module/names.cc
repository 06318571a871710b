// Makes names of variables and functions that no other one of the module has.
#include "ir/module/names.h"

#include "ir/rewriter.h"

namespace distir::ir {

namespace {

std::string_view ViewOf(const ffi::String& name) { return {name.data(), name.size()}; }

}  // namespace

std::string PrintedName(std::string name) {
  for (char& c : name) {
    const bool stays = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!stays) c = '_';
  }
  return name;
}

void Names::Read() {
  if (std::exchange(is_read_, true) || !function_.defined()) return;
  for (const Var& param : function_.params()) known_.emplace(ViewOf(param.name()), 1);
  VisitBindings(function_.body(), [this](const Binding& binding) {
    known_.emplace(ViewOf(binding.var().name()), 1);
  });
}

ffi::String Names::Fresh(const ffi::String& like) {
  Read();
  std::string name = like;
  if (known_.count(name) > 0) {
    const std::string base = BaseOf(name);
    // Stays valid when others are entered.
    int& next = known_.at(base);
    do {
      name = base + "_" + std::to_string(next++);
    } while (known_.count(name) > 0);
  }
  known_.emplace(given_.emplace_back(name), 1);
  return name;
}

std::string Names::BaseOf(const std::string& name) const {
  const size_t last = name.find_last_not_of("0123456789");
  if (last == std::string::npos || last == 0 || last + 1 == name.size() || name[last] != '_')
    return name;
  std::string base = name.substr(0, last);
  return known_.count(base) > 0 ? base : name;
}

std::string FunctionNames::Fresh(const std::string& like) {
  std::string name = like;
  while (!known_.insert(name).second) name = like + "_" + std::to_string(++last_suffix_[like]);
  return name;
}

}  // namespace distir::ir
