// Finds and loads optional libraries at first use.
#include "runtime/shared_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <sstream>

#include "support/error.h"

namespace distir::runtime {

void* SharedLibrary::Open() const {
  std::vector<std::string> failures;
  auto open = [&failures](const std::string& file, int flags) {
    void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | flags);
    if (handle == nullptr && (flags & RTLD_NOLOAD) == 0) failures.push_back(dlerror());
    return handle;
  };
  if (const char* file = std::getenv(variable_)) {
    if (void* handle = open(file, 0)) return handle;
  } else {
    for (const std::string& name : names_)
      if (void* handle = open(name, RTLD_NOLOAD)) return handle;
    for (const std::string& path : paths_)
      if (void* handle = open(path, 0)) return handle;
    for (const std::string& name : names_)
      if (void* handle = open(name, 0)) return handle;
  }
  std::ostringstream tried;
  for (const std::string& failure : failures) tried << "\n  " << failure;
  TVM_FFI_THROW(RuntimeError) << what_ << " cannot be loaded; " << remedy_ << ", or let "
                              << variable_ << " name its file. Tried:" << tried.str();
  TVM_FFI_UNREACHABLE();
}

void* SharedLibrary::FindOrNull(void* handle, const char* function) {
  return dlsym(handle, function);
}

std::string SharedLibrary::FileOf(const void* function) {
  Dl_info info;
  return dladdr(function, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "?";
}

void* SharedLibrary::Find(void* handle, const char* function) const {
  void* address = dlsym(handle, function);
  DISTIR_REQUIRE(address != nullptr, RuntimeError)
      << what_ << " has no function " << function << "; it is too old";
  return address;
}

}  // namespace distir::runtime
