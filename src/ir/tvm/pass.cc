// Makes TVM passes of functions over modules, and prints warnings of the compiler.
#include "ir/tvm/pass.h"

#include <tvm/ffi/rvalue_ref.h>

#include <iostream>

#include "ir/module/normal_form.h"
#include "ir/module/well_formed.h"
#include "ir/report.h"
#include "support/escaped_text.h"

namespace distir::ir {

namespace {

const GlobalFunction kMakeModulePass("transform.MakeModulePass");
const GlobalFunction kPassInfo("transform.PassInfo");

constexpr int kOptLevel = 0;

// Errors of passes contain names of the program, which may be any text. TVM's own errors end with
// lines on where they were raised.
IRModule RunPass(const std::string& name, const std::function<IRModule(IRModule)>& transform,
                 const IRModule& mod) {
  try {
    CheckWellFormed(mod, name);
    return RunReported(name, NormalForm(mod), transform);
  } catch (const ffi::Error& error) {
    if (error.kind() == "InternalError") throw;
    throw ffi::Error(error.kind(), support::MessageText(error.message()), error.backtrace());
  }
}

}  // namespace

ffi::ObjectRef MakeModulePass(const std::string& name,
                              std::function<IRModule(IRModule)> transform) {
  ffi::Function run = ffi::Function::FromTyped(
      [name, transform](ffi::RValueRef<IRModule> mod, ffi::ObjectRef) -> IRModule {
        return RunPass(name, transform, *std::move(mod));
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

}  // namespace distir::ir
