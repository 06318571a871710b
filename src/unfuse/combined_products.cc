// Separates products that were combined into one and are split behind it.
#include "unfuse/combined_products.h"

#include <functional>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "dialect/operators/annotation.h"
#include "ir/build.h"
#include "ir/operator_attrs.h"
#include "ir/report.h"
#include "ir/rewriter.h"
#include "ir/symbolic.h"
#include "rules/factor/axes.h"
#include "rules/operator.h"
#include "rules/stated/user_rules.h"
#include "rules/tir/resized_kernels.h"
#include "rules/tir/rule.h"
#include "unfuse/new_kernels.h"
#include "unfuse/pass.h"
#include "unfuse/statements.h"
#include "unfuse/values.h"

namespace distir::unfuse {

namespace {

/*! \brief The size of the last dimension; 1 for a number, -1 where it is not known. */
int64_t WidthOf(const ir::Expr& value) {
  const ir::TensorType type = TypeOf(value);
  if (!type.defined()) return -1;
  return type.ndim() == 0 ? 1 : ir::StaticDim(ir::ShapeOf(type)[type.ndim() - 1]);
}

/*! \brief True if an attribute names the last dimension of a value, alone. */
bool IsLast(const ffi::Any& axis, const ir::Expr& value) {
  const ir::TensorType type = TypeOf(value);
  if (!type.defined() || type.ndim() == 0) return false;
  auto axes = rules::ReadAxes(axis, type.ndim());
  return axes && axes->size() == 1 && (*axes)[0] == type.ndim() - 1;
}

/*! \brief Tensors that a call takes: those of a kernel are in a tuple. */
ffi::Array<ir::Expr> OperandsOf(const ir::Call& call) {
  if (!rules::KernelTable::IsKernelCall(call.op())) return call.args();
  return ir::Tuple::Cast(call.args()[1]).fields();
}

/*! \brief The kernels of a module, and those for fewer columns. */
struct Kernels {
  explicit Kernels(const ir::IRModule& mod)
      : known(mod), rules(mod.functions()), resized(mod.functions(), "cut") {}

  NewKernels known;
  rules::KernelTable rules;
  rules::ResizedKernels resized;
};

class CombinedProducts {
 public:
  CombinedProducts(const ir::Function& function, Kernels* kernels);

  bool empty() const { return found_.empty(); }
  /*! \brief True if a binding is R.split behind such a product. */
  bool IsSplit(const ir::Var& var) const { return found_.count(var.get()) > 0; }
  /*! \brief True if nothing uses a binding once its splits are replaced. */
  bool IsUnused(const ir::Var& var) const { return unused_.count(var.get()) > 0; }

  using Emit = std::function<ir::Expr(const ir::Expr&)>;  // binds a value; gives the variable
  /*! \brief The values that a split gives, in terms of the function's variables. */
  std::vector<ir::Expr> Write(const ir::Var& split, const Emit& emit) const;

 private:
  /*! \brief A split: of what, and how many elements of the last dimension each value has. */
  struct Split {
    ir::Expr value;
    std::vector<int64_t> widths;
    bool has_product = false;
    std::vector<ir::Var> chain = {};  // what is used for it
  };
  /*! \brief Operands of a call that are made part by part. */
  struct Joined {
    std::vector<bool> operands;  // of OperandsOf
    bool is_product = false;
    int factor = -1;  // of a kernel
  };

  std::optional<Split> ReadSplit(const ir::Call& call);
  /*! \brief True if the last dimension of a value is made part by part. */
  bool IsJoined(const ir::Expr& value, Split* split);
  bool IsConcatOf(const ir::Call& call, const Split& split) const;
  /*! \brief Operands to join so that the result of a call is joined; nullopt if joining them does
   * not do it. */
  std::optional<Joined> ReadJoined(const ir::Call& call) const;
  std::optional<Joined> ReadJoinedKernel(const ir::Call& call) const;
  ir::Expr PartOf(const ir::Expr& value, size_t part, const Split& split, const Emit& emit) const;
  ir::Call CallOf(const ir::Expr& value) const;

  Kernels& kernels_;
  std::unordered_map<const ffi::Object*, ir::Call> calls_;  // by variable
  std::unordered_map<const ffi::Object*, int> num_uses_;
  std::unordered_map<const ffi::Object*, Split> found_;
  std::unordered_set<const ffi::Object*> unused_;
};

CombinedProducts::CombinedProducts(const ir::Function& function, Kernels* kernels)
    : kernels_(*kernels) {
  std::vector<std::pair<ir::Var, ir::Call>> splits;
  ir::VisitBindings(function.body(), [&](const ir::Binding& binding) {
    const ir::Call call = ir::BoundCall(binding);
    if (call.defined() && ir::IsOp(call.op(), "relax.split"))
      splits.emplace_back(binding.var(), call);
  });
  if (splits.empty()) return;
  ir::VisitBindings(function.body(), [this](const ir::Binding& binding) {
    const ir::Call call = ir::BoundCall(binding);
    if (call.defined()) calls_.emplace(binding.var().get(), call);
  });
  num_uses_ = ir::CountUses(function);
  for (const auto& [var, call] : splits) {
    std::optional<Split> split = ReadSplit(call);
    if (!split || !IsJoined(split->value, &*split) || !split->has_product) continue;
    for (const ir::Var& used : split->chain) unused_.insert(used.get());
    found_.emplace(var.get(), std::move(*split));
  }
}

std::optional<CombinedProducts::Split> CombinedProducts::ReadSplit(const ir::Call& call) {
  Split split{call.args()[0], {}};
  auto parts = ir::TupleType::Cast(call.ty());
  if (!parts.defined() || !IsLast(ir::attrs::kSplitAxis(call.attrs()), split.value))
    return std::nullopt;
  for (const ir::Type& part : parts.fields()) {
    auto type = ir::TensorType::Cast(part);
    if (!type.defined() || !ir::HasKnownShape(type)) return std::nullopt;
    split.widths.push_back(ir::StaticDim(ir::ShapeOf(type)[type.ndim() - 1]));
    if (split.widths.back() <= 0) return std::nullopt;
  }
  return split;
}

ir::Call CombinedProducts::CallOf(const ir::Expr& value) const {
  auto found = calls_.find(value.get());
  return found == calls_.end() ? ir::Call() : found->second;
}

bool CombinedProducts::IsJoined(const ir::Expr& value, Split* split) {
  const ir::Call call = CallOf(value);
  // A value with other uses would be computed twice; a DTensor is decided already.
  if (!call.defined() || !ir::TensorType::Is(value.ty()) || num_uses_[value.get()] != 1)
    return false;
  split->chain.push_back(ir::Var::Cast(value));
  if (ir::IsOp(call.op(), "relax.concat")) return IsConcatOf(call, *split);
  const std::optional<Joined> joined = ReadJoined(call);
  if (!joined) return false;
  split->has_product = split->has_product || joined->is_product;
  const ffi::Array<ir::Expr> operands = OperandsOf(call);
  bool any = false;
  for (size_t i = 0; i < operands.size(); ++i) {
    if (!joined->operands[i]) continue;
    any = true;
    if (!IsJoined(operands[i], split)) return false;
  }
  return any;
}

bool CombinedProducts::IsConcatOf(const ir::Call& call, const Split& split) const {
  auto fields = ir::Tuple::Cast(call.args()[0]);
  if (!fields.defined() || fields.fields().size() != split.widths.size() ||
      !IsLast(ir::attrs::kConcatAxis(call.attrs()), fields.fields()[0]))
    return false;
  for (size_t i = 0; i < split.widths.size(); ++i) {
    if (WidthOf(fields.fields()[i]) != split.widths[i]) return false;
  }
  return true;
}

std::optional<CombinedProducts::Joined> CombinedProducts::ReadJoined(const ir::Call& call) const {
  if (rules::KernelTable::IsKernelCall(call.op())) return ReadJoinedKernel(call);
  if (ir::IsOp(call.op(), "relax.matmul")) {
    const ir::TensorType matrix = TypeOf(call.args()[1]);
    if (!matrix.defined() || matrix.ndim() < 2) return std::nullopt;
    return Joined{{false, true}, true};
  }
  const rules::Operator* record = rules::FindOperator(call.op());
  // An annotation is of all parts together.
  if (record == nullptr || !record->is_elementwise || dialect::IsAnnotation(call))
    return std::nullopt;
  Joined joined;
  for (const ir::Expr& arg : call.args())
    joined.operands.push_back(IsTensor(arg) && WidthOf(arg) != 1);
  return joined;
}

std::optional<CombinedProducts::Joined> CombinedProducts::ReadJoinedKernel(
    const ir::Call& call) const {
  if (!KernelOf(call, kernels_.known).defined()) return std::nullopt;
  const rules::KernelRule& kernel = *kernels_.rules.Find(call);
  const ir::NodeArray<ir::Var>& params = kernel.function.params();
  const size_t num_operands = params.size() - 1;
  if (!kernel.failure.empty() || !kernel.is_written[num_operands] ||
      rules::StatedRule(rules::KernelName(call), kernel.function))
    return std::nullopt;
  // Of the result, the factor is all of the last dimension; so it is where operands have it.
  const auto place_of = [&kernel](const ir::Var& param, int factor) {
    const rules::TensorFactors& dims = kernel.buffers.at(param.get());
    int64_t found = 0, last = 0;
    for (size_t d = 0; d < dims.size(); ++d) {
      for (int f : dims[d]) {
        if (f != factor) continue;
        ++found;
        last += d + 1 == dims.size() && dims[d].size() == 1;
      }
    }
    return std::make_pair(found, last);
  };
  const rules::TensorFactors& result = kernel.buffers.at(params[num_operands].get());
  if (result.empty() || result.back().size() != 1) return std::nullopt;
  Joined joined;
  joined.factor = result.back()[0];
  const rules::Factor& factor = kernel.factors[joined.factor];
  if (!factor.Is<rules::ParallelFactor>() || !factor.may_be_uneven ||
      place_of(params[num_operands], joined.factor) != std::make_pair<int64_t, int64_t>(1, 1))
    return std::nullopt;
  for (size_t i = 0; i < num_operands; ++i) {
    if (kernel.is_written[i]) return std::nullopt;
    const bool is_tensor = ir::BufferType::Is(params[i].ty());
    const auto [found, last] =
        is_tensor ? place_of(params[i], joined.factor) : std::pair<int64_t, int64_t>();
    if (found > 1 || found != last) return std::nullopt;
    joined.operands.push_back(found == 1);
  }
  joined.is_product = HasReduction(kernel.function.body());
  return joined;
}

std::vector<ir::Expr> CombinedProducts::Write(const ir::Var& var, const Emit& emit) const {
  const Split& split = found_.at(var.get());
  std::vector<ir::Expr> parts;
  for (size_t i = 0; i < split.widths.size(); ++i)
    parts.push_back(PartOf(split.value, i, split, emit));
  return parts;
}

ir::Expr CombinedProducts::PartOf(const ir::Expr& value, size_t part, const Split& split,
                                  const Emit& emit) const {
  const ir::Call call = CallOf(value);
  if (ir::IsOp(call.op(), "relax.concat")) return ir::Tuple::Cast(call.args()[0]).fields()[part];
  const std::optional<Joined> joined = ReadJoined(call);
  ffi::Array<ir::Expr> operands = OperandsOf(call);
  for (size_t i = 0; i < operands.size(); ++i) {
    if (joined->operands[i]) operands.Set(i, PartOf(operands[i], part, split, emit));
  }
  if (joined->factor >= 0) {
    const auto name = ir::GlobalVar::Cast(call.args()[0]);
    const ir::TensorType whole = TypeOf(value);
    ffi::Array<ir::Expr> shape = ir::ShapeOf(whole);
    shape.Set(shape.size() - 1, ir::MakeInt(split.widths[part]));
    const ir::GlobalVar kernel = kernels_.resized.Resized(name, *kernels_.rules.Find(call),
                                                          {{joined->factor, split.widths[part]}});
    return emit(MakeKernelCall(call, kernel, operands, ir::MakeTensorType(shape, whole)));
  }
  const ir::Call made =
      ir::MakeCall(call.ty(), call.op(), operands, call.attrs(), call.ty_args(), call.span());
  return emit(Typed(made));
}

class Separator : public ir::FunctionRewriter {
 public:
  Separator(const ir::Function& function, Kernels* kernels) : products_(function, kernels) {}

  /*! \brief The function; null where it has no combined products. */
  ir::Function Run(const ir::Function& function) {
    return products_.empty() ? ir::Function() : RewriteFunction(function);
  }

 private:
  void RewriteVarBinding(const ir::Var& var, const ir::Expr& value) override {
    if (products_.IsUnused(var)) return;
    if (!products_.IsSplit(var)) return FunctionRewriter::RewriteVarBinding(var, value);
    ir::Count("products");
    Credit(kPass, "relax.split", var);
    ffi::Array<ir::Expr> parts;
    for (const ir::Expr& part : products_.Write(
             var, [&](const ir::Expr& made) { return Emit(var.name(), Rewrite(made)); }))
      parts.push_back(Rewrite(part));
    if (ir::DataflowVar::Is(var)) {
      Replace(var, ir::MakeTuple(parts));
    } else {
      Bind(var, ir::MakeTuple(parts));
    }
  }

  const CombinedProducts products_;
};

}  // namespace

ir::IRModule SeparateProducts(const ir::IRModule& mod) {
  Kernels kernels(mod);
  const ir::IRModule separated =
      ir::RewriteFunctions(mod, [&kernels](const ir::Function& function) {
        return Separator(function, &kernels).Run(function);
      });
  return WithKernels(separated, kernels.resized.made());
}

}  // namespace distir::unfuse
