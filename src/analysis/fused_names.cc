// Restores the names of variables that TVM's FuseOps renumbers, by matching the results of fused
// groups before and after.
#include "analysis/fused_names.h"

#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "ir/build.h"
#include "ir/rewriter.h"

namespace distir::analysis {

namespace ffi = tvm::ffi;

namespace {

/*! \brief A value of the module in front of fusion: a parameter or a binding, by number, or several
 * of them in a tuple; -1 where it is not known. */
struct Value {
  int number = -1;
  std::vector<Value> fields;
};

using Values = std::unordered_map<const ffi::Object*, Value>;

/*! \brief Callee and operands of a value as text: equal for equal calls. */
class Keys {
 public:
  explicit Keys(const Values* values) : values_(*values) {}

  std::string Of(const ir::Expr& expr) {
    if (ir::Var::Is(expr)) {
      auto found = values_.find(expr.get());
      return found == values_.end() ? "?" : Text(found->second);
    }
    std::string text;
    if (auto call = ir::Call::Cast(expr); call.defined()) {
      text = Callee(call.op()) + "(";
      for (const ir::Expr& arg : call.args()) text += Of(arg) + ",";
      return text + ")";
    }
    if (auto tuple = ir::Tuple::Cast(expr); tuple.defined()) {
      text = "[";
      for (const ir::Expr& field : tuple.fields()) text += Of(field) + ",";
      return text + "]";
    }
    if (auto global = ir::GlobalVar::Cast(expr); global.defined()) return "@" + global.name();
    if (auto constant = ir::Constant::Cast(expr); constant.defined())
      return "c" + std::to_string(reinterpret_cast<uintptr_t>(constant.get()));
    return std::string(expr.GetTypeKey());
  }

 private:
  static std::string Callee(const ir::Expr& op) {
    if (auto global = ir::GlobalVar::Cast(op); global.defined()) return "@" + global.name();
    if (auto registered = ir::Op::Cast(op); registered.defined()) return registered.name();
    if (auto packed = ir::ExternFunc::Cast(op); packed.defined()) return packed.name();
    return "?";
  }

  static std::string Text(const Value& value) {
    if (value.fields.empty()) return std::to_string(value.number);
    std::string text = "[";
    for (const Value& field : value.fields) text += Text(field) + ",";
    return text + "]";
  }

  const Values& values_;
};

/*! \brief Reads values off bindings. */
class ValueReader {
 public:
  virtual ~ValueReader() = default;

  Value Of(const ir::Expr& expr) {
    if (ir::Var::Is(expr)) {
      auto found = values_.find(expr.get());
      return found == values_.end() ? Value() : found->second;
    }
    if (auto tuple = ir::Tuple::Cast(expr); tuple.defined()) {
      Value value;
      for (const ir::Expr& field : tuple.fields()) value.fields.push_back(Of(field));
      return value;
    }
    if (auto item = ir::TupleGetItem::Cast(expr); item.defined()) {
      const Value tuple = Of(item.tuple());
      if (!tuple.fields.empty()) return tuple.fields[item.index()];
    }
    return Computed(expr);
  }

 protected:
  /*! \brief The value of a call, or a field of what one gives. */
  virtual Value Computed(const ir::Expr& expr) = 0;

  std::string KeyOf(const ir::Expr& expr) {
    if (auto item = ir::TupleGetItem::Cast(expr); item.defined())
      return Keys(&values_).Of(item.tuple()) + "." + std::to_string(item.index());
    return Keys(&values_).Of(expr);
  }

  Values values_;
};

/*! \brief The function in front of fusion. */
class Numbered : public ValueReader {
 public:
  explicit Numbered(const ir::Function& function) {
    for (const ir::Var& param : function.params()) values_[param.get()] = {New(param), {}};
    ir::VisitBindings(function.body(), [this](const ir::Binding& binding) {
      auto bound = ir::VarBinding::Cast(binding);
      current_ = binding.var();
      values_[binding.var().get()] = bound.defined() ? Of(bound.value()) : Value{New(current_), {}};
    });
  }

  /*! \brief The next value that is computed so; -1 where there is none. */
  int Find(const std::string& key) {
    auto found = by_key_.find(key);
    if (found == by_key_.end()) return -1;
    const int number = found->second.front();
    // Equal calls are met in the order in which they stand.
    if (found->second.size() > 1) found->second.pop_front();
    return number;
  }

  const ir::Var& At(int number) const { return vars_[number]; }

 private:
  Value Computed(const ir::Expr& expr) override {
    const std::string key = KeyOf(expr);
    const int number = New(current_);
    by_key_[key].push_back(number);
    return {number, {}};
  }

  int New(const ir::Var& var) {
    vars_.push_back(var);
    return static_cast<int>(vars_.size()) - 1;
  }

  ir::Var current_;
  std::vector<ir::Var> vars_;
  std::unordered_map<std::string, std::deque<int>> by_key_;
};

/*! \brief The function behind fusion. */
class Fused : public ValueReader {
 public:
  Fused(Numbered* before, const ir::FunctionMap& functions, const ir::Function& function)
      : before_(*before), functions_(functions) {
    for (size_t i = 0; i < function.params().size(); ++i)
      values_[function.params()[i].get()] = {static_cast<int>(i), {}};
    ir::VisitBindings(function.body(), [this](const ir::Binding& binding) { Read(binding, true); });
  }

  /*! \brief Earlier name of each variable. */
  const std::unordered_map<const ffi::Object*, ffi::String>& names() const { return names_; }

 private:
  void Read(const ir::Binding& binding, bool is_outside) {
    auto bound = ir::VarBinding::Cast(binding);
    if (!bound.defined()) return;
    const Value value = Of(bound.value());
    values_[binding.var().get()] = value;
    if (is_outside && value.number >= 0)
      names_.emplace(binding.var().get(), before_.At(value.number).name());
  }

  Value Computed(const ir::Expr& expr) override {
    if (auto call = ir::Call::Cast(expr); call.defined()) {
      auto callee = ir::GlobalVar::Cast(call.op());
      auto found = callee.defined() ? functions_.find(callee) : functions_.end();
      if (found != functions_.end()) {
        auto group = ir::Function::Cast((*found).second);
        if (group.defined() && ir::GetAttr(group.attrs(), "Primitive") != nullptr)
          return OfGroup(call, group);
      }
    }
    return {before_.Find(KeyOf(expr)), {}};
  }

  Value OfGroup(const ir::Call& call, const ir::Function& group) {
    for (size_t i = 0; i < group.params().size() && i < call.args().size(); ++i)
      values_[group.params()[i].get()] = Of(call.args()[i]);
    ir::VisitBindings(group.body(), [this](const ir::Binding& binding) { Read(binding, false); });
    return Of(group.body().body());
  }

  Numbered& before_;
  const ir::FunctionMap& functions_;
  std::unordered_map<const ffi::Object*, ffi::String> names_;
};

class Renamer : public ir::FunctionRewriter {
 public:
  explicit Renamer(const std::unordered_map<const ffi::Object*, ffi::String>& names)
      : names_(names) {}

 private:
  ffi::String NameFor(const ir::Var& var) override {
    auto found = names_.find(var.get());
    return found == names_.end() ? var.name() : found->second;
  }

  const std::unordered_map<const ffi::Object*, ffi::String>& names_;
};

}  // namespace

ir::IRModule WithNamesOf(const ir::IRModule& before, const ir::IRModule& fused) {
  std::unordered_map<std::string, ir::Function> functions;
  for (const auto& [name, function] : before.functions()) {
    if (auto relax = ir::Function::Cast(function); relax.defined())
      functions.emplace(name.name(), relax);
  }
  ir::FunctionMap renamed;
  for (const auto& [name, function] : fused.functions()) {
    auto found = functions.find(name.name());
    auto relax = ir::Function::Cast(function);
    if (!relax.defined() || found == functions.end()) {
      renamed.Set(name, function);
      continue;
    }
    Numbered numbered(found->second);
    const Fused values(&numbered, fused.functions(), relax);
    renamed.Set(name, Renamer(values.names()).RewriteFunction(relax));
  }
  return ir::MakeModule(renamed, fused.attrs(), fused.global_infos());
}

}  // namespace distir::analysis
