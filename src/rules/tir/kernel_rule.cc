// Derives the factor rule of a TIR kernel from its index maps.
#include "rules/tir/kernel_rule.h"

#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include "ir/symbolic.h"
#include "rules/tir/kernel.h"
#include "rules/tir/partial_buffers.h"
#include "support/functions.h"

namespace distir::rules {

namespace {

using mesh::Reduction;

class RuleDeriver {
 public:
  RuleDeriver(ir::PrimFunc function, Kernel kernel)
      : function_(std::move(function)),
        kernel_(std::move(kernel)),
        digits_(kernel_.digits),
        partial_(kernel_, &digits_) {}

  KernelRule Run() {
    KernelRule rule;
    rule.function = function_;
    rule.failure = kernel_.failure;
    if (!rule.failure.empty()) return rule;
    FindWritten(&rule);
    PinRepeated();
    PinUncovered();
    PinSharedReductions();
    partial_.Spread();
    PinUnfinished();
    PinUnnested();
    Fill(&rule);
    MarkUneven(&rule);
    return rule;
  }

 private:
  // ---- classes of things

  /*! \brief The factors of a range: each class of digits becomes one. */
  FactorList FactorsOf(int range) const {
    const std::vector<int>& classes = digits_.ClassesOf(range);
    return FactorList(classes.begin(), classes.end());
  }

  std::set<int> BufferClasses(const ffi::Object* buffer) const {
    std::vector<int> classes = digits_.ClassesOf(kernel_.buffers.at(buffer));
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
    for (const auto& [buffer, dims] : kernel_.buffers) PinRepeatedIn(digits_.ClassesOf(dims));
    for (const Statement& statement : kernel_.statements) {
      PinRepeatedIn(digits_.ClassesOf(statement.loops));
      PinRepeatedIn(digits_.ClassesOf(statement.iterators));
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
      std::vector<int> reduced = digits_.ClassesOf(statement.reductions);
      if (!statement.is_init && statement.reduction == Reduction::kNone) PinAll(reduced);
      for (int index : reduced) {
        if (written.count(index) > 0) digits_.PinClass(index);
      }
      for (int index : digits_.ClassesOf(statement.loops)) {
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
        PinAll(digits_.ClassesOf(statement.reductions));
    }
  }

  // A reduction is one of the rule only when it ends in the kernel's one output, of which nothing
  // else is sharded alike.
  void PinUnfinished() {
    for (const Statement& statement : kernel_.statements) {
      for (int index : digits_.ClassesOf(statement.reductions)) {
        bool ends_well = outputs_.size() == 1 && partial_.Of(outputs_[0]).count(index) > 0;
        if (!ends_well) digits_.PinClass(index);
      }
    }
    if (outputs_.size() != 1) return;
    std::set<int> sharded = BufferClasses(outputs_[0]);
    for (const auto& [index, kind] : partial_.Of(outputs_[0])) {
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
    const PartialClasses no_state;
    const PartialClasses& state = outputs_.size() == 1 ? partial_.Of(outputs_[0]) : no_state;
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
      factor.may_be_uneven = !factor.Is<ReplicatedFactor>() &&
                             (factor.size < 0 ? IsOnlyExtent(index) : factor.size > 1) &&
                             IsStatedByExtents(index) && !IsOfPositions(index) &&
                             (factor.Is<ParallelFactor>() || IsNeutral(index, factor.reduction()));
    }
  }

  // True if only the extents of loops and buffers say how large a class is: as a minor digit it is
  // in the strides of those before it, and a quotient or a remainder may be by its size. One by no
  // more than the digits behind it is not: in j // 8 and j % 8 of (groups, 4 words, 8 numbers)
  // there may be any number of groups.
  bool IsStatedByExtents(int index) const {
    for (int range = 0; range < digits_.num_ranges(); ++range) {
      const std::vector<int>& classes = digits_.ClassesOf(range);
      auto found = std::find(classes.begin(), classes.end(), index);
      if (found == classes.end()) continue;
      if (found != classes.begin()) return false;
      auto divided = kernel_.divided.find(range);
      if (divided != kernel_.divided.end() && divided->second > MinorSize(classes)) return false;
    }
    return true;
  }

  // True if the variables in the size of a class, which is symbolic, say nothing else than how
  // large it is: with a longer buffer the kernel is that of another size then. They must not be the
  // size of another class, which keeps its own, nor arguments.
  bool IsOnlyExtent(int index) const {
    std::set<const ffi::Object*> variables;
    std::vector<std::set<const ffi::Object*>> of_ranges(kernel_.sizes.size());
    for (size_t range = 0; range < of_ranges.size(); ++range) {
      ir::VisitVars(kernel_.sizes[range],
                    [&](const ir::Var& var) { of_ranges[range].insert(var.get()); });
      if (IsOf(index, static_cast<int>(range)))
        variables.insert(of_ranges[range].begin(), of_ranges[range].end());
    }
    for (const ir::Var& param : function_.params()) {
      if (variables.count(param.get()) > 0) return false;
    }
    auto is_free = [&](const ffi::Object* variable) {
      if (kernel_.numbers.count(variable) > 0) return false;
      for (size_t range = 0; range < of_ranges.size(); ++range) {
        if (of_ranges[range].count(variable) > 0 && !IsOf(index, static_cast<int>(range)))
          return false;
      }
      return true;
    };
    return std::all_of(variables.begin(), variables.end(), is_free);
  }

  /*! \brief True if a range has digits of a class. */
  bool IsOf(int index, int range) const {
    const std::vector<int>& classes = digits_.ClassesOf(range);
    return std::find(classes.begin(), classes.end(), index) != classes.end();
  }

  // True if a tail along a class would hold positions or divisors.
  bool IsOfPositions(int index) const {
    return std::any_of(
        kernel_.positions.begin(), kernel_.positions.end(),
        [&](const ffi::Object* buffer) { return BufferClasses(buffer).count(index) > 0; });
  }

  /*! \brief Number of elements in one element of the major class. */
  int64_t MinorSize(const std::vector<int>& classes) const {
    int64_t size = 1;
    for (size_t i = 1; i < classes.size(); ++i) size *= digits_.ClassSize(classes[i]);
    return size;
  }

  // True if neutral elements in the tails of the operands give neutral elements to reduce.
  bool IsNeutral(int index, Reduction kind) const {
    for (const Statement& statement : kernel_.statements) {
      const std::vector<int> reduced = digits_.ClassesOf(statement.reductions);
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

  const ir::PrimFunc function_;
  Kernel kernel_;
  DigitTable& digits_;
  PartialBuffers partial_;
  std::vector<const ffi::Object*> outputs_;
  Reduction final_kind_ = Reduction::kNone;
};

}  // namespace

KernelRule DeriveKernelRule(const ir::PrimFunc& function) {
  Kernel kernel = ReadKernel(function);
  if (kernel.plainer.empty() || !kernel.failure.empty())
    return RuleDeriver(function, std::move(kernel)).Run();
  ir::KernelEdit edit;
  edit.arithmetic = std::move(kernel.plainer);
  return RuleDeriver(ir::EditKernel(function, edit, function.attrs()), std::move(kernel)).Run();
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
  support::Functions().def("distir.rules.DescribeKernel", [](ir::PrimFunc function) {
    return Describe(DeriveKernelRule(function));
  });
}

}  // namespace distir::rules
