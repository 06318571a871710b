// Registers rules that users state, by name or as a kernel attribute.
#include "rules/stated/user_rules.h"

#include <tvm/ffi/error.h>

#include <map>
#include <memory>

#include "ir/build.h"
#include "support/error.h"
#include "support/functions.h"

namespace distir::rules {

namespace {

using Rules = std::map<std::string, std::unique_ptr<RuleText>>;

Rules& UserRules() {
  static Rules rules;
  return rules;
}

Rules& OwnRules() {
  static Rules rules;
  return rules;
}

}  // namespace

void EnterRuleOfFunction(const std::string& name, const std::string& rule) {
  OwnRules()[name] = std::make_unique<RuleText>(ParseRule(name, rule));
}

const RuleText* FindUserRule(const ir::Call& call) {
  if (!ir::Op::Is(call.op()) && !ir::ExternFunc::Is(call.op())) return nullptr;
  for (const Rules* rules : {&UserRules(), &OwnRules()}) {
    if (rules->empty()) continue;
    auto found = rules->find(ir::CalleeName(call));
    if (found != rules->end()) return found->second.get();
  }
  return nullptr;
}

std::optional<RuleText> StatedRule(const std::string& name, const ir::PrimFunc& function) {
  ffi::Any value = ir::GetAttr(function.attrs(), kRuleAttribute);
  if (value == nullptr) return std::nullopt;
  auto text = value.as<ffi::String>();
  DISTIR_REQUIRE(text.has_value(), ValueError)
      << "attribute " << kRuleAttribute << " of kernel `" << name << "` is not a string";
  return ParseRule("kernel `" + name + "`", *text);
}

namespace {

TVM_FFI_STATIC_INIT_BLOCK() {
  support::Functions()
      .def("distir.rules.Register",
           [](const ffi::String& name, const ffi::String& text) {
             UserRules()[name] = std::make_unique<RuleText>(ParseRule(name, text));
           })
      .def("distir.rules.Unregister",
           [](const ffi::String& name) { return UserRules().erase(name) > 0; })
      .def("distir.rules.Registered", [] {
        ffi::Map<ffi::String, ffi::String> rules;
        for (const auto& [name, rule] : UserRules()) rules.Set(name, rule->text);
        return rules;
      });
}

}  // namespace

}  // namespace distir::rules
