// Counts floating-point operations and bytes of a TIR kernel by walking its loops.
#include "analysis/kernel_count.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "ir/build.h"
#include "ir/symbolic.h"

namespace distir::analysis {

namespace {

// Loops whose inner loops depend on their variable are counted turn by turn, up to so many turns of
// all such loops together.
constexpr int64_t kMostTurns = int64_t{1} << 20;

constexpr std::array kTranscendental = {
    "acos",  "acosh",   "asin",  "asinh", "atan", "atan2", "atanh", "cos",  "cosh",
    "erf",   "exp",     "exp10", "exp2",  "log",  "log10", "log1p", "log2", "pow",
    "rsqrt", "sigmoid", "sin",   "sinh",  "sqrt", "tan",   "tanh"};
constexpr std::array kCountedOnce = {"ceil",  "copysign",  "fabs",  "floor", "fmod",
                                     "ldexp", "nearbyint", "round", "trunc"};

template <typename List>
bool Contains(const List& list, const std::string& name) {
  return std::any_of(list.begin(), list.end(), [&name](const char* each) { return name == each; });
}

bool IsFloat(DLDataType dtype) {
  return dtype.bits > 0 && dtype.code != kDLInt && dtype.code != kDLUInt &&
         dtype.code != kDLOpaqueHandle && dtype.code != kDLBool;
}

/*! \brief Operations and bytes of one run of a statement. */
struct Count {
  Operations operations;
  double transcendentals = 0;
  std::unordered_map<const ffi::Object*, double> loads, stores;
  /*! \brief A variable without which it cannot be counted, or null. */
  const ffi::Object* missing = nullptr;
  std::string unknown;

  double Total() const {
    double total = transcendentals;
    for (const auto& [dtype, number] : operations) total += number;
    return total;
  }
  double Accesses() const {
    double total = 0;
    for (const auto& [buffer, number] : loads) total += number;
    for (const auto& [buffer, number] : stores) total += number;
    return total;
  }
  void Add(const Count& other, double times = 1) {
    for (const auto& [dtype, number] : other.operations) operations[dtype] += times * number;
    transcendentals += times * other.transcendentals;
    for (const auto& [buffer, number] : other.loads) loads[buffer] += times * number;
    for (const auto& [buffer, number] : other.stores) stores[buffer] += times * number;
    if (missing == nullptr) missing = other.missing;
    if (unknown.empty()) unknown = other.unknown;
  }
};

const Count& MoreExpensive(const Count& a, const Count& b) {
  const double of_a = a.Total(), of_b = b.Total();
  if (of_a != of_b) return of_a > of_b ? a : b;
  return a.Accesses() >= b.Accesses() ? a : b;
}

class Counter {
 public:
  explicit Counter(SizeValues values) : values_(std::move(values)) {}

  Count Of(const ir::Stmt& stmt) {
    if (auto loop = ir::For::Cast(stmt); loop.defined()) return OfLoop(loop);
    if (auto realize = ir::SBlockRealize::Cast(stmt); realize.defined()) return OfBlock(realize);
    Count count;
    if (auto seq = ir::SeqStmt::Cast(stmt); seq.defined()) {
      for (const ir::Stmt& each : seq.seq()) count.Add(Of(each));
    } else if (auto store = ir::BufferStore::Cast(stmt); store.defined()) {
      OfExpr(store.value(), &count);
      for (const ir::Expr& index : store.indices()) OfExpr(index, &count);
      count.stores[store.buffer().get()] += Lanes(store.value());
      written_first_.emplace(SourceOf(store.buffer().get()), true);
    } else if (auto branch = ir::IfThenElse::Cast(stmt); branch.defined()) {
      OfExpr(branch.condition(), &count);
      Count on_false;
      if (branch.else_case().defined()) on_false = Of(branch.else_case());
      const auto known = ValueOf(branch.condition());
      if (known.has_value()) {
        count.Add(*known != 0 ? Of(branch.then_case()) : on_false);
      } else {
        count.Add(MoreExpensive(Of(branch.then_case()), on_false));
      }
    } else if (auto bind = ir::BindStmt::Cast(stmt); bind.defined()) {
      OfExpr(bind.value(), &count);
    } else if (auto evaluate = ir::Evaluate::Cast(stmt); evaluate.defined()) {
      OfExpr(evaluate.value(), &count);
    } else if (auto attribute = ir::AttrStmt::Cast(stmt); attribute.defined()) {
      return Of(attribute.body());
    } else if (!ir::IsDeclaration(stmt)) {
      count.unknown = "a statement " + std::string(stmt.GetTypeKey());
    }
    return count;
  }

 private:
  Count OfLoop(const ir::For& loop) {
    Count count;
    const auto extent = ValueOf(loop.extent());
    if (!extent.has_value()) {
      Fail(&count, "a loop of unknown length");
      return count;
    }
    Count body = Of(loop.body());
    if (body.missing != loop.loop_var().get()) {
      count.Add(body, static_cast<double>(std::max<int64_t>(*extent, 0)));
      return count;
    }
    // Inner loops depend on the turn.
    const auto first = ValueOf(loop.min());
    turns_ += *extent;
    if (!first.has_value() || turns_ > kMostTurns) {
      count.unknown = "loops whose lengths depend on each other";
      return count;
    }
    for (int64_t turn = 0; turn < *extent; ++turn) {
      values_[loop.loop_var().get()] = *first + turn;
      count.Add(Of(loop.body()));
    }
    values_.erase(loop.loop_var().get());
    return count;
  }

  Count OfBlock(const ir::SBlockRealize& realize) {
    const ir::SBlock& block = realize.block();
    Count count;
    double reduced = 1;
    for (size_t i = 0; i < block.iter_vars().size(); ++i) {
      const ir::IterVar& iterator = block.iter_vars()[i];
      iterators_[iterator.var().get()] = realize.iter_values()[i];
      OfExpr(realize.iter_values()[i], &count);
      if (iterator.kind() != ir::IteratorKind::kReduction) continue;
      if (auto extent = ValueOf(iterator.dom().extent()); extent.has_value() && *extent > 0)
        reduced *= static_cast<double>(*extent);
    }
    for (const ir::Node& node : block.match_buffers()) {
      const auto match = ir::MatchBuffer::Cast(node);
      sources_[match.buffer().get()] = match.source().source().get();
    }
    // An initial value is stored once for all turns of the reduction.
    if (block.init().defined()) count.Add(Of(block.init()), 1 / reduced);
    count.Add(Of(block.body()));
    return count;
  }

  static double Lanes(const ir::Expr& expr) {
    return std::max<double>(1, ir::ScalarType(expr).lanes);
  }

  /*! \brief Counts an expression; returns the narrowest type that its numbers were stored in, or
   * kUnknownDtype for constants and what is no float. */
  DLDataType OfExpr(const ir::Expr& expr, Count* count) {
    const DLDataType dtype = ir::ScalarType(expr);
    if (auto load = ir::TensorLoad::Cast(expr); load.defined()) {
      for (const ir::Expr& index : load.indices()) OfExpr(index, count);
      count->loads[load.source().get()] += Lanes(expr);
      written_first_.emplace(SourceOf(load.source().get()), false);
      return IsFloat(dtype) ? dtype : ir::kUnknownDtype;
    }
    if (auto cast = ir::CastExpr::Cast(expr); cast.defined()) {
      const DLDataType of = OfExpr(cast.value(), count);
      const bool widens = of.bits != 0 && of.bits < dtype.bits;
      return !IsFloat(dtype) ? ir::kUnknownDtype : widens ? of : dtype;
    }
    if (auto binary = ir::BinaryExpr::Cast(expr); binary.defined()) {
      const DLDataType of = Narrower(OfExpr(binary.a(), count), OfExpr(binary.b(), count));
      if (!IsFloat(dtype)) return ir::kUnknownDtype;
      const DLDataType by = of.bits == 0 ? dtype : of;
      count->operations[{by.code, by.bits}] += Lanes(expr);
      return by;
    }
    if (auto call = ir::Call::Cast(expr); call.defined()) return OfCall(call, dtype, count);
    DLDataType of = ir::kUnknownDtype;
    const bool is_known = ir::VisitOperands(
        expr, [&](const ir::Expr& operand) { of = Narrower(of, OfExpr(operand, count)); });
    if (!is_known && count->unknown.empty())
      count->unknown = "an expression " + std::string(expr.GetTypeKey());
    return IsFloat(dtype) ? (of.bits == 0 && ir::Var::Is(expr) ? dtype : of) : ir::kUnknownDtype;
  }

  DLDataType OfCall(const ir::Call& call, DLDataType dtype, Count* count) {
    const ir::Op op = ir::Op::Cast(call.op());
    const std::string full = op.defined() ? std::string(op.name()) : std::string();
    const std::string name = full.substr(full.find('.') + 1);
    if (name == "if_then_else" && call.args().size() == 3) {
      OfExpr(call.args()[0], count);
      Count on_true, on_false;
      const DLDataType of =
          Narrower(OfExpr(call.args()[1], &on_true), OfExpr(call.args()[2], &on_false));
      const auto known = ValueOf(call.args()[0]);
      if (known.has_value()) {
        count->Add(*known != 0 ? on_true : on_false);
      } else {
        count->Add(MoreExpensive(on_true, on_false));
      }
      return of;
    }
    DLDataType of = ir::kUnknownDtype;
    const bool is_known = ir::VisitOperands(
        call, [&](const ir::Expr& operand) { of = Narrower(of, OfExpr(operand, count)); });
    if (!is_known && count->unknown.empty() && name != "tvm_storage_sync")
      count->unknown = "a call of " + ir::CalleeName(call);
    // The zero that the compiler writes so that TVM does not know it, |-0.0|, is no operation.
    if (!IsFloat(dtype) || IsConstant(call)) return ir::kUnknownDtype;
    const DLDataType by = of.bits == 0 ? dtype : of;
    if (Contains(kTranscendental, name)) {
      count->transcendentals += Lanes(call);
    } else if (Contains(kCountedOnce, name)) {
      count->operations[{by.code, by.bits}] += Lanes(call);
    } else if (name == "fma") {
      count->operations[{by.code, by.bits}] += 2 * Lanes(call);
    }
    return by;
  }

  /*! \brief True if an expression has neither variables nor elements of tensors. */
  static bool IsConstant(const ir::Expr& expr) {
    if (ir::Var::Is(expr) || ir::TensorLoad::Is(expr)) return false;
    bool is_constant = true;
    const bool is_known = ir::VisitOperands(expr, [&is_constant](const ir::Expr& operand) {
      is_constant = is_constant && IsConstant(operand);
    });
    return is_known && is_constant;
  }

  static DLDataType Narrower(DLDataType a, DLDataType b) {
    if (a.bits == 0) return b;
    return b.bits == 0 || a.bits <= b.bits ? a : b;
  }

  /*! \brief The value of an integer; nullopt where it is not known. missing_ is why. */
  std::optional<int64_t> ValueOf(const ir::Expr& expr) {
    missing_ = nullptr;
    const auto value = Evaluate(expr);
    return value.has_value() || missing_ != nullptr ? value : Simplified(expr);
  }

  /*! \brief Evaluates an expression that Evaluate has no case for, by TVM's simplifier. */
  std::optional<int64_t> Simplified(const ir::Expr& expr) {
    bool is_known = true;
    const ir::Expr number = ir::SubstituteVars(expr, [&](const ir::Var& var) {
      const auto value = Evaluate(var);
      is_known = is_known && value.has_value();
      return value.has_value() ? ir::MakeIntLike(*value, var) : ir::Expr();
    });
    const auto constant = ir::IntImm::Cast(number);
    if (!is_known || !constant.defined()) return std::nullopt;
    return constant.value();
  }

  std::optional<int64_t> Evaluate(const ir::Expr& expr) {
    if (auto number = ir::IntImm::Cast(expr); number.defined()) return number.value();
    if (ir::Var::Is(expr)) {
      if (auto found = values_.find(expr.get()); found != values_.end()) return found->second;
      if (auto found = iterators_.find(expr.get()); found != iterators_.end())
        return Evaluate(found->second);
      missing_ = expr.get();
      return std::nullopt;
    }
    if (auto cast = ir::CastExpr::Cast(expr); cast.defined()) return Evaluate(cast.value());
    const ir::BinaryExpr binary = ir::BinaryExpr::Cast(expr);
    if (!binary.defined()) return std::nullopt;
    const auto a = Evaluate(binary.a());
    if (!a.has_value()) return std::nullopt;
    const auto b = Evaluate(binary.b());
    if (!b.has_value()) return std::nullopt;
    switch (binary.kind()) {
      case ir::BinaryKind::kAdd:
        return *a + *b;
      case ir::BinaryKind::kSub:
        return *a - *b;
      case ir::BinaryKind::kMul:
        return *a * *b;
      case ir::BinaryKind::kMin:
        return std::min(*a, *b);
      case ir::BinaryKind::kMax:
        return std::max(*a, *b);
      case ir::BinaryKind::kFloorDiv:
      case ir::BinaryKind::kFloorMod: {
        if (*b == 0) return std::nullopt;
        const int64_t quotient = *a / *b - ((*a % *b != 0 && (*a < 0) != (*b < 0)) ? 1 : 0);
        return binary.kind() == ir::BinaryKind::kFloorDiv ? quotient : *a - quotient * *b;
      }
      default:
        return std::nullopt;
    }
  }

  void Fail(Count* count, const char* why) const {
    count->missing = missing_;
    if (missing_ == nullptr) count->unknown = why;
  }

 public:
  /*! \brief The parameter or allocation that a buffer is a part of. */
  const ffi::Object* SourceOf(const ffi::Object* buffer) const {
    auto found = sources_.find(buffer);
    return found == sources_.end() ? buffer : SourceOf(found->second);
  }
  std::optional<int64_t> SizeOf(const ir::Expr& extent) { return ValueOf(extent); }
  /*! \brief True if a buffer is written before it is read, so that nothing in it comes from memory.
   */
  bool IsWrittenFirst(const ffi::Object* buffer) const {
    auto found = written_first_.find(buffer);
    return found != written_first_.end() && found->second;
  }

 private:
  SizeValues values_;
  std::unordered_map<const ffi::Object*, ir::Expr> iterators_;  // of blocks
  std::unordered_map<const ffi::Object*, const ffi::Object*> sources_;
  std::unordered_map<const ffi::Object*, bool> written_first_;
  const ffi::Object* missing_ = nullptr;
  int64_t turns_ = 0;
};

const ir::NodeArray<ir::Expr>& ShapeOfArgument(const ir::Expr& argument) {
  static const ir::NodeArray<ir::Expr> none;
  const ir::TensorType type = ir::TensorType::Cast(argument.ty());
  return type.defined() && ir::HasKnownShape(type) ? ir::ShapeOf(type) : none;
}

}  // namespace

bool HasSymbolicSizes(const ir::PrimFunc& kernel) {
  for (const ir::Var& param : kernel.params()) {
    const ir::BufferType type = ir::BufferType::Cast(param.ty());
    if (!type.defined()) return true;
    for (const ir::Expr& extent : type.shape()) {
      if (ir::StaticDim(extent) < 0) return true;
    }
  }
  return false;
}

KernelCount CountKernel(const ir::PrimFunc& kernel, const ir::NodeArray<ir::Expr>& arguments) {
  SizeValues values;
  for (size_t i = 0; i < kernel.params().size() && i < arguments.size(); ++i) {
    const ir::Var& param = kernel.params()[i];
    const ir::BufferType type = ir::BufferType::Cast(param.ty());
    if (!type.defined()) {
      if (auto number = ir::IntImm::Cast(arguments[i]); number.defined())
        values[param.get()] = number.value();
      continue;
    }
    const ir::NodeArray<ir::Expr>& shape = ShapeOfArgument(arguments[i]);
    for (size_t d = 0; d < shape.size() && d < type.shape().size(); ++d) {
      const int64_t size = ir::StaticDim(shape[d]);
      if (ir::Var::Is(type.shape()[d]) && size >= 0) values[type.shape()[d].get()] = size;
    }
  }
  Counter counter(std::move(values));
  const Count count = counter.Of(kernel.body());
  KernelCount result;
  result.operations = count.operations;
  result.transcendentals = count.transcendentals;
  result.unknown = count.unknown;
  if (count.missing != nullptr && result.unknown.empty())
    result.unknown = "a loop whose length depends on data";
  std::unordered_map<const ffi::Object*, double> loads, stores;
  for (const auto& [buffer, number] : count.loads) loads[counter.SourceOf(buffer)] += number;
  for (const auto& [buffer, number] : count.stores) stores[counter.SourceOf(buffer)] += number;
  for (const ir::Var& param : kernel.params()) {
    double elements = 0, bytes = 0;
    if (auto type = ir::BufferType::Cast(param.ty()); type.defined()) {
      elements = 1;
      for (const ir::Expr& extent : type.shape()) {
        const auto size = counter.SizeOf(extent);
        if (!size.has_value() && result.unknown.empty())
          result.unknown = "a size that depends on data";
        elements *= static_cast<double>(size.value_or(1));
      }
      const DLDataType dtype = type.element_type();
      bytes = std::ceil(dtype.bits * std::max<int>(dtype.lanes, 1) / 8.0);
    }
    const double loaded = counter.IsWrittenFirst(param.get()) ? 0 : loads[param.get()];
    result.bytes_read.push_back(std::min(loaded, elements) * bytes);
    result.bytes_written.push_back(std::min(stores[param.get()], elements) * bytes);
  }
  return result;
}

}  // namespace distir::analysis
