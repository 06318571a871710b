#include "rules/tir/rule.h"

#include <tvm/ffi/reflection/registry.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include "dialect/local_view.h"
#include "ir/build.h"
#include "ir/operator_attrs.h"
#include "ir/pass.h"
#include "ir/symbolic.h"
#include "rules/registry.h"
#include "rules/stated/user_rules.h"
#include "rules/tails.h"
#include "rules/tir/kernel.h"

namespace distir {
namespace rules {

namespace {

using mesh::Reduction;

/*! \brief Over which classes, and how, a buffer still has to be reduced. */
// A type of this file, so that the map's code is not exported from the library.
struct Less {
  bool operator()(int a, int b) const { return a < b; }
};
using PartialState = std::map<int, Reduction, Less>;

class RuleDeriver {
 public:
  RuleDeriver(const ir::PrimFunc& function, Kernel kernel)
      : function_(function), kernel_(std::move(kernel)), digits_(kernel_.digits) {}

  KernelRule Run() {
    KernelRule rule;
    rule.function = function_;
    rule.failure = kernel_.failure;
    if (!rule.failure.empty()) return rule;
    FindWritten(&rule);
    PinRepeated();
    PinUncovered();
    PinSharedReductions();
    SpreadPartial();
    PinUnfinished();
    PinUnnested();
    Fill(&rule);
    if (kernel_.takes_any_element) MarkUneven(&rule);
    return rule;
  }

 private:
  // ---- classes of things

  /*! \brief The factors of a range: each class of digits becomes one. */
  FactorList FactorsOf(int range) const {
    const std::vector<int>& classes = digits_.ClassesOf(range);
    return FactorList(classes.begin(), classes.end());
  }

  std::vector<int> ClassesOf(const std::vector<int>& ranges) const {
    std::vector<int> classes;
    for (int range : ranges) {
      const std::vector<int>& own = digits_.ClassesOf(range);
      classes.insert(classes.end(), own.begin(), own.end());
    }
    return classes;
  }

  std::set<int> BufferClasses(const ffi::Object* buffer) const {
    std::vector<int> classes = ClassesOf(kernel_.buffers.at(buffer));
    return {classes.begin(), classes.end()};
  }

  void PinAll(const std::vector<int>& classes) {
    for (int index : classes) digits_.PinClass(index);
  }

  void FindWritten(KernelRule* rule) {
    std::set<const ffi::Object*> written;
    for (const Statement& statement : kernel_.statements) written.insert(statement.buffer);
    for (const ir::Var& param : function_.params())
      rule->is_written.push_back(written.count(param.get()) > 0);
    for (size_t i = 0; i < rule->is_written.size(); ++i) {
      if (rule->is_written[i]) outputs_.push_back(function_.params()[i].get());
    }
  }

  // ---- what cannot be sharded

  // x[i, i], or two loops over the same factor: a shard would hold a block of the diagonal.
  void PinRepeated() {
    for (const auto& [buffer, dims] : kernel_.buffers) PinRepeatedIn(ClassesOf(dims));
    for (const Statement& statement : kernel_.statements) {
      PinRepeatedIn(ClassesOf(statement.loops));
      PinRepeatedIn(ClassesOf(statement.iterators));
    }
  }
  void PinRepeatedIn(std::vector<int> classes) {
    std::sort(classes.begin(), classes.end());
    for (size_t i = 1; i < classes.size(); ++i) {
      if (classes[i] == classes[i - 1]) digits_.PinClass(classes[i]);
    }
  }

  // An element that is written again in every step of a loop depends on all of the loop, unless it
  // is a reduction that shards can share.
  void PinUncovered() {
    for (const Statement& statement : kernel_.statements) {
      if (statement.buffer == nullptr) continue;
      std::set<int> written = BufferClasses(statement.buffer);
      std::vector<int> reduced = ClassesOf(statement.reductions);
      if (!statement.is_init && statement.reduction == Reduction::kNone) PinAll(reduced);
      for (int index : reduced) {
        if (written.count(index) > 0) digits_.PinClass(index);
      }
      for (int index : ClassesOf(statement.loops)) {
        bool is_reduced = std::count(reduced.begin(), reduced.end(), index) > 0;
        if (written.count(index) == 0 && !is_reduced) digits_.PinClass(index);
      }
    }
  }

  // A buffer that several statements write is no plain reduction.
  void PinSharedReductions() {
    std::map<const ffi::Object*, int> writes;
    for (const Statement& statement : kernel_.statements) {
      if (!statement.is_init && statement.buffer != nullptr) ++writes[statement.buffer];
    }
    for (const Statement& statement : kernel_.statements) {
      if (statement.buffer != nullptr && writes[statement.buffer] > 1)
        PinAll(ClassesOf(statement.reductions));
    }
  }

  // ---- partial values

  // Follows partial buffers from statement to statement; where one is not just passed on, its
  // classes are pinned.
  void SpreadPartial() {
    for (bool changed = true; changed;) {
      changed = false;
      for (const Statement& statement : kernel_.statements) {
        if (statement.reduction != Reduction::kNone) {
          for (int index : ClassesOf(statement.reductions)) {
            if (!digits_.IsPinned(index))
              changed = Enter(statement.buffer, index, statement.reduction) || changed;
          }
        }
        changed = PassOn(statement) || changed;
      }
    }
  }

  bool Enter(const ffi::Object* buffer, int index, Reduction kind) {
    auto [it, inserted] = partial_[buffer].emplace(index, kind);
    if (!inserted && it->second != kind && !digits_.IsPinned(index)) {
      digits_.PinClass(index);
      return true;
    }
    return inserted;
  }

  bool PassOn(const Statement& statement) {
    PartialState incoming;
    std::vector<const ffi::Object*> loaded;
    if (statement.reduction == Reduction::kNone) {
      loaded = LoadedBuffers(statement.value);
    } else {
      for (const ir::Expr& term : statement.terms) {
        std::vector<const ffi::Object*> more = LoadedBuffers(term);
        loaded.insert(loaded.end(), more.begin(), more.end());
      }
    }
    for (const ffi::Object* buffer : loaded) {
      auto found = partial_.find(buffer);
      if (found == partial_.end()) continue;
      for (const auto& [index, kind] : found->second) {
        if (!digits_.IsPinned(index)) incoming.emplace(index, kind);
      }
    }
    if (incoming.empty()) return false;
    std::vector<int> loops = ClassesOf(statement.loops);
    bool changed = false;
    for (const auto& [index, kind] : incoming) {
      bool passes = statement.buffer != nullptr && !statement.is_init &&
                    std::count(loops.begin(), loops.end(), index) == 0 &&
                    IsPassedOn(statement, index, kind);
      if (passes) {
        changed = Enter(statement.buffer, index, kind) || changed;
      } else {
        digits_.PinClass(index);
        changed = true;
      }
    }
    return changed;
  }

  bool IsPassedOn(const Statement& statement, int index, Reduction kind) const {
    if (statement.reduction == Reduction::kNone) return Commutes(statement.value, index, kind);
    if (statement.reduction != kind || statement.terms.size() != 1) return false;
    return Commutes(statement.terms[0], index, kind);
  }

  bool IsPartial(const ir::Expr& expr, int index) const {
    for (const ffi::Object* buffer : LoadedBuffers(expr)) {
      auto found = partial_.find(buffer);
      if (found != partial_.end() && found->second.count(index) > 0) return true;
    }
    return false;
  }

  // Whether reducing the expression's value is the same as the expression of the reduced values.
  bool Commutes(const ir::Expr& expr, int index, Reduction kind) const {
    if (auto load = ir::TensorLoad::Cast(expr); load.defined()) {
      for (const ir::Expr& position : load.indices()) {
        if (IsPartial(position, index)) return false;
      }
      return IsPartial(expr, index);
    }
    if (auto cast = ir::CastExpr::Cast(expr); cast.defined()) {
      return IsFloat(expr) && IsFloat(cast.value()) && Commutes(cast.value(), index, kind);
    }
    ir::BinaryExpr binary = ir::BinaryExpr::Cast(expr);
    if (kind != Reduction::kSum || !binary.defined()) return false;
    bool partial_a = IsPartial(binary.a(), index);
    bool partial_b = IsPartial(binary.b(), index);
    switch (binary.kind()) {
      case ir::BinaryKind::kMul:
        return partial_a != partial_b && Commutes(partial_a ? binary.a() : binary.b(), index, kind);
      case ir::BinaryKind::kDiv:
        return IsFloat(expr) && !partial_b && Commutes(binary.a(), index, kind);
      case ir::BinaryKind::kAdd:
      case ir::BinaryKind::kSub:
        return Commutes(binary.a(), index, kind) && Commutes(binary.b(), index, kind);
      default:
        return false;
    }
  }

  static bool IsFloat(const ir::Expr& expr) {
    uint8_t code = ir::ScalarType(expr).code;
    return code == kDLFloat || code == kDLBfloat;
  }

  // A reduction is one of the rule only when it ends in the kernel's one output, of which nothing
  // else is sharded alike.
  void PinUnfinished() {
    for (const Statement& statement : kernel_.statements) {
      for (int index : ClassesOf(statement.reductions)) {
        bool ends_well = outputs_.size() == 1 && partial_[outputs_[0]].count(index) > 0;
        if (!ends_well) digits_.PinClass(index);
      }
    }
    if (outputs_.size() != 1) return;
    std::set<int> sharded = BufferClasses(outputs_[0]);
    for (const auto& [index, kind] : partial_[outputs_[0]]) {
      if (sharded.count(index) > 0) digits_.PinClass(index);
      if (digits_.IsPinned(index)) continue;
      if (final_kind_ == Reduction::kNone) final_kind_ = kind;
      if (kind != final_kind_) digits_.PinClass(index);
    }
  }

  // A minor digit may be sharded only where the digits before it are fully sharded, or its shards
  // would not be a block. Rules see to it in the dimensions of parameters; where a loop or an
  // intermediate buffer is the only place with that order, the digit is replicated.
  void PinUnnested() {
    std::set<std::pair<int, int>> ordered;
    for (const ir::Var& param : function_.params()) {
      auto found = kernel_.buffers.find(param.get());
      if (found == kernel_.buffers.end()) continue;
      for (int range : found->second) {
        const std::vector<int>& classes = digits_.ClassesOf(range);
        for (size_t i = 0; i < classes.size(); ++i) {
          for (size_t j = i + 1; j < classes.size(); ++j) ordered.emplace(classes[i], classes[j]);
        }
      }
    }
    for (int range = 0; range < digits_.num_ranges(); ++range) {
      const std::vector<int>& classes = digits_.ClassesOf(range);
      for (size_t i = 1; i < classes.size(); ++i) {
        if (ordered.count({classes[i - 1], classes[i]}) == 0) digits_.PinClass(classes[i]);
      }
    }
  }

  // ---- the rule

  void Fill(KernelRule* rule) {
    const PartialState no_state;
    const PartialState& state = outputs_.size() == 1 ? partial_[outputs_[0]] : no_state;
    for (int index = 0; index < digits_.num_classes(); ++index) {
      Factor factor{digits_.ClassSize(index), ParallelFactor()};
      if (digits_.IsPinned(index)) {
        factor.kind = ReplicatedFactor();
      } else if (auto partial = state.find(index); partial != state.end()) {
        factor.kind = ReductionFactor{partial->second};
      }
      rule->factors.push_back(factor);
      rule->uncuttable.push_back(digits_.WhyBroken(index));
    }
    for (const auto& [variable, range] : kernel_.iterators)
      rule->iterators[variable] = FactorsOf(range);
    rule->extents = kernel_.extents;
    rule->iterator_order = kernel_.iterator_order;
    for (const auto& [buffer, dims] : kernel_.buffers) {
      TensorFactors& factors = rule->buffers[buffer];
      for (int range : dims) factors.push_back(FactorsOf(range));
    }
    rule->intermediates = kernel_.intermediates;
  }

  // ---- what may be padded (rules/tails.h)

  void MarkUneven(KernelRule* rule) const {
    for (int index = 0; index < digits_.num_classes(); ++index) {
      Factor& factor = rule->factors[index];
      factor.may_be_uneven = !factor.Is<ReplicatedFactor>() && factor.size > 1 &&
                             IsStatedByExtents(index) &&
                             (factor.Is<ParallelFactor>() || IsNeutral(index, factor.reduction()));
    }
  }

  // Whether only the extents of loops and buffers say how large a class is: as a minor digit it is
  // in the strides of those before it, and a quotient or a remainder may be by its size.
  bool IsStatedByExtents(int index) const {
    for (int range = 0; range < digits_.num_ranges(); ++range) {
      const std::vector<int>& classes = digits_.ClassesOf(range);
      auto found = std::find(classes.begin(), classes.end(), index);
      if (found == classes.end()) continue;
      if (found != classes.begin() || kernel_.divided.count(range) > 0) return false;
    }
    return true;
  }

  // Whether neutral elements in the tails of the operands give neutral elements to reduce.
  bool IsNeutral(int index, Reduction kind) const {
    for (const Statement& statement : kernel_.statements) {
      const std::vector<int> reduced = ClassesOf(statement.reductions);
      if (std::count(reduced.begin(), reduced.end(), index) == 0 || statement.is_init) continue;
      for (const ir::Expr& term : statement.terms) {
        if (!IsNeutral(term, index, kind)) return false;
      }
    }
    return true;
  }

  bool IsNeutral(const ir::Expr& term, int index, Reduction kind) const {
    if (auto load = ir::TensorLoad::Cast(term); load.defined()) {
      const ffi::Object* buffer = load.source().get();
      const auto& params = function_.params();
      const bool is_operand =
          std::any_of(params.begin(), params.end(),
                      [buffer](const ir::Var& param) { return param.get() == buffer; }) &&
          std::count(outputs_.begin(), outputs_.end(), buffer) == 0;
      return is_operand && BufferClasses(buffer).count(index) > 0;
    }
    if (kind != Reduction::kSum) return false;
    if (auto cast = ir::CastExpr::Cast(term); cast.defined())
      return IsNeutral(cast.value(), index, kind);
    // Not times anything else: it may be infinite.
    ir::BinaryExpr product = ir::BinaryExpr::Cast(term);
    return product.defined() && product.kind() == ir::BinaryKind::kMul &&
           IsNeutral(product.a(), index, kind) && IsNeutral(product.b(), index, kind);
  }

  const ir::PrimFunc& function_;
  Kernel kernel_;
  DigitTable& digits_;
  std::vector<const ffi::Object*> outputs_;
  std::map<const ffi::Object*, PartialState> partial_;
  Reduction final_kind_ = Reduction::kNone;
};

std::string KernelName(const ir::Call& call) {
  auto name = ir::GlobalVar::Cast(call.args()[0]);
  return name.defined() ? name.name() : ir::Print(call.args()[0]);
}

FactorRule ReplicatedKernel(const OpView& view, const std::string& reason) {
  WarnOfCall(view, "no sharding rule for kernel " + KernelName(view.call) + ": " + reason +
                       "; its operands and results are replicated; state a rule in its attribute " +
                       kRuleAttribute);
  return ReplicateAll(view);
}

}  // namespace

KernelRule DeriveKernelRule(const ir::PrimFunc& function) {
  return RuleDeriver(function, ReadKernel(function)).Run();
}

bool KernelTable::IsKernelCall(const ir::Expr& op) {
  static const ir::Op ops[] = {ir::GetOp("relax.call_tir"), ir::GetOp("relax.call_tir_inplace"),
                               ir::GetOp("relax.call_tir_with_grad")};
  return std::any_of(std::begin(ops), std::end(ops),
                     [&op](const ir::Op& kernel_op) { return op.same_as(kernel_op); });
}

const KernelRule* KernelTable::Find(const ir::Call& call) {
  if (!IsKernelCall(call.op()) && !dialect::IsLocalView(call.op())) return nullptr;
  if (!ir::GlobalVar::Is(call.args()[0])) return nullptr;
  auto found = functions_.find(ir::GlobalVar::Cast(call.args()[0]));
  if (found == functions_.end()) return nullptr;
  auto function = ir::PrimFunc::Cast((*found).second);
  if (!function.defined()) return nullptr;
  std::unique_ptr<KernelRule>& rule = rules_[function.get()];
  if (rule == nullptr) rule = std::make_unique<KernelRule>(DeriveKernelRule(function));
  return rule.get();
}

std::vector<size_t> ParamsOfResults(const ir::Call& call, size_t num_operands, size_t num_results) {
  auto in_place = ir::attrs::kCallTIRInplaceInplaceIndices(call.attrs()).as<ffi::Array<int64_t>>();
  std::vector<size_t> params;
  size_t next = num_operands;
  for (size_t r = 0; r < num_results; ++r) {
    int64_t operand = in_place && r < in_place->size() ? (*in_place)[r] : -1;
    params.push_back(operand < 0 ? next++ : static_cast<size_t>(operand));
  }
  return params;
}

FactorRule RuleOfKernelCall(const OpView& view) {
  if (view.kernel == nullptr) return ReplicateAll(view);
  const KernelRule& kernel = *view.kernel;
  if (auto stated = StatedRule(KernelName(view.call), kernel.function))
    return ApplyRule(*stated, view);
  if (!kernel.failure.empty()) return ReplicatedKernel(view, kernel.failure);
  const ffi::Array<ir::Var>& params = kernel.function.params();
  size_t num_operands = view.operands.size();
  const std::vector<size_t> of_results =
      ParamsOfResults(view.call, num_operands, view.results.size());
  FactorRule rule;
  rule.factors = kernel.factors;
  size_t next = 0;  // of the kernel's tensors; scalars stand between them
  rule.results.resize(view.results.size());
  std::set<size_t> found;
  for (size_t i = 0; i < params.size(); ++i) {
    auto factors = kernel.buffers.find(params[i].get());
    if (factors == kernel.buffers.end()) continue;
    size_t tensor = next++;
    auto result = std::find(of_results.begin(), of_results.end(), tensor) - of_results.begin();
    bool is_result = result < static_cast<std::ptrdiff_t>(of_results.size());
    if ((!is_result && tensor >= num_operands) || kernel.is_written[i] != is_result)
      return ReplicatedKernel(view, "it does not write exactly its results");
    Sizes sizes = StaticSizes(is_result ? view.results[result] : view.operands[tensor]);
    if (sizes.size() != factors->second.size())
      return ReplicatedKernel(view, "parameter `" + params[i].name() + "` has another rank");
    for (size_t d = 0; d < sizes.size(); ++d) {
      // A kernel for any size, called with a constant one.
      const FactorList& list = factors->second[d];
      if (list.size() == 1 && rule.factors[list[0]].size < 0) rule.factors[list[0]].size = sizes[d];
    }
    if (tensor < num_operands) rule.operands.push_back(factors->second);
    if (!is_result) continue;
    rule.results[result] = factors->second;
    found.insert(tensor);
  }
  if (found.size() != of_results.size() || rule.operands.size() != num_operands)
    return ReplicatedKernel(view, "the call has other tensors");
  // Factors of loops and intermediate buffers alone are nobody's to shard.
  std::set<int> seen;
  for (const auto* tensors : {&rule.operands, &rule.results}) {
    for (const TensorFactors& tensor : *tensors) {
      for (const FactorList& list : tensor) seen.insert(list.begin(), list.end());
    }
  }
  rule.is_pass_through = std::all_of(seen.begin(), seen.end(), [&rule](int factor) {
    return rule.factors[factor].Is<ParallelFactor>();
  });
  RequireWholeDims(view, &rule);
  return rule;
}

namespace {

/*! \brief The call as one device makes it, its tensors as the kernel's buffers state them; nullopt
 * where the kernel has other tensors. */
std::optional<OpView> ViewOfDevice(const OpView& view) {
  std::vector<ir::BufferType> buffers;
  for (const ir::Var& param : view.kernel->function.params()) {
    auto type = ir::BufferType::Cast(param.ty());
    if (type.defined()) buffers.push_back(type);
  }
  const std::vector<size_t> of_results =
      ParamsOfResults(view.call, view.operands.size(), view.results.size());
  OpView local = view;
  local.function = nullptr;
  auto set = [&](size_t param, ir::TensorType* type) {
    if (param >= buffers.size() ||
        buffers[param].shape().size() != static_cast<size_t>(ShardableRank(*type)))
      return false;
    *type = ir::MakeTensorType(buffers[param].shape(), *type);
    return true;
  };
  for (size_t i = 0; i < local.operands.size(); ++i) {
    if (!set(i, &local.operands[i])) return std::nullopt;
  }
  for (size_t i = 0; i < local.results.size(); ++i) {
    if (!set(of_results[i], &local.results[i])) return std::nullopt;
  }
  return local;
}

/*! \brief Gives the factors of a rule, major ones first, the sizes that dimensions have. */
class RuleScaling {
 public:
  explicit RuleScaling(FactorRule* rule) : rule_(*rule), is_scaled_(rule->factors.size()) {}

  void Scale(const std::vector<TensorFactors>& tensors, const std::vector<ir::TensorType>& whole,
             const std::vector<ir::TensorType>& local) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      const Sizes sizes = StaticSizes(whole[i]), parts = StaticSizes(local[i]);
      for (size_t d = 0; d < tensors[i].size(); ++d) Scale(tensors[i][d], sizes[d], parts[d]);
    }
  }

 private:
  void Scale(const FactorList& factors, int64_t size, int64_t part) {
    if (factors.empty() || is_scaled_[factors[0]]) return;
    Factor& major = rule_.factors[factors[0]];
    is_scaled_[factors[0]] = true;
    if (size < 0 || part < 0) {
      major.size = factors.size() == 1 ? size : -1;
    } else if (part > 0 && size % part == 0 && major.size >= 0) {
      major.size *= size / part;
    }
  }

  FactorRule& rule_;
  std::vector<bool> is_scaled_;
};

}  // namespace

FactorRule RuleOfLocalView(const OpView& view) {
  if (view.kernel == nullptr) return ReplicateAll(view);
  // A rule that a user states is of whole tensors; a kernel that has one runs on any shards.
  if (auto stated = StatedRule(KernelName(view.call), view.kernel->function))
    return ApplyRule(*stated, view);
  const std::optional<OpView> local = ViewOfDevice(view);
  if (!local) return ReplicateAll(view);
  FactorRule rule = RuleOfKernelCall(*local);
  RuleScaling scaling(&rule);
  scaling.Scale(rule.operands, view.operands, local->operands);
  scaling.Scale(rule.results, view.results, local->results);
  for (Factor& factor : rule.factors) factor.may_be_uneven = false;
  return rule;
}

std::string Describe(const KernelRule& rule) {
  if (!rule.failure.empty()) return "none: " + rule.failure;
  std::map<int, size_t> numbers;
  std::ostringstream text, factors;
  for (const ir::Var& param : rule.function.params()) {
    auto found = rule.buffers.find(param.get());
    if (found == rule.buffers.end()) continue;
    text << (text.tellp() > 0 ? " " : "") << param.name();
    for (const FactorList& list : found->second) {
      text << "[";
      for (size_t i = 0; i < list.size(); ++i) {
        const Factor& factor = rule.factors[list[i]];
        text << (i > 0 ? " " : "");
        if (factor.Is<ReplicatedFactor>()) {
          text << "-";
          continue;
        }
        auto [number, inserted] = numbers.emplace(list[i], numbers.size());
        text << number->second;
        if (!inserted) continue;
        factors << (factors.tellp() > 0 ? ", " : "; ") << number->second << ": "
                << (factor.size < 0 ? "?" : std::to_string(factor.size)) << " "
                << (factor.Is<ParallelFactor>() ? "parallel"
                                                : mesh::ReductionName(factor.reduction()));
      }
      text << "]";
    }
  }
  return text.str() + factors.str();
}

TVM_FFI_STATIC_INIT_BLOCK() {
  ffi::reflection::GlobalDef().def("distir.rules.DescribeKernel", [](ir::PrimFunc function) {
    return Describe(DeriveKernelRule(function));
  });
}

}  // namespace rules
}  // namespace distir
