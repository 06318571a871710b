#include "runtime/communicators/nccl/library.h"

#include <dlfcn.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/string.h>

#include <cstdlib>
#include <mutex>
#include <vector>

#include "support/error.h"

namespace distir::runtime::nccl {

namespace ffi = tvm::ffi;

namespace {

/*! \brief A shared library and where to look for it. */
class Library {
 public:
  Library(const char* what, const char* variable, std::vector<std::string> names)
      : what_(what), variable_(variable), names_(std::move(names)) {}

  void SetPaths(std::vector<std::string> paths) { paths_ = std::move(paths); }

  /*! \brief The loaded library. \throws RuntimeError if it is not found. */
  void* Open() {
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
    TVM_FFI_THROW(RuntimeError) << what_ << " can not be loaded; install it with: pip install "
                                << "'distir-ext[cuda]', or let " << variable_
                                << " name its file. Tried:" << tried.str();
    TVM_FFI_UNREACHABLE();
  }

  void* Find(void* handle, const char* function) const {
    void* address = dlsym(handle, function);
    DISTIR_REQUIRE(address != nullptr, RuntimeError)
        << what_ << " has no function " << function << "; it is too old";
    return address;
  }

 private:
  const char* what_;
  const char* variable_;
  std::vector<std::string> names_;
  std::vector<std::string> paths_;
};

Library& NcclLibrary() {
  static Library library("NCCL", "DISTIR_EXT_NCCL_LIBRARY", {"libnccl.so.2"});
  return library;
}

Library& CudaLibrary() {
  static Library library("CUDA's runtime", "DISTIR_EXT_CUDART_LIBRARY",
                         {"libcudart.so.13", "libcudart.so.12"});
  return library;
}

#define DISTIR_FIND(name, Result, Arguments) \
  functions.name = reinterpret_cast<Result(*) Arguments>(library.Find(handle, #name));

NcclFunctions FindNcclFunctions() {
  Library& library = NcclLibrary();
  void* handle = library.Open();
  NcclFunctions functions;
  DISTIR_NCCL_FUNCTIONS(DISTIR_FIND)
  return functions;
}

CudaFunctions FindCudaFunctions() {
  Library& library = CudaLibrary();
  void* handle = library.Open();
  CudaFunctions functions;
  DISTIR_CUDA_FUNCTIONS(DISTIR_FIND)
  return functions;
}

#undef DISTIR_FIND

}  // namespace

// A static whose initialisation throws is initialised again by the next call.
const NcclFunctions& Nccl() {
  static const NcclFunctions functions = FindNcclFunctions();
  return functions;
}

const CudaFunctions& Cuda() {
  static const CudaFunctions functions = FindCudaFunctions();
  return functions;
}

void CheckNccl(int result, const std::string& what) {
  if (result == kNcclSuccess) return;
  std::string message = what + " failed: " + Nccl().ncclGetErrorString(result);
  const char* detail = Nccl().ncclGetLastError(nullptr);
  if (detail != nullptr && *detail != '\0') message += std::string("; ") + detail;
  if (result == kNcclRemoteError) TVM_FFI_THROW(ConnectionError) << message;
  TVM_FFI_THROW(RuntimeError) << message;
}

void CheckCuda(int result, const std::string& what) {
  DISTIR_REQUIRE(result == kCudaSuccess, RuntimeError)
      << what << " failed: " << Cuda().cudaGetErrorString(result);
}

TVM_FFI_STATIC_INIT_BLOCK() {
  auto strings = [](const ffi::Array<ffi::String>& paths) {
    return std::vector<std::string>(paths.begin(), paths.end());
  };
  ffi::reflection::GlobalDef()
      .def("distir.runtime.nccl_library_paths",
           [strings](const ffi::Array<ffi::String>& nccl, const ffi::Array<ffi::String>& cudart) {
             NcclLibrary().SetPaths(strings(nccl));
             CudaLibrary().SetPaths(strings(cudart));
           })
      .def("distir.runtime.load_nccl", []() { Nccl(); });
}

}  // namespace distir::runtime::nccl
