#include "ir/tvm/pass.h"

#include <tvm/ffi/rvalue_ref.h>

#include <iostream>

#include "ir/module/normal_form.h"
#include "ir/module/well_formed.h"
#include "ir/report.h"

namespace distir {
namespace ir {

namespace {

const GlobalFunction kMakeModulePass("transform.MakeModulePass");
const GlobalFunction kPassInfo("transform.PassInfo");

constexpr int kOptLevel = 0;

}  // namespace

ffi::ObjectRef MakeModulePass(const std::string& name,
                              std::function<IRModule(IRModule)> transform) {
  ffi::Function run = ffi::Function::FromTyped(
      [name, transform](ffi::RValueRef<IRModule> mod, ffi::ObjectRef) -> IRModule {
        IRModule input = *std::move(mod);
        CheckWellFormed(input, name);
        return RunReported(name, NormalForm(input), transform);
      });
  ffi::Any info = kPassInfo(kOptLevel, name, ffi::Array<ffi::String>(), false);
  return kMakeModulePass(run, info).cast<ffi::ObjectRef>();
}

void Warn(const std::string& message) {
  // Python installs the sink (logging); without it, as in a C++ host, the message still shows.
  auto sink = ffi::Function::GetGlobal("distir.warn");
  if (sink.has_value()) {
    (*sink)(message);
  } else {
    std::cerr << "warning: " << message << std::endl;
  }
}

}  // namespace ir
}  // namespace distir
