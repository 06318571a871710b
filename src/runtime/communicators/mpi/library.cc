// Loads, initialises and finalises the MPI library of this process.
#include "runtime/communicators/mpi/library.h"

#include <dlfcn.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/string.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <future>
#include <limits>
#include <memory>
#include <thread>

#include "support/error.h"
#include "support/functions.h"

namespace distir::runtime::mpi {

namespace ffi = tvm::ffi;

namespace {

// Time that MPI_Finalize may take when the process exits.
constexpr std::chrono::seconds kFinalizeLimit{5};

// Never deleted: MPI is used until the process exits.
Library*& ProcessLibrary() {
  static Library* library = nullptr;
  return library;
}

void FinalizeAtExit(int status, void* argument) {
  auto* process = static_cast<pid_t*>(argument);
  if (*process != getpid()) return;
  std::promise<void> done;
  std::future<void> finished = done.get_future();
  std::thread([&done] {
    try {
      ProcessLibrary()->End();
    } catch (...) {  // nobody is left who could be told
    }
    done.set_value();
  }).detach();
  if (finished.wait_for(kFinalizeLimit) != std::future_status::ready) _exit(status);
}

}  // namespace

Library::Library(const std::string& file) : abi(kMpichAbi), file_(file) {
  // Global, as MPI's own plug-ins look for it there.
  void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL);
  DISTIR_REQUIRE(handle != nullptr, RuntimeError) << dlerror();
  auto find = [&](const char* name) {
    void* found = dlsym(handle, name);
    DISTIR_REQUIRE(found != nullptr, RuntimeError)
        << file << " is no library of MPI: it has no " << name;
    return found;
  };
#define DISTIR_FIND(name, Arguments) call.name = reinterpret_cast<int(*) Arguments>(find(#name));
  DISTIR_MPI_FUNCTIONS(DISTIR_FIND)
#undef DISTIR_FIND
#define DISTIR_FIND(name, Arguments) \
  call.name = reinterpret_cast<int(*) Arguments>(dlsym(handle, #name));
  DISTIR_OPTIONAL_MPI_FUNCTIONS(DISTIR_FIND)
#undef DISTIR_FIND
  if (dlsym(handle, "ompi_mpi_comm_world") != nullptr) {
    abi = kOpenMpiAbi;
#define DISTIR_FIND(field, name) abi.field = reinterpret_cast<uintptr_t>(find(#name));
    DISTIR_OPEN_MPI_SYMBOLS(DISTIR_FIND)
#undef DISTIR_FIND
  } else if (file.substr(file.rfind('/') + 1).find("libmpi_abi") == 0) {
    abi = kStandardAbi;
  }
}

void Library::Check(int result, const char* function) const {
  if (result == kSuccess) return;
  char text[kErrorTextBytes] = "";
  int length = 0;
  const bool is_known = call.MPI_Error_string(result, text, &length) == kSuccess;
  TVM_FFI_THROW(RuntimeError) << function << " of " << file_ << " has failed with " << result
                              << (is_known ? ": " : "")
                              << (is_known ? std::string(text, std::max(length, 0)) : "");
}

void Library::Begin() {
  const std::lock_guard<std::mutex> lock(mutex);
  int before = 0, after = 0;
  Check(call.MPI_Initialized(&before), "MPI_Initialized");
  Check(call.MPI_Finalized(&after), "MPI_Finalized");
  DISTIR_REQUIRE(after == 0, RuntimeError)
      << "MPI_Finalize has been called; open the session before";
  if (before == 0) {
    int given = 0;
    Check(call.MPI_Init_thread(nullptr, nullptr, abi.multiple, &given), "MPI_Init_thread");
    begun_here_ = true;
  }
  Check(call.MPI_Comm_rank(handle(abi.world), &rank_), "MPI_Comm_rank");
  Check(call.MPI_Comm_size(handle(abi.world), &size_), "MPI_Comm_size");
}

void Library::End() {
  const std::lock_guard<std::mutex> lock(mutex);
  if (!begun_here_) return;
  begun_here_ = false;
  ended_ = true;
  Check(call.MPI_Finalize(), "MPI_Finalize");
}

bool Library::IsFinalized() const {
  int finalized = 0;
  return call.MPI_Finalized(&finalized) != kSuccess || finalized != 0;
}

bool Library::is_cuda_aware() const {
  if (call.MPIX_Query_cuda_support != nullptr && call.MPIX_Query_cuda_support() == 1) return true;
  int is_supported = 0;
  return call.MPIX_GPU_query_support != nullptr &&
         call.MPIX_GPU_query_support(kGpuSupportCuda, &is_supported) == kSuccess &&
         is_supported != 0;
}

void Library::KeepUntilExit() {
  if (kept_) return;
  int given = 0;
  Check(call.MPI_Query_thread(&given), "MPI_Query_thread");
  DISTIR_REQUIRE(given >= (begun_here_ ? abi.serialized : abi.multiple), RuntimeError)
      << file_ << " has been initialized without "
      << (begun_here_ ? "MPI_THREAD_SERIALIZED, which it does not offer"
                      : "MPI_THREAD_MULTIPLE: who initializes it has to ask for that, as mpi4py "
                        "does, because workers are threads")
      << "; ccl=\"mpi\" needs it";
  Check(call.MPI_Comm_set_errhandler(handle(abi.world), handle(abi.errors_return)),
        "MPI_Comm_set_errhandler");
  static pid_t process = getpid();
  DISTIR_REQUIRE(!begun_here_ || on_exit(FinalizeAtExit, &process) == 0, RuntimeError)
      << "the system takes no function for the exit of this process";
  kept_ = true;
}

int Count(int64_t number) {
  TVM_FFI_ICHECK(0 <= number && number <= std::numeric_limits<int>::max())
      << "MPI is given " << number << " at a time";
  return static_cast<int>(number);
}

Library& KeptLibrary() {
  Library* library = ProcessLibrary();
  DISTIR_REQUIRE(library != nullptr && library->kept(), RuntimeError)
      << "ccl=\"mpi\" connects copies of a script that MPI has started: open the session with "
         "workers=\"auto\" (or dx.Hosts.from_env(ccl=\"mpi\")), in a script under mpiexec or srun";
  return *library;
}

TVM_FFI_STATIC_INIT_BLOCK() {
  auto library = [] {
    TVM_FFI_ICHECK(ProcessLibrary() != nullptr) << "MPI is opened first";
    return ProcessLibrary();
  };
  support::Functions()
      .def("distir.runtime.mpi_open",
           [](const ffi::String& file) {
             if (ProcessLibrary() == nullptr) ProcessLibrary() = new Library(std::string(file));
             return ffi::String(ProcessLibrary()->file());
           })
      .def("distir.runtime.mpi_begin",
           [library] {  // (rank, size)
             library()->Begin();
             return ffi::Shape({library()->rank(), library()->size()});
           })
      .def("distir.runtime.mpi_broadcast",
           [library](const ffi::Bytes& message) {
             Library& mpi = *library();
             const std::lock_guard<std::mutex> lock(mpi.mutex);
             std::string bytes(message);
             int size = Count(static_cast<int64_t>(bytes.size()));
             const Handle world = mpi.handle(mpi.abi.world);
             mpi.Check(mpi.call.MPI_Bcast(&size, sizeof(size), mpi.byte(), 0, world), "MPI_Bcast");
             bytes.resize(size);
             mpi.Check(mpi.call.MPI_Bcast(bytes.data(), size, mpi.byte(), 0, world), "MPI_Bcast");
             return ffi::Bytes(bytes);
           })
      .def("distir.runtime.mpi_end",
           [library] {
             if (!library()->kept()) library()->End();
           })
      .def("distir.runtime.mpi_keep", [library] { library()->KeepUntilExit(); })
      .def("distir.runtime.mpi_kept", [] { KeptLibrary(); });
}

}  // namespace distir::runtime::mpi
