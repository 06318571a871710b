/*!
 * \file runtime/session/virtual_machine.cc
 * \brief Makes a worker's virtual machine; registers small functions that steps need.
 *
 * The executable is handed over inside the process: its code and constants are shared, every
 * worker has a machine of its own.
 */
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include "runtime/cublaslt/library.h"
#include "runtime/session/machine_copies.h"
#include "runtime/session/shard.h"
#include "runtime/session/worker_context.h"
#include "support/error.h"
#include "support/functions.h"

namespace distir::runtime {

namespace ffi = tvm::ffi;

namespace {

constexpr int kPooledAllocator = 2;  // tvm::runtime::memory::AllocatorType::kPooled

ffi::Function Entry(const ffi::Module& module, const char* name) {
  ffi::Optional<ffi::Function> entry = module->GetFunction(name);
  if (!entry.has_value()) {
    TVM_FFI_THROW(ValueError) << "the module of kind " << module->kind() << " has no " << name
                              << "; it is not an executable of Relax's virtual machine";
  }
  return entry.value();
}

/*! \brief Loads what the program says it needs, so that a machine without it is told at once. */
void LoadLibraries(const ffi::Module& machine) {
  ffi::Optional<ffi::Function> needed = machine->GetFunction("distir_libraries");
  if (!needed.has_value()) return;
  const auto text = needed.value()().cast<ffi::String>();
  DISTIR_REQUIRE(text == "cublaslt", ValueError)
      << "the program needs \"" << std::string(text) << "\", which this version does not know";
  cublaslt::CublasLt();
}

/*!
 * \brief Makes a virtual machine on the device of the worker that calls, otherwise on the host.
 * \param operator_callback Function that the machine calls around each operator, or None.
 * \throws InternalError if the executable needs a packed function that does not exist.
 */
ffi::Module LoadVirtualMachine(const ffi::Module& executable,
                               const ffi::Optional<ffi::Function>& operator_callback) {
  ffi::Module machine = Entry(executable, "vm_load_executable")().cast<ffi::Module>();
  const ffi::Function initialize = Entry(machine, "vm_initialization");
  const WorkerContext* worker = WorkerContext::CurrentOrNull();
  const int host = static_cast<int>(kDLCPU);
  if (worker == nullptr || worker->memory().device_type == kDLCPU) {
    initialize(host, 0, kPooledAllocator);
  } else {
    PutMachineCopiesInOrder();
    // Sizes of symbolic shapes are computed on the host, which comes last.
    const DLDevice device = worker->memory();
    initialize(static_cast<int>(device.device_type), device.device_id, kPooledAllocator, host, 0,
               kPooledAllocator);
  }
  LoadLibraries(machine);
  if (operator_callback.has_value()) {
    Entry(machine, "set_instrument")(operator_callback.value());
  }
  return machine;
}

// Returns its arguments: a job that runs it leaves the shards it was given with the workers.
void Keep(ffi::PackedArgs args, ffi::Any* result) {
  ffi::Array<ffi::Any> kept;
  for (int i = 0; i < args.size(); ++i) kept.push_back(args[i]);
  *result = kept;
}

/*!
 * \brief A function without arguments that cuts shards for the worker that calls it, which keeps
 *        them; what is none of them is returned as it is.
 */
ffi::Function KeeperOf(const ffi::Array<ffi::Any>& values) {
  return ffi::Function::FromTyped([values]() {
    WorkerContext& worker = WorkerContext::Current();
    ffi::Array<ffi::Any> kept;
    for (const ffi::Any& value : values) {
      const auto* shard = value.as<ShardObj>();
      kept.push_back(shard == nullptr ? value
                                      : ffi::Any(CutShardToKeep(*shard, worker.memory(),
                                                                &worker.communicator())));
    }
    return kept;
  });
}

/*!
 * \brief A function that returns when what `function` has enqueued is done.
 * \throws RuntimeError, when it is called, if any of that fails.
 */
ffi::Function Synchronized(const ffi::Function& function) {
  return ffi::Function::FromPacked([function](ffi::PackedArgs args, ffi::Any* result) {
    function.CallPacked(args, result);
    WorkerContext::Current().communicator().Synchronize();
  });
}

/*! \brief A function that calls `function` so many times with the same arguments. */
ffi::Function Repeated(const ffi::Function& function, int64_t count) {
  return ffi::Function::FromPacked([function, count](ffi::PackedArgs args, ffi::Any* result) {
    for (int64_t i = 0; i < count; ++i) function.CallPacked(args, result);
  });
}

TVM_FFI_STATIC_INIT_BLOCK() {
  support::Functions()
      .def("distir.runtime.load_virtual_machine", LoadVirtualMachine)
      .def("distir.runtime.keeper_of", KeeperOf)
      .def("distir.runtime.synchronized", Synchronized)
      .def("distir.runtime.repeated", Repeated)
      .def_packed("distir.runtime.keep", Keep);
}

}  // namespace

}  // namespace distir::runtime
