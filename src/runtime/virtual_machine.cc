/*!
 * \file runtime/virtual_machine.cc
 * \brief A virtual machine for one worker, and the two small functions that jobs need besides.
 *
 * The executable is handed over inside the process: its code and constants are shared, every
 * worker has a machine of its own.
 */
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>

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

/*!
 * \brief Makes a virtual machine on the host.
 * \param operator_callback What the machine calls around each of its operators, or None.
 * \throws InternalError if the executable needs a packed function that does not exist.
 */
ffi::Module LoadVirtualMachine(const ffi::Module& executable,
                               const ffi::Optional<ffi::Function>& operator_callback) {
  ffi::Module machine = Entry(executable, "vm_load_executable")().cast<ffi::Module>();
  Entry(machine, "vm_initialization")(static_cast<int>(kDLCPU), 0, kPooledAllocator);
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

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = tvm::ffi::reflection;
  refl::GlobalDef()
      .def("distir.runtime.load_virtual_machine", LoadVirtualMachine)
      .def_packed("distir.runtime.keep", Keep);
}

}  // namespace

}  // namespace distir::runtime
