// Caches rules of calls by operator, attributes, shapes and dtypes.
#include "rules/call/known_rules.h"

#include "ir/build.h"
#include "ir/symbolic.h"
#include "rules/operator.h"
#include "rules/registry.h"
#include "rules/stated/user_rules.h"

namespace distir::rules {

namespace {

/*! \brief Writes what a rule may depend on into a key; `held` has what only the key names. */
class KeyWriter {
 public:
  KeyWriter(const Operator& record, Words* key, std::vector<ffi::Any>* held)
      : record_(record), key_(*key), held_(*held) {}

  void AddCall(const ir::Call& call, const ir::Type& result_ty) {
    key_.clear();
    held_.clear();
    Add(Address(call.op().get()));
    AddAttrs(call.attrs());
    for (const ir::Expr& arg : call.args()) AddArgument(arg);
    AddType(result_ty, result_ty.get());
  }

 private:
  enum Kind : int64_t { kValue, kConstant, kTuple, kShape, kNumber, kOther, kTensor, kText };

  void Add(int64_t word) { key_.push_back(word); }

  void AddArgument(const ir::Expr& arg) {
    if (ir::Var::Is(arg) || ir::TupleGetItem::Is(arg)) {
      Add(kValue);
      AddType(arg.ty(), arg.get());
    } else if (ir::Constant::Is(arg)) {
      Add(kConstant);
      AddType(arg.ty(), arg.get());
      // An elementwise rule follows from the shapes, whatever the numbers are.
      if (!record_.is_elementwise) Add(Address(arg.get()));
    } else if (const ir::Tuple* tuple = ir::Tuple::As(arg)) {
      Add(kTuple);
      Add(static_cast<int64_t>(tuple->fields().size()));
      for (const ir::Expr& field : tuple->fields()) AddArgument(field);
    } else if (const ir::ShapeExpr* shape = ir::ShapeExpr::As(arg)) {
      Add(kShape);
      AddDims(shape->values());
    } else {
      AddDim(arg);
    }
  }

  /*! \param holder Tells a type that is no tensor. */
  void AddType(const ir::Type& type, const ffi::Object* holder) {
    if (const ir::TensorType* tensor = ir::TensorType::As(type)) {
      AddTensor(*tensor);
    } else if (const ir::DTensorType* dtensor = ir::DTensorType::As(type)) {
      AddTensor(dtensor->tensor_ty());
    } else if (const ir::TupleType* tuple = ir::TupleType::As(type)) {
      Add(kTuple);
      Add(static_cast<int64_t>(tuple->fields().size()));
      for (const ir::Type& field : tuple->fields()) AddType(field, holder);
    } else {
      Add(kOther);
      Add(Address(holder));
    }
  }

  void AddTensor(const ir::TensorType& type) {
    Add(kTensor);
    Add(Bits(type.dtype()));
    if (ir::HasKnownShape(type)) {
      AddDims(ir::ShapeOf(type));
    } else {
      Add(-1 - type.ndim());
      Add(Address(type.shape().get()));
    }
  }

  void AddDims(const ir::NodeArray<ir::Expr>& dims) {
    Add(static_cast<int64_t>(dims.size()));
    for (const ir::Expr& dim : dims) AddDim(dim);
  }

  void AddDim(const ir::Expr& dim) {
    const bool is_number = ir::IntImm::Is(dim);
    Add(is_number ? kNumber : kOther);
    Add(is_number ? ir::StaticDim(dim) : Address(dim.get()));
  }

  void AddAttrs(const ir::Node& attrs) {
    if (!attrs.defined()) return Add(-1);
    Add(attrs->type_index());
    ir::ForEachField(attrs, [this](const ffi::Any& value) { AddValue(value); });
  }

  void AddValue(const ffi::Any& value) {
    if (auto list = value.as<ffi::Array<ffi::Any>>()) {
      Add(kTuple);
      Add(static_cast<int64_t>(list->size()));
      for (const ffi::Any& each : *list) AddValue(each);
    } else if (auto text = value.as<ffi::String>()) {
      Add(kText);
      Add(static_cast<int64_t>(text->size()));
      for (size_t i = 0; i < text->size(); ++i) Add(text->data()[i]);
    } else if (auto object = value.as<ffi::ObjectRef>(); object && ir::IntImm::Is(*object)) {
      Add(kNumber);
      Add(ir::StaticDim(ir::IntImm::Cast(*object)));
    } else {
      // A plain value by its bytes, an object by its address.
      const TVMFFIAny raw = ffi::AnyView(value).CopyToTVMFFIAny();
      Add(kOther);
      Add(raw.type_index);
      Add(raw.v_int64);
      if (object) held_.push_back(value);
    }
  }

  const Operator& record_;
  Words& key_;
  std::vector<ffi::Any>& held_;
};

}  // namespace

const FactorRule* KnownRules::Of(const ir::Call& call, const ir::Type& result_ty,
                                 KernelTable* kernels, const std::string* function) {
  auto make = [&] {
    OpView view = ViewCall(call, result_ty, kernels);
    view.function = function;
    return rules_.Add(RuleOf(view));
  };
  const Operator* record = FindOperator(call.op());
  if (record == nullptr || !call.ty_args().empty() || FindUserRule(call) != nullptr) return make();
  KeyWriter(*record, &key_, &held_).AddCall(call, result_ty);
  auto found = known_.find(key_);
  if (found == known_.end())
    found = known_.emplace(key_, Entry{make(), call, result_ty, held_}).first;
  return found->second.rule;
}

}  // namespace distir::rules
