// Finds the products of a function that a library computes, with what is folded into them.
#include "target/products/products.h"

#include <algorithm>
#include <string>
#include <utility>

#include "ir/build.h"
#include "ir/operator_attrs.h"
#include "ir/report.h"
#include "ir/rewriter.h"
#include "ir/symbolic.h"
#include "support/contains.h"

namespace distir::target {

namespace {

/*! \brief The name of an activation that epilogues can have; empty for other calls. */
std::string ActivationOf(const ir::Call& call) {
  if (ir::IsOp(call.op(), "relax.nn.relu")) return "relu";
  if (ir::IsOp(call.op(), "relax.nn.gelu_tanh")) return "gelu_tanh";
  return "";
}

bool SameTensor(const ir::TensorType& a, const ir::TensorType& b) {
  if (!a.defined() || !b.defined() || !ir::HasKnownShape(a) || !ir::HasKnownShape(b)) return false;
  if (!a.has_dtype() || !b.has_dtype() || a.dtype() != b.dtype()) return false;
  const auto &left = ir::ShapeOf(a), &right = ir::ShapeOf(b);
  if (left.size() != right.size()) return false;
  for (size_t d = 0; d < left.size(); ++d) {
    if (!ir::SameDim(left[d], right[d])) return false;
  }
  return true;
}

/*! \brief True if something is summed in any case: an empty sum has no epilogue. */
bool SumsSomething(const Contraction& contraction) {
  const auto& shape = ir::ShapeOf(ir::TensorType::Cast(contraction.operands[0].ty()));
  for (size_t d = 0; d < shape.size(); ++d) {
    if (!Has(contraction.result, contraction.labels[0][d]) && ir::StaticDim(shape[d]) <= 0)
      return false;
  }
  return true;
}

/*! \brief True if the last dimension of the result is all columns of one operand. */
bool HasColumns(const Contraction& contraction) {
  if (contraction.result.empty()) return false;
  const int last = contraction.result.back();
  const bool in_left = Has(contraction.labels[0], last);
  if (in_left == Has(contraction.labels[1], last)) return false;
  const Labels& own = contraction.labels[in_left ? 0 : 1];
  const Labels& other = contraction.labels[in_left ? 1 : 0];
  for (int label : own) {
    if (label != last && !Has(other, label)) return false;
  }
  return true;
}

}  // namespace

Products::Products(const ir::Function& function, const ProductLibrary& library)
    : library_(library), uses_(ir::CountUses(function)) {
  Visit(function.body());
  DropUnused();
}

void Products::DropUnused() {
  std::vector<const ffi::Object*> unused;
  for (const auto& [var, folded] : folded_uses_) {
    if (folded == uses_[var]) unused.push_back(var);
  }
  while (!unused.empty()) {
    const ffi::Object* var = unused.back();
    unused.pop_back();
    dropped_.insert(var);
    // A view of a view is not computed for it any more.
    const ffi::Object* operand = views_.at(var).operand.get();
    if (views_.count(operand) > 0 && ++folded_uses_[operand] == uses_[operand])
      unused.push_back(operand);
  }
}

const Contraction* Products::Find(const ir::Var& var) const {
  auto it = contractions_.find(var.get());
  return it == contractions_.end() ? nullptr : &it->second;
}

void Products::Visit(const ir::SeqExpr& seq) {
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

void Products::VisitCall(const ir::BindingBlock& block, const ir::Var& var, const ir::Call& call) {
  if (ir::IsOp(call.op(), "relax.permute_dims")) return VisitPermutation(block, var, call);
  if (ir::IsOp(call.op(), "relax.expand_dims") || ir::IsOp(call.op(), "relax.broadcast_to"))
    return VisitExpansion(block, var, call);
  if (library_.has_epilogues && VisitEpilogue(block, var, call)) return;
  const auto written = ReadContraction(call, var.ty());
  if (!written.has_value() || !Subscripts(*written).has_value()) return;
  const auto result = ir::TensorType::Cast(var.ty());
  Contraction folded = *written;
  std::vector<const ffi::Object*> viewed;
  for (int i = 0; i < 2; ++i) {
    if (Fold(block, i, &folded)) viewed.push_back(written->operands[i].get());
  }
  if (library_.refuses(folded, result) == nullptr) {
    for (const ffi::Object* operand : viewed) ++folded_uses_[operand];
  } else if (const char* reason = library_.refuses(*written, result)) {
    ir::Skip("products", reason);
    return;
  } else {
    folded = *written;
  }
  contractions_.emplace(var.get(), folded);
  block_of_.emplace(var.get(), block.get());
}

void Products::VisitPermutation(const ir::BindingBlock& block, const ir::Var& var,
                                const ir::Call& call) {
  ir::Expr source = call.args()[0];
  auto type = ir::TensorType::Cast(source.ty());
  if (!ir::Var::Is(source) || !type.defined() || !ir::HasKnownShape(type)) return;
  auto axes = rules::ReadAxes(ir::attrs::kPermuteDimsAxes(call.attrs()), type.ndim());
  if (!axes.has_value()) {
    axes.emplace();
    for (int d = type.ndim(); d-- > 0;) axes->push_back(d);
  }
  auto result = ir::TensorType::Cast(var.ty());
  const Contraction* found = FindMovable(block, source);
  if (found != nullptr && found->epilogue.empty() && result.defined() &&
      ir::ShapeExpr::Is(result.shape())) {
    Contraction moved = *found;
    for (size_t d = 0; d < axes->size(); ++d) moved.result[d] = found->result[(*axes)[d]];
    if (library_.refuses(moved, result) == nullptr) return Move(source, var, block, moved);
  }
  AddView(block, var, source, *axes);
}

void Products::VisitExpansion(const ir::BindingBlock& block, const ir::Var& var,
                              const ir::Call& call) {
  const ir::Expr operand = call.args()[0];
  const auto from = ir::TensorType::Cast(operand.ty()), to = ir::TensorType::Cast(var.ty());
  if (!ir::Var::Is(operand) || !from.defined() || !to.defined()) return;
  if (!ir::HasKnownShape(from) || !ir::HasKnownShape(to)) return;
  std::vector<int> axes(to.ndim(), kNone);
  if (ir::IsOp(call.op(), "relax.expand_dims")) {
    const auto added = rules::ReadAxes(ir::attrs::kExpandDimsAxis(call.attrs()), to.ndim());
    if (!added.has_value()) return;
    int next = 0;
    for (int d = 0; d < to.ndim(); ++d) {
      if (!Has(*added, d)) axes[d] = next++;
    }
  } else {
    const int more = to.ndim() - from.ndim();
    for (int d = more; d < to.ndim(); ++d) {
      const bool is_same = ir::SameDim(ir::ShapeOf(from)[d - more], ir::ShapeOf(to)[d]);
      if (!is_same && ir::StaticDim(ir::ShapeOf(from)[d - more]) != 1) return;
      axes[d] = d - more;
    }
  }
  AddView(block, var, operand, std::move(axes));
}

void Products::AddView(const ir::BindingBlock& block, const ir::Var& var, const ir::Expr& operand,
                       std::vector<int> axes) {
  View view{operand, std::move(axes), operand, block.get()};
  if (const View* inner = FindView(block, operand)) {
    view.source = inner->source;
    for (int& axis : view.axes) {
      if (axis != kNone) axis = inner->axes[axis];
    }
  }
  views_.emplace(var.get(), std::move(view));
}

bool Products::Fold(const ir::BindingBlock& block, int operand, Contraction* contraction) const {
  const ir::Expr viewed = contraction->operands[operand];
  const View* view = FindView(block, viewed);
  if (view == nullptr) return false;
  const auto& shape = ir::ShapeOf(ir::TensorType::Cast(viewed.ty()));
  const auto& source = ir::ShapeOf(ir::TensorType::Cast(view->source.ty()));
  const Labels& others = contraction->labels[1 - operand];
  const auto& other = ir::ShapeOf(ir::TensorType::Cast(contraction->operands[1 - operand].ty()));
  Labels labels(source.size());
  for (size_t d = 0; d < view->axes.size(); ++d) {
    const int label = contraction->labels[operand][d];
    const int axis = view->axes[d];
    if (axis != kNone) labels[axis] = label;
    if (axis != kNone && ir::SameDim(source[axis], shape[d])) continue;
    // The other operand says how often this one is read.
    const auto found = std::find(others.begin(), others.end(), label);
    if (found == others.end() || !Has(contraction->result, label)) return false;
    const bool is_stated = ir::SameDim(other[found - others.begin()], shape[d]);
    if (!is_stated && ir::StaticDim(shape[d]) != 1) return false;
  }
  contraction->labels[operand] = std::move(labels);
  contraction->operands[operand] = view->source;
  return true;
}

bool Products::VisitEpilogue(const ir::BindingBlock& block, const ir::Var& var,
                             const ir::Call& call) {
  const auto type = ir::TensorType::Cast(var.ty());
  const bool is_sum = ir::IsOp(call.op(), "relax.add");
  const std::string activation = ActivationOf(call);
  if (!is_sum && activation.empty()) return false;
  for (size_t i = 0; i < (is_sum ? 2U : 1U); ++i) {
    const ir::Expr product = call.args()[i];
    const Contraction* found = FindMovable(block, product);
    if (found == nullptr || !found->epilogue.activation.empty() || !SumsSomething(*found)) continue;
    if (!SameTensor(ir::TensorType::Cast(product.ty()), type)) continue;
    Contraction moved = *found;
    moved.epilogue.activation = activation;
    if (is_sum && !AddTerm(call.args()[1 - i], type, &moved)) continue;
    if (library_.refuses(moved, type) != nullptr) continue;
    Move(product, var, block, moved);
    return true;
  }
  return false;
}

bool Products::AddTerm(const ir::Expr& term, const ir::TensorType& type,
                       Contraction* contraction) const {
  const auto added = ir::TensorType::Cast(term.ty());
  Epilogue& epilogue = contraction->epilogue;
  if (!ir::Var::Is(term) && !ir::Constant::Is(term)) return false;
  if (!epilogue.addend.defined() && type.ndim() > 1 && SameTensor(added, type)) {
    epilogue.addend = term;
    return true;
  }
  if (epilogue.bias.defined() || !HasColumns(*contraction)) return false;
  if (!added.defined() || !ir::HasKnownShape(added) || added.ndim() != 1) return false;
  if (!added.has_dtype() || added.dtype() != type.dtype()) return false;
  const auto& shape = ir::ShapeOf(type);
  if (!ir::SameDim(ir::ShapeOf(added)[0], shape[shape.size() - 1])) return false;
  epilogue.bias = term;
  return true;
}

const Products::View* Products::FindView(const ir::BindingBlock& block,
                                         const ir::Expr& operand) const {
  auto found = views_.find(operand.get());
  if (found == views_.end()) return nullptr;
  const View& view = found->second;
  // Variables of a dataflow block are not seen in others.
  if (ir::DataflowVar::Is(view.source) && view.block != block.get()) return nullptr;
  return &view;
}

Contraction* Products::FindMovable(const ir::BindingBlock& block, const ir::Expr& value) {
  auto found = contractions_.find(value.get());
  if (found == contractions_.end() || uses_[value.get()] != 1) return nullptr;
  return block_of_[value.get()] == block.get() ? &found->second : nullptr;
}

void Products::Move(const ir::Expr& from, const ir::Var& to, const ir::BindingBlock& block,
                    const Contraction& moved) {
  contractions_.erase(from.get());
  dropped_.insert(from.get());
  contractions_.emplace(to.get(), moved);
  block_of_.emplace(to.get(), block.get());
}

}  // namespace distir::target
