// Separates batch dimensions that frontends merge for batched products.
#include "propagation/batch_dims.h"

#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ir/build.h"
#include "ir/operator_attrs.h"
#include "ir/rewriter.h"
#include "ir/symbolic.h"
#include "rules/factor/axes.h"
#include "rules/operator.h"

namespace distir::propagation {

namespace ffi = tvm::ffi;

namespace {

using Dims = std::vector<ir::Expr>;

bool SameDims(const Dims& a, const Dims& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!ir::SameDim(a[i], b[i])) return false;
  }
  return true;
}

/*! \brief The shape of a tensor that is not placed yet; empty if it is not known, or placed. */
Dims KnownShape(const ir::Expr& value) {
  ir::TensorType type = ir::TensorType::Cast(value.ty());
  if (!type.defined() || !ir::HasKnownShape(type)) return {};
  const ir::NodeArray<ir::Expr>& dims = ir::ShapeOf(type);
  return Dims(dims.begin(), dims.end());
}

/*!
 * \brief The first dimensions of `from`, those of size 1 left out, that a reshape to `to` makes its
 * first one of three: (4, 8, n, k) to (32, n, k) merges {4, 8}. Empty if there are none or only
 * one.
 */
Dims MergedDims(const Dims& from, const Dims& to) {
  Dims merged;
  for (const ir::Expr& dim : from) {
    if (ir::StaticDim(dim) == 1) continue;
    merged.push_back(dim);
    if (!ir::SameDim(ir::Product(merged), to[0])) continue;
    return merged.size() > 1 ? merged : Dims{};
  }
  return {};
}

bool IsSoftmax(const ir::Call& call) {
  return ir::IsOp(call.op(), "relax.nn.softmax") || ir::IsOp(call.op(), "relax.nn.log_softmax");
}

/*! \brief True if a call computes every element of the first of three dimensions alone. */
bool KeepsFirstDim(const ir::Call& call) {
  if (IsSoftmax(call))
    return rules::NormalizeAxis(ir::attrs::kSoftmaxAxis.Int(call.attrs(), -1), 3) != 0;
  const rules::Operator* record = rules::FindOperator(call.op());
  return record != nullptr && record->is_elementwise;
}

/*! \brief True if an operand is alike for everything that its first of three dimensions counts. */
bool IsBroadcast(const ir::Expr& operand) {
  if (!ir::TensorType::Is(operand.ty())) return !ir::DTensorType::Is(operand.ty());
  Dims dims = KnownShape(operand);
  if (dims.empty()) return ir::TensorType::Cast(operand.ty()).ndim() == 0;
  return dims.size() < 3 || (dims.size() == 3 && ir::StaticDim(dims[0]) == 1);
}

/*! \brief A variable whose first dimension consists of several. */
struct Merged {
  Dims batch;          // what it consists of
  ir::Expr source;     // of a reshape: what it reshapes in the end; of other calls: null
  int other_uses = 0;  // by what needs the dimensions merged
};

/*! \brief Rewrites to make. */
struct Plan {
  std::unordered_map<const ffi::Object*, Merged> merged;  // by variable
  std::unordered_set<const ffi::Object*> rewritten;       // variables of calls
  // By variable of a call that is no reshape: which of its operands are written apart.
  std::unordered_map<const ffi::Object*, std::vector<bool>> apart;
  bool has_products = false;
};

/*! \brief Finds the products of a function and who needs their dimensions merged. */
class Search {
 public:
  explicit Search(const ir::Function& function) {
    Scan(function.body());
    if (!plan_.has_products) return;
    std::unordered_map<const ffi::Object*, int> uses = ir::CountUses(function);
    for (auto& [var, merged] : plan_.merged) merged.other_uses += uses[var];
  }

  Plan Take() { return std::move(plan_); }

 private:
  void Scan(const ir::SeqExpr& seq) {
    for (const ir::BindingBlock& block : seq.blocks()) {
      open_.clear();  // a block's variables may not be seen behind it
      for (const ir::Binding& binding : block.bindings()) {
        ir::VarBinding bound = ir::VarBinding::Cast(binding);
        if (!bound.defined()) continue;
        if (auto call = ir::Call::Cast(bound.value()); call.defined()) {
          ScanCall(binding.var(), call);
        } else if (auto branch = ir::If::Cast(bound.value()); branch.defined()) {
          Scan(branch.true_branch());
          Scan(branch.false_branch());
          open_.clear();
        }
      }
    }
  }

  void ScanCall(const ir::Var& var, const ir::Call& call) {
    if (ir::IsOp(call.op(), "relax.reshape")) {
      const ir::Expr& argument = call.args()[0];
      Dims to = KnownShape(var);
      Dims batch = to.size() == 3 ? MergedDims(KnownShape(argument), to) : Dims();
      ir::Expr source = argument;
      if (Merged* merged = Find(argument); merged != nullptr) {
        Use(var, merged);
        if (merged->source.defined()) source = merged->source;
        bool stays = !to.empty() && ir::SameDim(to[0], KnownShape(argument)[0]);
        if (to.size() == 3 && stays) batch = merged->batch;
      }
      if (!batch.empty()) Add(var, Merged{std::move(batch), source});
    } else if (ir::IsOp(call.op(), "relax.matmul")) {
      Merged* a = Find(call.args()[0]);
      Merged* b = Find(call.args()[1]);
      if (a == nullptr || b == nullptr || !SameDims(a->batch, b->batch)) return;
      plan_.has_products = true;
      WriteApart(var, a->batch, {a, b});
    } else if (!open_.empty() && KeepsFirstDim(call)) {
      ScanBetween(var, call);
    }
  }

  /*! \brief A call between products, as the softmax of attention. */
  void ScanBetween(const ir::Var& var, const ir::Call& call) {
    std::vector<Merged*> operands;
    const Merged* first = nullptr;
    bool has_product = false;
    for (const ir::Expr& arg : call.args()) {
      Merged* merged = Find(arg);
      operands.push_back(merged);
      if (merged == nullptr) {
        if (!IsBroadcast(arg)) return;
        continue;
      }
      if (first != nullptr && !SameDims(first->batch, merged->batch)) return;
      first = first == nullptr ? merged : first;
      has_product = has_product || !merged->source.defined();
    }
    Dims result = KnownShape(var);
    if (has_product && result.size() == 3 && ir::SameDim(result[0], ir::Product(first->batch)))
      WriteApart(var, first->batch, operands);
  }

  /*! \brief Notes a call some operands of which are merged; null: others. */
  void WriteApart(const ir::Var& var, Dims batch, const std::vector<Merged*>& operands) {
    for (Merged* operand : operands) {
      if (operand != nullptr) Use(var, operand);
      plan_.apart[var.get()].push_back(operand != nullptr);
    }
    Add(var, Merged{std::move(batch), ir::Expr()});
  }

  Merged* Find(const ir::Expr& value) {
    return open_.count(value.get()) > 0 ? &plan_.merged.at(value.get()) : nullptr;
  }

  void Use(const ir::Var& user, Merged* merged) {
    --merged->other_uses;
    plan_.rewritten.insert(user.get());
  }

  void Add(const ir::Var& var, Merged merged) {
    plan_.merged.emplace(var.get(), std::move(merged));
    open_.insert(var.get());
  }

  Plan plan_;
  std::unordered_set<const ffi::Object*> open_;  // variables of the block that are merged
};

class Writer : public ir::FunctionRewriter {
 public:
  explicit Writer(Plan plan) : plan_(std::move(plan)) {}

 protected:
  void RewriteVarBinding(const ir::Var& var, const ir::Expr& value) override {
    auto merged = plan_.merged.find(var.get());
    bool is_needed = merged == plan_.merged.end() || merged->second.other_uses > 0;
    if (plan_.rewritten.count(var.get()) == 0) {
      if (is_needed) ir::FunctionRewriter::RewriteVarBinding(var, value);
      return;
    }
    ir::Call call = ir::Call::Cast(value);
    ir::TensorType type = ir::TensorType::Cast(var.ty());
    if (ir::IsOp(call.op(), "relax.reshape")) {
      if (is_needed) Bind(var, Reshape(Origin(call.args()[0]), KnownShape(var), type));
      return;
    }
    const Dims& batch = merged->second.batch;
    const std::vector<bool>& apart = plan_.apart.at(var.get());
    ffi::Array<ir::Expr> args;
    for (size_t i = 0; i < apart.size(); ++i)
      args.push_back(apart[i] ? Separate(call.args()[i], batch) : Rewrite(call.args()[i]));
    ir::Node attrs = call.attrs();
    if (IsSoftmax(call)) {
      const int64_t axis = rules::NormalizeAxis(ir::attrs::kSoftmaxAxis.Int(attrs, -1), 3);
      attrs = ir::WithField(attrs, "axis", axis + static_cast<int64_t>(batch.size()) - 1);
    }
    ir::Type separate = ir::MakeTensorType(WithBatch(batch, KnownShape(var)), type);
    ir::Call product = ir::MakeCall(separate, call.op(), args, attrs, call.ty_args(), call.span());
    if (is_needed) {
      separate_[var.get()] = Emit(std::string(var.name()) + "_batches", product);
      Bind(var, Reshape(separate_[var.get()], KnownShape(var), type));
    } else {
      separate_[var.get()] = Bind(var, product);
    }
  }

 private:
  /*! \brief The value that reshapes have led to this one from. */
  ir::Expr Origin(const ir::Expr& value) {
    auto merged = plan_.merged.find(value.get());
    ir::Expr source = merged != plan_.merged.end() && merged->second.source.defined()
                          ? merged->second.source
                          : value;
    auto product = separate_.find(source.get());
    return product == separate_.end() ? Rewrite(source) : product->second;
  }

  /*! \brief An operand of a call with its batch dimensions apart. */
  ir::Expr Separate(const ir::Expr& operand, const Dims& batch) {
    ffi::Array<ir::Expr> shape = WithBatch(batch, KnownShape(operand));
    ir::Expr origin = Origin(operand);
    Dims dims(shape.begin(), shape.end());
    if (SameDims(KnownShape(origin), dims)) return origin;
    std::string name = std::string(ir::Var::Cast(operand).name()) + "_batches";
    return Emit(name, Reshape(origin, dims, ir::TensorType::Cast(operand.ty())));
  }

  static ffi::Array<ir::Expr> WithBatch(const Dims& batch, const Dims& merged) {
    ffi::Array<ir::Expr> shape(batch.begin(), batch.end());
    for (size_t i = 1; i < merged.size(); ++i) shape.push_back(merged[i]);
    return shape;
  }

  static ir::Call Reshape(const ir::Expr& value, const Dims& dims, const ir::TensorType& like) {
    ffi::Array<ir::Expr> shape(dims.begin(), dims.end());
    return ir::MakeOpCall(ir::MakeTensorType(shape, like), "relax.reshape",
                          {value, ir::MakeShape(shape)});
  }

  Plan plan_;
  std::unordered_map<const ffi::Object*, ir::Expr> separate_;  // by their variables, not merged
};

}  // namespace

ir::Function SeparateBatchDims(const ir::Function& function) {
  Plan plan = Search(function).Take();
  if (!plan.has_products) return function;
  ir::Function written = Writer(std::move(plan)).RewriteFunction(function);
  // The stated result type may know more than the body's.
  return ir::MakeFunction(written.params(), written.body(), function.ret_ty(), function.is_pure(),
                          function.attrs());
}

}  // namespace distir::propagation
