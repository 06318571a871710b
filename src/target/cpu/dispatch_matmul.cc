// DispatchMatmul: contractions of two tensors become calls of the runtime's einsum, which computes
// them by BLAS.
//
// Permutations of dimensions in front of a contraction, and one behind it, become part of its
// subscripts, so that BLAS reads and writes transposed matrices where they lie:
//
//     lv = R.permute_dims(w)
//     y = R.matmul(x, lv)
//     ->
//     y = R.call_dps_packed("distir.runtime.einsum", (x, w, R.str("ab,cb->ac")), ...)

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "ir/build.h"
#include "ir/operator_attrs.h"
#include "ir/report.h"
#include "ir/rewriter.h"
#include "ir/symbolic.h"
#include "rules/factor/axes.h"
#include "rules/factor/equation.h"
#include "target/cpu/passes.h"

namespace distir::target {

namespace ffi = tvm::ffi;

namespace {

const std::string kBuiltin = "distir.runtime.einsum";

// A product of fewer multiplications takes less time in a loop, fused with its neighbours.
constexpr int64_t kSmallestWork = 1024;

using Labels = rules::Labels;

/*! \brief result[..] = sum of operands[0][..] * operands[1][..]. */
struct Contraction {
  std::array<ir::Expr, 2> operands;
  std::array<Labels, 2> labels;
  Labels result;
};

// ---- which calls are contractions that BLAS computes

bool IsComputed(DLDataType dtype) {
  if (dtype.lanes != 1) return false;
  if (dtype.code == kDLBfloat) return dtype.bits == 16;
  return dtype.code == kDLFloat && (dtype.bits == 16 || dtype.bits == 32 || dtype.bits == 64);
}

/*! \brief True if the runtime computes with these dtypes: with float64 only where all are. */
bool AreComputed(const ir::TensorType& a, const ir::TensorType& b, const ir::TensorType& result) {
  bool any_double = false;
  bool all_double = true;
  for (const ir::TensorType& type : {a, b, result}) {
    if (!type.has_dtype() || !IsComputed(type.dtype())) return false;
    bool is_double = type.dtype().bits == 64;
    any_double = any_double || is_double;
    all_double = all_double && is_double;
  }
  return any_double == all_double;
}

/*! \brief Batch dimensions from the right, rows, columns; a vector has no rows or no columns. */
void LabelMatmul(int left_rank, int right_rank, Contraction* contraction) {
  constexpr int kRows = 0, kContracted = 1, kColumns = 2, kBatch = 3;
  auto batch_of = [](int rank, Labels* labels) {
    for (int d = rank - 3; d >= 0; --d) labels->push_back(kBatch + d);
  };
  batch_of(left_rank, &contraction->labels[0]);
  batch_of(right_rank, &contraction->labels[1]);
  batch_of(std::max(left_rank, right_rank), &contraction->result);
  if (left_rank > 1) {
    contraction->labels[0].push_back(kRows);
    contraction->result.push_back(kRows);
  }
  contraction->labels[0].push_back(kContracted);
  contraction->labels[1].push_back(kContracted);
  if (right_rank > 1) {
    contraction->labels[1].push_back(kColumns);
    contraction->result.push_back(kColumns);
  }
}

bool Contains(const Labels& labels, int label) {
  return std::find(labels.begin(), labels.end(), label) != labels.end();
}

bool HasRepeated(Labels labels) {
  std::sort(labels.begin(), labels.end());
  return std::adjacent_find(labels.begin(), labels.end()) != labels.end();
}

/*! \brief True if BLAS computes the contraction: no label is repeated in or summed over a single
 * operand, and some label is contracted. */
bool IsProduct(const Contraction& contraction) {
  const auto& [left, right] = contraction.labels;
  bool contracts = false;
  for (const auto& [mine, other] : {std::pair(left, right), std::pair(right, left)}) {
    for (int label : mine) {
      bool is_kept = Contains(contraction.result, label);
      if (!is_kept && !Contains(other, label)) return false;
      contracts = contracts || !is_kept;
    }
  }
  return contracts && !HasRepeated(left) && !HasRepeated(right) && !HasRepeated(contraction.result);
}

/*! \brief True if there is too little to multiply; symbolic sizes count as enough. */
bool IsSmall(const Contraction& contraction) {
  std::unordered_map<int, int64_t> sizes;
  for (int i = 0; i < 2; ++i) {
    const auto& shape = ir::ShapeOf(ir::TensorType::Cast(contraction.operands[i].ty()));
    for (size_t d = 0; d < shape.size(); ++d) {
      int64_t size = ir::StaticDim(shape[d]);
      if (size < 0) return false;
      int64_t& known = sizes[contraction.labels[i][d]];
      known = std::max(known, size);
    }
  }
  int64_t work = 1;
  for (const auto& [label, size] : sizes) {
    if (size == 0) return true;
    if (work < kSmallestWork) work *= size;
  }
  return work < kSmallestWork;
}

std::optional<Contraction> ReadContraction(const ir::Call& call, const ir::Type& type) {
  bool is_einsum = ir::IsOp(call.op(), "relax.einsum");
  if (!is_einsum && !ir::IsOp(call.op(), "relax.matmul")) return std::nullopt;
  ffi::Array<ir::Expr> operands = call.args();
  if (is_einsum) {
    ir::Tuple fields = ir::Tuple::Cast(call.args()[0]);
    if (!fields.defined()) return std::nullopt;
    operands = fields.fields();
  }
  auto result = ir::TensorType::Cast(type);
  if (operands.size() != 2 || !result.defined() || !ir::ShapeExpr::Is(result.shape()))
    return std::nullopt;
  std::vector<int> ranks;
  for (const ir::Expr& operand : operands) {
    auto tensor = ir::TensorType::Cast(operand.ty());
    if (!tensor.defined() || !ir::HasKnownShape(tensor)) return std::nullopt;
    ranks.push_back(tensor.ndim());
  }
  if (!AreComputed(ir::TensorType::Cast(operands[0].ty()), ir::TensorType::Cast(operands[1].ty()),
                   result))
    return std::nullopt;

  Contraction contraction;
  contraction.operands = {operands[0], operands[1]};
  if (is_einsum) {
    rules::Equation equation = rules::ReadEquation(call, ranks, result.ndim());
    if (equation.operands.size() != 2) return std::nullopt;
    contraction.labels = {equation.operands[0], equation.operands[1]};
    contraction.result = equation.result;
  } else {
    LabelMatmul(ranks[0], ranks[1], &contraction);
  }
  for (int i = 0; i < 2; ++i) {
    if (static_cast<int>(contraction.labels[i].size()) != ranks[i]) return std::nullopt;
  }
  if (static_cast<int>(contraction.result.size()) != result.ndim()) return std::nullopt;
  if (!IsProduct(contraction) || IsSmall(contraction)) return std::nullopt;
  return contraction;
}

/*! \brief Such as "ab,bc->ac"; nullopt where there are more labels than letters. */
std::optional<std::string> Subscripts(const Contraction& contraction) {
  static const std::string letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  std::unordered_map<int, char> letter_of;
  auto text_of = [&](const Labels& labels) {
    std::string text;
    for (int label : labels) {
      size_t next = std::min(letter_of.size(), letters.size() - 1);
      text += letter_of.emplace(label, letters[next]).first->second;
    }
    return text;
  };
  std::string text = text_of(contraction.labels[0]);
  text += "," + text_of(contraction.labels[1]);
  text += "->" + text_of(contraction.result);
  if (letter_of.size() > letters.size()) return std::nullopt;
  return text;
}

// ---- what becomes of each binding

/*! \brief Contractions by the variable that gets their result, with permutations folded in. */
class Analysis {
 public:
  explicit Analysis(const ir::Function& function) : uses_(ir::CountUses(function)) {
    Visit(function.body());
    for (const auto& [var, folded] : folded_uses_) {
      if (folded == uses_[var]) dropped_.insert(var);
    }
  }

  bool empty() const { return contractions_.empty(); }
  const Contraction* Find(const ir::Var& var) const {
    auto it = contractions_.find(var.get());
    return it == contractions_.end() ? nullptr : &it->second;
  }
  bool IsDropped(const ir::Var& var) const { return dropped_.count(var.get()) > 0; }

 private:
  struct Permutation {
    ir::Expr source;
    std::vector<int> axes;
    const ffi::Object* block;
  };

  void Visit(const ir::SeqExpr& seq) {
    for (const ir::BindingBlock& block : seq.blocks()) {
      for (const ir::Binding& each : block.bindings()) {
        auto binding = ir::VarBinding::Cast(each);
        if (!binding.defined()) continue;
        if (ir::If branch = ir::If::Cast(binding.value()); branch.defined()) {
          Visit(branch.true_branch());
          Visit(branch.false_branch());
        } else if (ir::Call call = ir::Call::Cast(binding.value()); call.defined()) {
          VisitCall(block, binding.var(), call);
        }
      }
    }
  }

  void VisitCall(const ir::BindingBlock& block, const ir::Var& var, const ir::Call& call) {
    if (ir::IsOp(call.op(), "relax.permute_dims")) return VisitPermutation(block, var, call);
    auto contraction = ReadContraction(call, var.ty());
    if (!contraction.has_value() || !Subscripts(*contraction).has_value()) return;
    for (int i = 0; i < 2; ++i) FoldOperand(block, i, &*contraction);
    contractions_.emplace(var.get(), *contraction);
    block_of_.emplace(var.get(), block.get());
  }

  void VisitPermutation(const ir::BindingBlock& block, const ir::Var& var, const ir::Call& call) {
    ir::Expr source = call.args()[0];
    auto type = ir::TensorType::Cast(source.ty());
    if (!ir::Var::Is(source) || !type.defined() || type.ndim() < 0) return;
    auto axes = rules::ReadAxes(ir::attrs::kPermuteDimsAxes(call.attrs()), type.ndim());
    if (!axes.has_value()) {
      axes.emplace();
      for (int d = type.ndim(); d-- > 0;) axes->push_back(d);
    }
    auto found = contractions_.find(source.get());
    bool is_only_use = found != contractions_.end() && uses_[source.get()] == 1;
    auto result = ir::TensorType::Cast(var.ty());
    if (is_only_use && block_of_[source.get()] == block.get() && result.defined() &&
        ir::ShapeExpr::Is(result.shape())) {
      Contraction moved = found->second;
      for (size_t d = 0; d < axes->size(); ++d) moved.result[d] = found->second.result[(*axes)[d]];
      contractions_.erase(found);
      dropped_.insert(source.get());
      contractions_.emplace(var.get(), moved);
      block_of_.emplace(var.get(), block.get());
      return;
    }
    permutations_.emplace(var.get(), Permutation{source, *axes, block.get()});
  }

  void FoldOperand(const ir::BindingBlock& block, int i, Contraction* contraction) {
    auto found = permutations_.find(contraction->operands[i].get());
    if (found == permutations_.end()) return;
    const Permutation& permutation = found->second;
    // Variables of a dataflow block are not seen in others.
    if (ir::DataflowVar::Is(permutation.source) && permutation.block != block.get()) return;
    ++folded_uses_[found->first];
    Labels labels(permutation.axes.size());
    for (size_t d = 0; d < labels.size(); ++d)
      labels[permutation.axes[d]] = contraction->labels[i][d];
    contraction->labels[i] = labels;
    contraction->operands[i] = permutation.source;
  }

  std::unordered_map<const ffi::Object*, int> uses_;
  std::unordered_map<const ffi::Object*, int> folded_uses_;
  std::unordered_map<const ffi::Object*, Permutation> permutations_;
  std::unordered_map<const ffi::Object*, Contraction> contractions_;
  std::unordered_map<const ffi::Object*, const ffi::Object*> block_of_;
  std::unordered_set<const ffi::Object*> dropped_;
};

class Dispatcher : public ir::FunctionRewriter {
 public:
  explicit Dispatcher(const Analysis& analysis) : analysis_(analysis) {}

 private:
  void RewriteVarBinding(const ir::Var& var, const ir::Expr& value) override {
    if (analysis_.IsDropped(var)) return;
    const Contraction* contraction = analysis_.Find(var);
    if (contraction == nullptr) return FunctionRewriter::RewriteVarBinding(var, value);
    ir::Count("products");
    ir::Expr arguments =
        ir::MakeTuple({Rewrite(contraction->operands[0]), Rewrite(contraction->operands[1]),
                       ir::MakeString(*Subscripts(*contraction))});
    Bind(var, ir::MakeOpCall(var.ty(), "relax.call_dps_packed",
                             {ir::MakeExternFunc(kBuiltin), arguments}, {}, {var.ty()}));
  }

  const Analysis& analysis_;
};

}  // namespace

ir::IRModule DispatchMatmul(const ir::IRModule& mod) {
  return ir::RewriteFunctions(mod, [](const ir::Function& function) {
    Analysis analysis(function);
    return analysis.empty() ? ir::Function() : Dispatcher(analysis).RewriteFunction(function);
  });
}

}  // namespace distir::target
