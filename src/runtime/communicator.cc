#include "runtime/communicator.h"

#include <map>

#include "support/error.h"

namespace distir::runtime {

namespace {

// A function-local static: factories register while libraries are loaded, in any order.
std::map<std::string, BackendFactory>& Factories() {
  static std::map<std::string, BackendFactory> factories;
  return factories;
}

}  // namespace

bool RegisterBackend(const std::string& name, BackendFactory factory) {
  Factories()[name] = factory;
  return true;
}

std::vector<std::string> BackendNames() {
  std::vector<std::string> names;
  for (const auto& entry : Factories()) names.push_back(entry.first);
  return names;
}

std::shared_ptr<Backend> MakeBackend(const std::string& name, std::vector<int> device_ids) {
  auto found = Factories().find(name);
  if (found == Factories().end()) {
    TVM_FFI_THROW(ValueError) << "there is no communication library \"" << name
                              << "\"; this build has " << support::Listed(BackendNames());
  }
  return found->second(std::move(device_ids));
}

}  // namespace distir::runtime
