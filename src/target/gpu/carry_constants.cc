// CarryConstants: a worker's runtime copies the constants of a program to its device.
//
//     Module.kernel(x, metadata["relax.expr.Constant"][0], alloc)
//     ->
//     constant = R.call_packed("distir.constant.0", ..)
//     Module.kernel(x, constant, alloc)
//
// TVM's virtual machine copies constants by itself when it is made: on the null stream of a GPU,
// with memory that the driver is asked for. Here they lie in a module of the runtime
// (runtime/session/constants.h), which the executable imports and which copies them on the stream
// of the worker, once for each machine.
//
// Runs last of all passes, so that no other one sees the calls.

#include "target/gpu/carry_constants.h"

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <string>
#include <unordered_map>

#include "ir/build.h"
#include "ir/rewriter.h"
#include "support/functions.h"

namespace distir::target {

namespace ffi = tvm::ffi;

namespace {

// Attribute with the modules that relax.build adds to an executable besides its code.
constexpr const char* kExternalModules = "external_mods";
const std::string kPrefix = "distir.constant.";

/*! \brief The constants of a module, each once; a constant's number is part of its name. */
struct Constants {
  std::string NameOf(const ffi::Tensor& value) {
    auto [found, is_new] = numbers.emplace(value.GetDLTensorPtr(), values.size());
    if (is_new) values.push_back(value);
    return kPrefix + std::to_string(found->second);
  }

  ffi::Array<ffi::Tensor> values;
  std::unordered_map<const DLTensor*, size_t> numbers;
};

class Carrier : public ir::FunctionRewriter {
 public:
  explicit Carrier(Constants* constants) : constants_(constants) {}

 private:
  bool KeepsUnchanged() const override { return true; }

  ir::Expr RewriteConstant(const ir::Constant& constant) override {
    if (!constant.IsTensor()) return constant;
    const std::string name = constants_->NameOf(constant.value().cast<ffi::Tensor>());
    return Emit("constant", ir::MakeCall(constant.ty(), ir::MakeExternFunc(name), {}, ir::Node(),
                                         {constant.ty()}));
  }

  Constants* constants_;
};

}  // namespace

ir::IRModule CarryConstants(const ir::IRModule& mod, int device_type) {
  static const ffi::Function make_module =
      ffi::Function::GetGlobalRequired("distir.runtime.constants");
  Constants constants;
  const ir::IRModule carried = ir::RewriteFunctions(mod, [&](const ir::Function& function) {
    return Carrier(&constants).RewriteFunction(function);
  });
  if (constants.values.empty()) return mod;
  ffi::Array<ffi::Any> modules;
  const ffi::Any others = ir::GetAttr(mod.attrs(), kExternalModules);
  if (const auto given = others.as<ffi::Array<ffi::Any>>(); given.has_value()) modules = *given;
  modules.push_back(make_module(kPrefix, constants.values, device_type));
  return ir::MakeModule(carried.functions(), ir::WithAttr(mod.attrs(), kExternalModules, modules),
                        carried.global_infos());
}

TVM_FFI_STATIC_INIT_BLOCK() {
  support::Functions().def("distir.target.CarryConstants", CarryConstants);
}

}  // namespace distir::target
