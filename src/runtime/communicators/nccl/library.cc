// Loads NCCL and the CUDA runtime at first use.
#include "runtime/communicators/nccl/library.h"

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/string.h>

#include <string>
#include <utility>
#include <vector>

#include "runtime/shared_library.h"
#include "support/error.h"
#include "support/functions.h"

namespace distir::runtime::nccl {

namespace ffi = tvm::ffi;

namespace {

constexpr const char* kRemedy = "install it with: pip install 'distir-ext[cuda]'";

// The first with sums of float8. Groups share the memory of what they are split from since 2.18.
constexpr int kOldestNccl = 22400;

// The first whose ncclCommRevoke may be called while a worker is inside NCCL.
constexpr int kFirstWithRevoke = 22800;

SharedLibrary& NcclLibrary() {
  static SharedLibrary library("NCCL", "DISTIR_EXT_NCCL_LIBRARY", {"libnccl.so.2"}, kRemedy);
  return library;
}

SharedLibrary& CudaLibrary() {
  static SharedLibrary library("CUDA's runtime", "DISTIR_EXT_CUDART_LIBRARY",
                               {"libcudart.so.13", "libcudart.so.12"}, kRemedy);
  return library;
}

#define DISTIR_FIND(name, Result, Arguments) \
  functions.name = reinterpret_cast<Result(*) Arguments>(library.Find(handle, #name));

std::string Describe(int version, const void* function) {
  return NcclVersionText(version) + " of " + SharedLibrary::FileOf(function);
}

NcclFunctions FindNcclFunctions() {
  SharedLibrary& library = NcclLibrary();
  void* handle = library.Open();
  NcclFunctions functions;
  const auto get_version = reinterpret_cast<int (*)(int*)>(library.Find(handle, "ncclGetVersion"));
  int version = 0;
  get_version(&version);
  DISTIR_REQUIRE(version >= kOldestNccl, RuntimeError)
      << "NCCL " << Describe(version, reinterpret_cast<const void*>(get_version))
      << " is too old: " << NcclVersionText(kOldestNccl)
      << " or later is needed, the first that reduces float8; " << kRemedy
      << ". Another package of this process may have loaded its own before: "
         "DISTIR_EXT_NCCL_LIBRARY names the file to take";
  DISTIR_NCCL_FUNCTIONS(DISTIR_FIND)
#define DISTIR_FIND_OPTIONAL(name, Result, Arguments) \
  functions.name = reinterpret_cast<Result(*) Arguments>(library.FindOrNull(handle, #name));
  if (version >= kFirstWithRevoke) {
    DISTIR_OPTIONAL_NCCL_FUNCTIONS(DISTIR_FIND_OPTIONAL)
  }
#undef DISTIR_FIND_OPTIONAL
  return functions;
}

CudaFunctions FindCudaFunctions() {
  SharedLibrary& library = CudaLibrary();
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

std::string NcclVersionText(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

std::string CudaVersionText(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version / 10 % 100);
}

std::string CudaLibraryFile() {
  return SharedLibrary::FileOf(reinterpret_cast<const void*>(Cuda().cudaGetDeviceCount));
}

std::string DescribeNccl() {
  int version = 0;
  CheckNccl(Nccl().ncclGetVersion(&version), "ncclGetVersion");
  return Describe(version, reinterpret_cast<const void*>(Nccl().ncclGetVersion));
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
  support::Functions()
      .def("distir.runtime.nccl_library_paths",
           [strings](const ffi::Array<ffi::String>& nccl, const ffi::Array<ffi::String>& cudart) {
             NcclLibrary().SetPaths(strings(nccl));
             CudaLibrary().SetPaths(strings(cudart));
           })
      .def("distir.runtime.load_nccl", []() { Nccl(); });
}

}  // namespace distir::runtime::nccl
