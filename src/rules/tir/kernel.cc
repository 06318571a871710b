// Reads the iterators, accesses and reductions of a TIR kernel.
#include "rules/tir/kernel.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "ir/symbolic.h"
#include "rules/tir/index.h"

namespace distir::rules {

namespace {

void CollectLoads(const ir::Expr& expr, std::vector<const ffi::Object*>* out) {
  if (auto load = ir::TensorLoad::Cast(expr); load.defined()) {
    out->push_back(load.source().get());
    for (const ir::Expr& index : load.indices()) CollectLoads(index, out);
    return;
  }
  ir::VisitOperands(expr, [out](const ir::Expr& operand) { CollectLoads(operand, out); });
}

bool IsConstant(const ir::Expr& expr) {
  if (auto cast = ir::CastExpr::Cast(expr); cast.defined()) return IsConstant(cast.value());
  return ir::IntImm::Is(expr) || ir::FloatImm::Is(expr);
}

bool IsConstant(const ir::Expr& expr, int64_t value) {
  if (auto cast = ir::CastExpr::Cast(expr); cast.defined()) return IsConstant(cast.value(), value);
  if (auto number = ir::FloatImm::Cast(expr); number.defined())
    return number.value() == static_cast<double>(value);
  return ir::IntImm::Is(expr) && ir::IntImm::Cast(expr).value() == value;
}

mesh::Reduction ReductionOf(ir::BinaryKind kind) {
  switch (kind) {
    case ir::BinaryKind::kAdd:
      return mesh::Reduction::kSum;
    case ir::BinaryKind::kMul:
      return mesh::Reduction::kProd;
    case ir::BinaryKind::kMax:
      return mesh::Reduction::kMax;
    case ir::BinaryKind::kMin:
      return mesh::Reduction::kMin;
    default:
      return mesh::Reduction::kNone;
  }
}

bool IsDivision(const ir::BinaryExpr& binary) {
  return binary.kind() == ir::BinaryKind::kFloorDiv || binary.kind() == ir::BinaryKind::kFloorMod;
}

enum class Of { kRemainders, kBoth };  // and quotients

/*! \brief The largest divisor of what divides in an index; 0 where nothing does, kUnbounded where
 * it is no constant. */
int64_t LargestDivisor(const ir::Expr& index, Of of) {
  int64_t largest = 0;
  ir::BinaryExpr binary = ir::BinaryExpr::Cast(index);
  if (binary.defined() && IsDivision(binary) &&
      (of == Of::kBoth || binary.kind() == ir::BinaryKind::kFloorMod)) {
    const int64_t divisor = ir::StaticDim(binary.b());
    largest = divisor > 0 ? divisor : kUnbounded;
  }
  ir::VisitOperands(index, [&largest, of](const ir::Expr& operand) {
    largest = std::max(largest, LargestDivisor(operand, of));
  });
  return largest;
}

int CountDivisions(const ir::Expr& index) {
  const ir::BinaryExpr binary = ir::BinaryExpr::Cast(index);
  int count = binary.defined() && IsDivision(binary) ? 1 : 0;
  ir::VisitOperands(index, [&count](const ir::Expr& operand) { count += CountDivisions(operand); });
  return count;
}

/*! \brief True if an expression divides integers by what may be zero. */
bool MayDivideByZero(const ir::Expr& expr) {
  ir::BinaryExpr binary = ir::BinaryExpr::Cast(expr);
  const uint8_t code = ir::ScalarType(expr).code;
  if (!binary.defined() || (code != kDLInt && code != kDLUInt)) return false;
  switch (binary.kind()) {
    case ir::BinaryKind::kDiv:
    case ir::BinaryKind::kMod:
    case ir::BinaryKind::kFloorDiv:
    case ir::BinaryKind::kFloorMod:
      return !IsConstant(binary.b()) || IsConstant(binary.b(), 0);
    default:
      return false;
  }
}

// The start value counts once per shard, so it must not change the result when it does.
bool MayStartEveryShard(mesh::Reduction kind, const ir::Expr& init) {
  switch (kind) {
    case mesh::Reduction::kSum:
      return IsConstant(init, 0);
    case mesh::Reduction::kProd:
      return IsConstant(init, 1);
    default:
      return IsConstant(init);
  }
}

class KernelReader {
 public:
  explicit KernelReader(Kernel* kernel) : kernel_(*kernel) {}

  void Run(const ir::PrimFunc& function) {
    for (const ir::Var& param : function.params()) {
      if (ir::BufferType::Is(param.ty())) AddBuffer(param);
    }
    Visit(function.body());
    if (kernel_.failure.empty()) kernel_.digits.Solve();
  }

 private:
  void Fail(const std::string& reason) {
    if (kernel_.failure.empty()) kernel_.failure = reason;
  }

  // ---- ranges

  void AddBuffer(const ir::Var& buffer) {
    auto type = ir::BufferType::Cast(buffer.ty());
    if (!type.IsCompact())
      Fail("buffer `" + buffer.name() + "` has strides, an offset or a layout");
    std::vector<int>& dims = kernel_.buffers[buffer.get()];
    for (const ir::Expr& size : type.shape()) {
      if (ir::StaticDim(size) == 0) Fail("buffer `" + buffer.name() + "` is empty");
      dims.push_back(kernel_.digits.AddRange(ir::StaticDim(size)));
      kernel_.sizes.resize(dims.back() + 1);
      kernel_.sizes[dims.back()] = size;
    }
  }

  int AddIterator(const ir::Var& var, const ir::Expr& extent) {
    if (ir::StaticDim(extent) == 0) Fail("the extent of `" + var.name() + "` is 0");
    int range = kernel_.digits.AddRange(ir::StaticDim(extent));
    kernel_.iterators[var.get()] = range;
    kernel_.extents[var.get()] = extent;
    kernel_.iterator_order.push_back(var);
    kernel_.sizes.resize(range + 1);
    kernel_.sizes[range] = extent;
    return range;
  }

  std::optional<Iterator> FindIterator(const ir::Var& var) const {
    auto it = kernel_.iterators.find(var.get());
    if (it == kernel_.iterators.end()) return std::nullopt;
    return Iterator{it->second, kernel_.sizes[it->second]};
  }

  // ---- statements

  void Visit(const ir::Stmt& stmt) {
    if (!kernel_.failure.empty() || !stmt.defined()) return;
    if (auto loop = ir::For::Cast(stmt); loop.defined()) {
      VisitLoop(loop);
    } else if (auto realize = ir::SBlockRealize::Cast(stmt); realize.defined()) {
      VisitBlock(realize);
    } else if (auto seq = ir::SeqStmt::Cast(stmt); seq.defined()) {
      for (const ir::Stmt& one : seq.seq()) Visit(one);
    } else if (auto store = ir::BufferStore::Cast(stmt); store.defined()) {
      VisitStore(store);
    } else if (auto branch = ir::IfThenElse::Cast(stmt); branch.defined()) {
      VisitValue(branch.condition());
      MarkConsumed(branch.condition());
      Visit(branch.then_case());
      Visit(branch.else_case());
    } else if (auto bind = ir::BindStmt::Cast(stmt); bind.defined()) {
      VisitValue(bind.value());
      MarkConsumed(bind.value());
    } else if (auto evaluate = ir::Evaluate::Cast(stmt); evaluate.defined()) {
      if (!ir::IntImm::Is(evaluate.value())) Fail("it evaluates an expression for its effect");
    } else {
      Fail(std::string("it has a statement of kind ") + std::string(stmt->GetTypeKey()));
    }
  }

  void VisitLoop(const ir::For& loop) {
    VisitExtent(loop.extent());
    int range = AddIterator(loop.loop_var(), loop.extent());
    if (!loop.IsPlain() && !IsGridLoop(loop, range))
      kernel_.digits.Break(range, "loop `" + loop.loop_var().name() +
                                      "` is bound to a thread, or does not count 0, 1, ..");
    loops_.push_back(range);
    iterators_.push_back(range);
    Visit(loop.body());
    loops_.pop_back();
    iterators_.pop_back();
  }

  // Blocks of a grid are independent, so there may be fewer of them; threads of one share memory.
  // Loops that are bound to the same have the same extent.
  bool IsGridLoop(const ir::For& loop, int range) {
    std::string tag = loop.ThreadTag();
    if (tag.rfind("blockIdx", 0) != 0) return false;
    auto [first, is_first] = grid_.emplace(tag, range);
    if (!is_first) kernel_.digits.Break(first->second, "several loops are bound to " + tag);
    return is_first;
  }

  // An extent may be symbolic, but not depend on what is being computed.
  void VisitExtent(const ir::Expr& extent) {
    if (auto var = ir::Var::Cast(extent); var.defined()) {
      if (kernel_.iterators.count(var.get()) > 0) Fail("an extent depends on another iterator");
    } else if (ir::TensorLoad::Is(extent)) {
      Fail("an extent is read from a buffer");
    } else if (!ir::VisitOperands(extent, [this](const ir::Expr& e) { VisitExtent(e); })) {
      Fail("an extent is no arithmetic expression");
    }
  }

  void VisitBlock(const ir::SBlockRealize& realize) {
    const ir::SBlock& block = realize.block();
    if (!block.match_buffers().empty()) return Fail("it matches parts of buffers as buffers");
    std::vector<int> iterators, reductions;
    for (size_t i = 0; i < block.iter_vars().size(); ++i) {
      const ir::IterVar& iterator = block.iter_vars()[i];
      VisitExtent(iterator.dom().extent());
      const ir::Expr& value = realize.iter_values()[i];
      // The value is in terms of outer iterators: read it before this one is known.
      std::optional<DigitSum> digits = ReadIndexOf(value);
      int range = AddIterator(iterator.var(), iterator.dom().extent());
      Connect(range, iterator.var(), -1, value, digits);
      bindings_[iterator.var().get()] = value;
      if (ir::StaticDim(iterator.dom().min()) != 0 || iterator.kind() == ir::IteratorKind::kOther)
        kernel_.digits.Break(range, "block iterator `" + iterator.var().name() +
                                        "` is neither parallel nor a reduction from 0");
      iterators.push_back(range);
      if (iterator.kind() == ir::IteratorKind::kReduction) reductions.push_back(range);
    }
    if (ir::StaticDim(realize.predicate()) != 1) {
      VisitValue(realize.predicate());
      MarkConsumed(realize.predicate());
    }
    for (const ir::Var& buffer : block.alloc_buffers()) {
      AddBuffer(buffer);
      kernel_.intermediates.push_back(buffer);
    }
    for (const auto* regions : {&block.reads(), &block.writes()}) {
      for (const ir::TensorRegion& region : *regions) VisitRegion(region);
    }

    ir::Stmt init = block.init();
    std::swap(iterators_, iterators);
    std::swap(reductions_, reductions);
    std::swap(init_, init);
    is_init_ = true;
    Visit(init_);
    is_init_ = false;
    Visit(block.body());
    std::swap(iterators_, iterators);
    std::swap(reductions_, reductions);
    std::swap(init_, init);
  }

  void VisitRegion(const ir::TensorRegion& region) {
    auto dims = kernel_.buffers.find(region.source().get());
    if (dims == kernel_.buffers.end()) return Fail("it reads or writes an unknown buffer");
    for (size_t d = 0; d < region.region().size(); ++d) {
      const ir::Range& part = region.region()[d];
      int dim = dims->second[d];
      if (ir::StaticDim(part.extent()) == 1) {
        Connect(dim, region.source(), static_cast<int>(d), part.min(), ReadIndexOf(part.min()));
        continue;
      }
      bool is_whole =
          ir::StaticDim(part.min()) == 0 && ir::SameDim(part.extent(), kernel_.sizes[dim]);
      if (is_whole) continue;
      const std::string why =
          "a block reads or writes `" + region.source().name() + "` in parts of several elements";
      kernel_.digits.Break(dim, why);
      VisitUnread(part.min(), why);
      VisitUnread(part.extent(), why);
    }
  }

  void VisitStore(const ir::BufferStore& store) {
    auto dims = kernel_.buffers.find(store.buffer().get());
    if (dims == kernel_.buffers.end()) return Fail("it writes an unknown buffer");
    VisitAccess(store.buffer(), dims->second, store.indices());
    for (const ir::Expr& index : store.indices()) {
      if (!LoadedBuffers(index).empty()) MarkConsumed(index);
    }
    VisitValue(store.value());
    Statement statement{store.buffer().get(), store.value(), is_init_, loops_,
                        iterators_,           reductions_,   {},       {}};
    if (!is_init_ && !reductions_.empty()) ReadReduction(store, &statement);
    kernel_.statements.push_back(std::move(statement));
  }

  // buffer[i] = buffer[i] + terms, begun by a block that may run once per shard.
  void ReadReduction(const ir::BufferStore& store, Statement* statement) {
    auto init = ir::BufferStore::Cast(init_);
    if (!init.defined() || !SameElement(store, init.buffer(), init.indices())) return;
    ir::BinaryExpr update = ir::BinaryExpr::Cast(store.value());
    if (!update.defined()) return;
    mesh::Reduction kind = ReductionOf(update.kind());
    if (kind == mesh::Reduction::kNone || !MayStartEveryShard(kind, init.value())) return;
    std::vector<ir::Expr> terms;
    FlattenTerms(store.value(), update.kind(), &terms);
    int own = 0;
    for (const ir::Expr& term : terms) {
      auto load = ir::TensorLoad::Cast(term);
      if (load.defined() && load.source().same_as(store.buffer())) {
        if (!SameElement(store, ir::Var::Cast(load.source()), load.indices())) return;
        ++own;
        continue;
      }
      std::vector<const ffi::Object*> loaded = LoadedBuffers(term);
      if (std::count(loaded.begin(), loaded.end(), store.buffer().get()) > 0) return;
      statement->terms.push_back(term);
    }
    if (own == 1) statement->reduction = kind;
  }

  static bool SameElement(const ir::BufferStore& store, const ir::Var& buffer,
                          const ir::NodeArray<ir::Expr>& indices) {
    if (!buffer.same_as(store.buffer())) return false;
    for (size_t d = 0; d < indices.size(); ++d) {
      if (!ir::SameDim(indices[d], store.indices()[d])) return false;
    }
    return true;
  }

  static void FlattenTerms(const ir::Expr& expr, ir::BinaryKind kind, std::vector<ir::Expr>* out) {
    ir::BinaryExpr binary = ir::BinaryExpr::Cast(expr);
    if (binary.defined() && binary.kind() == kind) {
      FlattenTerms(binary.a(), kind, out);
      FlattenTerms(binary.b(), kind, out);
    } else {
      out->push_back(expr);
    }
  }

  // A value that decides what is run is no result that could be reduced later.
  void MarkConsumed(const ir::Expr& value) {
    kernel_.statements.push_back(
        {nullptr, value, false, loops_, iterators_, {}, mesh::Reduction::kNone, {}});
  }

  // ---- expressions

  void VisitValue(const ir::Expr& value) {
    if (auto load = ir::TensorLoad::Cast(value); load.defined()) {
      auto dims = kernel_.buffers.find(load.source().get());
      if (dims == kernel_.buffers.end()) return Fail("it reads an unknown buffer");
      VisitAccess(ir::Var::Cast(load.source()), dims->second, load.indices());
      return;
    }
    if (auto var = ir::Var::Cast(value); var.defined()) {
      if (kernel_.buffers.count(var.get()) > 0) return Fail("it passes a buffer on");
      auto it = kernel_.iterators.find(var.get());
      if (it != kernel_.iterators.end()) kernel_.digits.Pin(it->second);
      return MarkNumbers(var);
    }
    if (PinDigitsOf(value)) return MarkNumbers(value);
    if (MayDivideByZero(value)) MarkPositions(value);
    if (!ir::VisitOperands(value, [this](const ir::Expr& operand) { VisitValue(operand); })) {
      Fail(std::string("it has an expression of kind ") + std::string(value->GetTypeKey()) +
           " that may have effects");
    }
  }

  // A quotient or a remainder needs only its own digits: of i % 8 the blocks of 8 may lie anywhere.
  bool PinDigitsOf(const ir::Expr& value) {
    ir::BinaryExpr binary = ir::BinaryExpr::Cast(value);
    if (!binary.defined() || !IsDivision(binary)) return false;
    std::optional<DigitSum> digits = ReadIndexOf(value);
    if (!digits) return false;
    for (const Digit& digit : *digits) {
      kernel_.digits.Pin(digit.range, digit.low, digit.extent);
      MarkDivided(digit.range, LargestDivisor(value, Of::kBoth));
    }
    return true;
  }

  // An index that is not understood: what it names on a part of the iterators is not known either.
  void VisitUnread(const ir::Expr& index, const std::string& why) {
    if (auto var = ir::Var::Cast(index); var.defined()) {
      if (auto iterator = FindIterator(var)) kernel_.digits.Break(iterator->range, why);
    }
    if (ir::TensorLoad::Is(index) || ir::Var::Is(index)) return VisitValue(index);
    if (MayDivideByZero(index)) MarkPositions(index);
    if (!ir::VisitOperands(index, [&](const ir::Expr& operand) { VisitUnread(operand, why); }))
      VisitValue(index);  // fails
  }

  void VisitAccess(const ir::Var& buffer, const std::vector<int>& dims,
                   const ir::NodeArray<ir::Expr>& indices) {
    if (dims.size() != indices.size()) return Fail("an access has another rank than its buffer");
    for (const ir::Expr& index : indices) MarkPositions(index);
    for (size_t d = 0; d < dims.size(); ++d)
      Connect(dims[d], buffer, static_cast<int>(d), indices[d], ReadIndexOf(indices[d]));
  }

  void MarkPositions(const ir::Expr& expr) {
    for (const ffi::Object* buffer : LoadedBuffers(expr)) kernel_.positions.insert(buffer);
  }

  void MarkNumbers(const ir::Expr& expr) {
    if (ir::Var::Is(expr) && kernel_.iterators.count(expr.get()) == 0)
      kernel_.numbers.insert(expr.get());
    ir::VisitOperands(expr, [this](const ir::Expr& operand) { MarkNumbers(operand); });
  }

  std::optional<DigitSum> ReadIndexOf(const ir::Expr& index) const {
    return ReadIndex(index, [this](const ir::Var& var) { return FindIterator(var); });
  }

  void MarkDivided(int range, int64_t divisor) {
    int64_t& largest = kernel_.divided[range];
    largest = std::max(largest, divisor);
  }
  void MarkDivided(const ir::Expr& index, int64_t divisor) {
    if (auto var = ir::Var::Cast(index); var.defined()) {
      if (auto iterator = FindIterator(var)) MarkDivided(iterator->range, divisor);
    }
    ir::VisitOperands(index,
                      [this, divisor](const ir::Expr& operand) { MarkDivided(operand, divisor); });
  }

  // A reshape says (h * 4 + s) % 48 of 12 heads of 4; with more heads it is h * 4 + s still.
  ir::Expr Plain(const ir::Expr& index, const std::optional<DigitSum>& digits) {
    const int divisions = CountDivisions(index);
    if (!digits || divisions == 0 || !ir::BinaryExpr::Cast(index).defined()) return index;
    const ir::Expr plain =
        WriteIndex(*digits, index, [this](const ir::Var& var) { return FindIterator(var); });
    if (!plain.defined() || CountDivisions(plain) >= divisions) return index;
    kernel_.plainer[index.get()] = plain;
    return plain;
  }

  // Links a range to the digits that run over all of it; breaks it, and them, when none do.
  void Connect(int range, const ir::Var& owner, int dim, const ir::Expr& stated,
               const std::optional<DigitSum>& digits) {
    const ir::Expr index = Plain(stated, digits);
    MarkNumbers(index);
    // A quotient may run over any extent; a remainder is below its divisor.
    if (const int64_t divisor = LargestDivisor(index, Of::kRemainders); divisor > 0)
      MarkDivided(range, divisor);
    if (const int64_t divisor = LargestDivisor(index, Of::kBoth); divisor > 0)
      MarkDivided(index, divisor);
    if (digits && Covers(*digits, range)) {
      int64_t low = 1;
      for (auto digit = digits->rbegin(); digit != digits->rend(); ++digit) {
        bool is_open = digit->extent < 0;
        kernel_.digits.Link(range, low, digit->range, digit->low,
                            is_open ? kUnbounded : digit->extent);
        if (!is_open) low *= digit->extent;
      }
      return;
    }
    std::vector<std::string> loops;
    CollectLoops(index, &loops);
    std::string why = loops.empty() ? "no loop runs over " : "";
    for (const std::string& loop : loops) why += (why.empty() ? "loop `" : ", `") + loop + "`";
    if (!loops.empty()) why += " does not run over ";
    why += dim < 0 ? "block iterator" : "dimension " + std::to_string(dim) + " of";
    why += " `" + owner.name() + "` from first to last";
    kernel_.digits.Break(range, why);
    VisitUnread(index, why);
  }

  /*! \brief The names of the loops that an index follows from. */
  void CollectLoops(const ir::Expr& index, std::vector<std::string>* out) const {
    if (auto var = ir::Var::Cast(index); var.defined()) {
      auto binding = bindings_.find(var.get());
      if (binding != bindings_.end()) return CollectLoops(binding->second, out);
      if (FindIterator(var) && std::count(out->begin(), out->end(), std::string(var.name())) == 0)
        out->push_back(var.name());
    }
    ir::VisitOperands(index, [&](const ir::Expr& operand) { CollectLoops(operand, out); });
  }

  // True if the digits are those of a mixed-radix number below the size of the range.
  bool Covers(const DigitSum& digits, int range) const {
    int64_t place = 1;
    for (auto digit = digits.rbegin(); digit != digits.rend(); ++digit) {
      if (digit->scale != place) return false;
      if (digit->extent < 0) {
        return std::next(digit) == digits.rend() &&
               ir::SameDim(ir::Multiply(kernel_.sizes[digit->range], place), kernel_.sizes[range]);
      }
      place *= digit->extent;
    }
    return kernel_.digits.SizeOf(range) == place;
  }

  Kernel& kernel_;
  std::unordered_map<const ffi::Object*, ir::Expr> bindings_;  // of block iterators
  std::vector<int> loops_, iterators_, reductions_;
  std::map<std::string, int> grid_;  // the first loop bound to each
  ir::Stmt init_;                    // of the innermost block
  bool is_init_ = false;
};

}  // namespace

Kernel ReadKernel(const ir::PrimFunc& function) {
  Kernel kernel;
  KernelReader(&kernel).Run(function);
  return kernel;
}

std::vector<const ffi::Object*> LoadedBuffers(const ir::Expr& expr) {
  std::vector<const ffi::Object*> loads;
  CollectLoads(expr, &loads);
  return loads;
}

}  // namespace distir::rules
