// The parts of AssignStages as global functions, for tests.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/string.h>

#include <vector>

#include "ir/rewriter.h"
#include "stages/partition.h"
#include "stages/work.h"

namespace distir {
namespace stages {

TVM_FFI_STATIC_INIT_BLOCK() {
  ffi::reflection::GlobalDef()
      .def("distir.stages.Partition",
           [](ffi::Array<double> work, ffi::Array<bool> is_operator, ffi::Array<double> devices,
              ffi::Array<ffi::Array<double>> transfer, double slack) {
             PartitionProblem problem;
             problem.work.assign(work.begin(), work.end());
             problem.is_operator.assign(is_operator.begin(), is_operator.end());
             problem.devices.assign(devices.begin(), devices.end());
             for (const ffi::Array<double>& into : transfer)
               problem.transfer.emplace_back(into.begin(), into.end());
             problem.slack = slack;
             ffi::Array<int64_t> first_items;
             for (size_t item : Partition(problem))
               first_items.push_back(static_cast<int64_t>(item));
             return first_items;
           })
      .def("distir.stages.Work",  // seconds of every binding of a function
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
