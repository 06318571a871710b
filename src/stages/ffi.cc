// The work of bindings as a global function, for tests.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/reflection/registry.h>

#include "ir/rewriter.h"
#include "stages/work.h"

namespace distir {
namespace stages {

TVM_FFI_STATIC_INIT_BLOCK() {
  ffi::reflection::GlobalDef().def(
      "distir.stages.Work",  // seconds of every binding of a function
      [](ir::IRModule mod, ir::Function function, double operations, double bytes) {
        WorkEstimate work(mod, DeviceSpeed{operations, bytes});
        ffi::Array<double> seconds;
        ir::VisitBindings(function.body(), [&](const ir::Binding& binding) {
          seconds.push_back(work.SecondsOf(binding));
        });
        return seconds;
      });
}

}  // namespace stages
}  // namespace distir
