// Reads kernel statements that copy elements, each from an index that is linear in the target's.
#include "unfuse/copies.h"

#include "ir/symbolic.h"
#include "unfuse/statements.h"

namespace distir::unfuse {

std::optional<int64_t> ValueAt(const ir::Expr& index, const ir::Var& variable, int64_t value) {
  if (index.same_as(variable)) return value;
  if (ir::Var::Is(index)) return 0;
  if (auto number = ir::IntImm::Cast(index); number.defined()) return number.value();
  const ir::BinaryExpr both = ir::BinaryExpr::Cast(index);
  if (!both.defined()) return std::nullopt;
  const auto a = ValueAt(both.a(), variable, value), b = ValueAt(both.b(), variable, value);
  if (!a || !b) return std::nullopt;
  switch (both.kind()) {
    case ir::BinaryKind::kAdd:
      return *a + *b;
    case ir::BinaryKind::kSub:
      return *a - *b;
    case ir::BinaryKind::kMul:
      return *a * *b;
    default:
      return std::nullopt;
  }
}

int64_t StepOf(const ir::Expr& index, const ir::Var& variable) {
  const auto first = ValueAt(index, variable, 0), second = ValueAt(index, variable, 1);
  return first && second ? *second - *first : 0;
}

std::optional<Copy> ReadCopy(const ir::SBlock& block, const ir::BufferStore& store) {
  ir::Expr value = store.value();
  Copy copy;
  if (auto choice = ir::Call::Cast(value);
      choice.defined() && ir::IsOp(choice.op(), "prim.if_then_else")) {
    value = choice.args()[1];
    copy.otherwise = choice.args()[2];
  }
  auto load = ir::TensorLoad::Cast(value);
  const size_t rank = block.iter_vars().size();
  if (!load.defined() || load.indices().size() != rank || ShapeOf(store.buffer()).size() != rank)
    return std::nullopt;
  copy.x = ir::Var::Cast(load.source());
  if (!copy.x.defined()) return std::nullopt;
  for (size_t d = 0; d < rank; ++d) {
    const ir::Var& iterator = block.iter_vars()[d].var();
    for (const ir::IterVar& other : block.iter_vars()) {
      if (!other.var().same_as(iterator) && StepOf(load.indices()[d], other.var()) != 0)
        return std::nullopt;
    }
    const auto first = ValueAt(load.indices()[d], iterator, 0);
    if (!first) return std::nullopt;
    const ir::Expr &size = ShapeOf(copy.x)[d], &extent = ShapeOf(store.buffer())[d];
    const Along along{*first, StepOf(load.indices()[d], iterator), ir::StaticDim(size),
                      ir::StaticDim(extent)};
    const bool is_static = along.size >= 0 && along.extent >= 0;
    if (!is_static && !(along.IsAll() && ir::SameDim(size, extent))) return std::nullopt;
    copy.dims.push_back(along);
  }
  return copy;
}

}  // namespace distir::unfuse
