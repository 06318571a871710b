// Loads cuBLASLt at first use.
#include "runtime/cublaslt/library.h"

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/string.h>

#include <vector>

#include "runtime/shared_library.h"
#include "support/error.h"
#include "support/functions.h"

namespace distir::runtime::cublaslt {

namespace ffi = tvm::ffi;

namespace {

constexpr const char* kRemedy =
    "install it with: pip install 'distir-ext[cuda]', or build the program with blas=False";

// The first with kernels for Hopper.
constexpr size_t kOldestCublasLt = 120000;

SharedLibrary& CublasLtLibrary() {
  static SharedLibrary library("cuBLASLt", "DISTIR_EXT_CUBLASLT_LIBRARY",
                               {"libcublasLt.so.13", "libcublasLt.so.12"}, kRemedy);
  return library;
}

std::string VersionText(size_t version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

std::string Describe(size_t (*get_version)()) {
  return VersionText(get_version()) + " of " +
         SharedLibrary::FileOf(reinterpret_cast<const void*>(get_version));
}

CublasLtFunctions FindCublasLtFunctions() {
  SharedLibrary& library = CublasLtLibrary();
  void* handle = library.Open();
  CublasLtFunctions functions;
  functions.cublasLtGetVersion =
      reinterpret_cast<size_t (*)()>(library.Find(handle, "cublasLtGetVersion"));
  DISTIR_REQUIRE(functions.cublasLtGetVersion() >= kOldestCublasLt, RuntimeError)
      << "cuBLASLt " << Describe(functions.cublasLtGetVersion)
      << " is too old: " << VersionText(kOldestCublasLt) << " or later is needed; " << kRemedy
      << ". Another package of this process may have loaded its own before: "
         "DISTIR_EXT_CUBLASLT_LIBRARY names the file to take";
#define DISTIR_FIND_LT(name, Result, Arguments) \
  functions.name = reinterpret_cast<Result(*) Arguments>(library.Find(handle, #name));
  DISTIR_CUBLASLT_FUNCTIONS(DISTIR_FIND_LT)
#undef DISTIR_FIND_LT
  return functions;
}

}  // namespace

// A static whose initialisation throws is initialised again by the next call.
const CublasLtFunctions& CublasLt() {
  static const CublasLtFunctions functions = FindCublasLtFunctions();
  return functions;
}

std::string DescribeCublasLt() { return Describe(CublasLt().cublasLtGetVersion); }

void CheckCublasLt(int status, const std::string& what) {
  DISTIR_REQUIRE(status == kCublasStatusSuccess, RuntimeError)
      << what << " of cuBLASLt " << DescribeCublasLt()
      << " failed: " << CublasLt().cublasLtGetStatusString(status);
}

TVM_FFI_STATIC_INIT_BLOCK() {
  support::Functions()
      .def("distir.runtime.cublaslt_library_paths",
           [](const ffi::Array<ffi::String>& paths) {
             CublasLtLibrary().SetPaths(std::vector<std::string>(paths.begin(), paths.end()));
           })
      .def("distir.runtime.describe_cublaslt", []() { return ffi::String(DescribeCublasLt()); });
}

}  // namespace distir::runtime::cublaslt
