// Registers operators, type inference and attributes in TVM's operator registry.
#include "ir/tvm/registration.h"

#include <unordered_map>

#include "ir/build.h"
#include "ir/tvm/functions.h"

namespace distir::ir {

namespace {

const GlobalFunction kRegisterOp("ir.RegisterOp");
const GlobalFunction kSetNumInputs("ir.OpSetNumInputs");
const GlobalFunction kAddArgument("ir.OpAddArgument");
const GlobalFunction kSetAttr("ir.OpSetAttr");
const GlobalFunction kListOpNames("ir.ListOpNames");

constexpr const char* kInferType = "FInferType";
constexpr const char* kInferDTensorType = "dist.FInferType";
constexpr int kDefaultLevel = 10;
constexpr int kOverUpstream = 15;  // upstream registers at the default level

/*! \brief BlockBuilder that asks for the type that this thread infers. */
thread_local const ffi::ObjectRef* asking_builder = nullptr;

class InferenceFor {
 public:
  explicit InferenceFor(const ffi::ObjectRef& builder) : outer_(asking_builder) {
    asking_builder = &builder;
  }
  ~InferenceFor() { asking_builder = outer_; }
  InferenceFor(const InferenceFor&) = delete;
  InferenceFor& operator=(const InferenceFor&) = delete;

 private:
  const ffi::ObjectRef* outer_;
};

void SetInfer(const std::string& op, const char* attr, InferType infer, int level) {
  ffi::Function function =
      ffi::Function::FromTyped([infer](Call call, ffi::ObjectRef builder) -> Type {
        InferenceFor inference(builder);
        return infer(call);
      });
  kSetAttr(GetOp(op), attr, function, level);
}

}  // namespace

IRModule ModuleOfInference() {
  if (asking_builder == nullptr || !asking_builder->defined()) return IRModule();
  return IRModule::Cast(functions::kContextModule(*asking_builder).cast<ffi::ObjectRef>());
}

void RegisterOp(const std::string& name, const std::string& description,
                const std::vector<const char*>& arguments, bool is_pure) {
  kRegisterOp(name, description);
  Op op = GetOp(name);
  kSetNumInputs(op, static_cast<int>(arguments.size()));
  for (const char* argument : arguments) kAddArgument(op, argument, "Tensor", "");
  kSetAttr(op, "FPurity", is_pure, kDefaultLevel);
}

void SetInferType(const std::string& op, InferType infer) {
  SetInfer(op, kInferType, infer, kOverUpstream);
}

void SetInferDTensorType(const std::string& op, InferType infer) {
  SetInfer(op, kInferDTensorType, infer, kOverUpstream);
}

namespace {

bool HasDTensor(const Type& type) {
  if (auto tuple = TupleType::Cast(type); tuple.defined()) {
    for (const Type& field : tuple.fields()) {
      if (HasDTensor(field)) return true;
    }
  }
  return DTensorType::Is(type);
}

}  // namespace

void SetInferDTensorTupleType(const std::string& op, InferType infer) {
  ffi::Function own = functions::kOpGetAttr(GetOp(op), kInferType).cast<ffi::Function>();
  ffi::Function function =
      ffi::Function::FromTyped([infer, own](Call call, ffi::ObjectRef builder) -> Type {
        InferenceFor inference(builder);
        for (const Expr& arg : call.args()) {
          if (HasDTensor(arg.ty())) return infer(call);
        }
        return own(call, builder).cast<Type>();
      });
  kSetAttr(GetOp(op), kInferType, function, kOverUpstream);
}

bool IsPureOp(const Expr& op) {
  if (!Op::Is(op)) return false;
  // Operators live as long as the process.
  static thread_local std::unordered_map<const ffi::Object*, bool> known;
  auto [it, is_new] = known.try_emplace(op.get(), false);
  if (is_new) it->second = functions::kOpGetAttr(op, "FPurity").as<bool>().value_or(false);
  return it->second;
}

bool HasAttr(const std::string& op, const char* attr) {
  return functions::kOpGetAttr(GetOp(op), attr) != nullptr;
}

std::vector<std::string> ListOpNames() {
  std::vector<std::string> names;
  for (const ffi::String& name : kListOpNames().cast<ffi::Array<ffi::String>>()) {
    names.push_back(static_cast<std::string>(name));
  }
  return names;
}

Type InferTensorType(const Call& call) {
  static thread_local ffi::Any builder = functions::kBlockBuilder(nullptr);
  ffi::Function infer = functions::kOpGetAttr(call.op(), kInferType).cast<ffi::Function>();
  return infer(call, builder).cast<Type>();
}

}  // namespace distir::ir
