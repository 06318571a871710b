// Replaces the copies of TVM's virtual machine by copies on the worker's stream.
#include "runtime/session/machine_copies.h"

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>

#include <mutex>
#include <optional>

#include "runtime/session/worker_context.h"
#include "support/error.h"

namespace distir::runtime {

namespace ffi = tvm::ffi;

namespace {

/*! \brief The worker of this thread, if its tensors lie on a device. */
WorkerContext* WorkerOfDevice() {
  WorkerContext* worker = WorkerContext::CurrentOrNull();
  return worker == nullptr || worker->memory().device_type == kDLCPU ? nullptr : worker;
}

bool IsOnHost(const ffi::Tensor& tensor) { return tensor.device().device_type == kDLCPU; }

/*! \brief The function of this name takes tensors of a device as one of the host. */
void ReadOnHost(const char* name) {
  const ffi::Function original = ffi::Function::GetGlobalRequired(name);
  auto read = [original](ffi::PackedArgs args, ffi::Any* result) {
    WorkerContext* worker = WorkerOfDevice();
    const std::optional<ffi::Tensor> tensor = args[0].as<ffi::Tensor>();
    if (worker == nullptr || !tensor.has_value() || IsOnHost(*tensor))
      return original.CallPacked(args, result);
    *result = original(worker->communicator().ToHost(*tensor));
  };
  ffi::Function::SetGlobal(name, ffi::Function::FromPacked(read), true);
}

/*! \brief (tensor, type of the device, its number, scope) */
void CopyBetweenDevices() {
  constexpr const char* kName = "vm.builtin.to_device";
  const ffi::Function original = ffi::Function::GetGlobalRequired(kName);
  auto copy = [original](ffi::PackedArgs args, ffi::Any* result) {
    WorkerContext* worker = WorkerOfDevice();
    const auto type = args[1].cast<int>();
    const bool is_global = args.size() < 4 || args[3].cast<ffi::String>() == "global";
    const bool is_own_type = worker != nullptr && type == worker->memory().device_type;
    const auto tensor = args[0].cast<ffi::Tensor>();
    if (worker == nullptr || !is_global || (!is_own_type && (type != kDLCPU || IsOnHost(tensor))))
      return original.CallPacked(args, result);
    if (!is_own_type) {
      *result = worker->communicator().ToHost(tensor);
      return;
    }
    const auto number = args[2].cast<int>();
    DISTIR_REQUIRE(number == 0, ValueError)
        << "the program copies a tensor to device " << number
        << " of its kind; each worker has one, which programs call device 0";
    *result = worker->communicator().ToDevice(tensor);
  };
  ffi::Function::SetGlobal(kName, ffi::Function::FromPacked(copy), true);
}

}  // namespace

void PutMachineCopiesInOrder() {
  static std::once_flag once;
  std::call_once(once, [] {
    ReadOnHost("vm.builtin.read_if_cond");
    ReadOnHost("vm.builtin.tensor_to_shape");
    CopyBetweenDevices();
  });
}

}  // namespace distir::runtime
