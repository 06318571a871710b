// Finds buffers that would hold partial results if a reduction were sharded.
#include "rules/tir/partial_buffers.h"

#include <algorithm>

#include "support/dtypes.h"

namespace distir::rules {

using mesh::Reduction;

const PartialClasses& PartialBuffers::Of(const ffi::Object* buffer) const {
  static const PartialClasses none;
  auto found = partial_.find(buffer);
  return found == partial_.end() ? none : found->second;
}

void PartialBuffers::Spread() {
  for (bool changed = true; changed;) {
    changed = false;
    for (const Statement& statement : kernel_.statements) {
      if (statement.reduction != Reduction::kNone) {
        for (int index : digits_.ClassesOf(statement.reductions)) {
          if (!digits_.IsPinned(index))
            changed = Enter(statement.buffer, index, statement.reduction) || changed;
        }
      }
      changed = PassOn(statement) || changed;
    }
  }
}

bool PartialBuffers::Enter(const ffi::Object* buffer, int index, Reduction kind) {
  auto [it, inserted] = partial_[buffer].emplace(index, kind);
  if (!inserted && it->second != kind && !digits_.IsPinned(index)) {
    digits_.PinClass(index);
    return true;
  }
  return inserted;
}

bool PartialBuffers::PassOn(const Statement& statement) {
  PartialClasses incoming;
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
  std::vector<int> loops = digits_.ClassesOf(statement.loops);
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

bool PartialBuffers::IsPassedOn(const Statement& statement, int index, Reduction kind) const {
  if (statement.reduction == Reduction::kNone) return Commutes(statement.value, index, kind);
  if (statement.reduction != kind || statement.terms.size() != 1) return false;
  return Commutes(statement.terms[0], index, kind);
}

bool PartialBuffers::IsPartial(const ir::Expr& expr, int index) const {
  for (const ffi::Object* buffer : LoadedBuffers(expr)) {
    auto found = partial_.find(buffer);
    if (found != partial_.end() && found->second.count(index) > 0) return true;
  }
  return false;
}

bool PartialBuffers::Commutes(const ir::Expr& expr, int index, Reduction kind) const {
  if (auto load = ir::TensorLoad::Cast(expr); load.defined()) {
    for (const ir::Expr& position : load.indices()) {
      if (IsPartial(position, index)) return false;
    }
    return IsPartial(expr, index);
  }
  if (auto cast = ir::CastExpr::Cast(expr); cast.defined()) {
    return IsFloat(ir::ScalarType(expr)) && IsFloat(ir::ScalarType(cast.value())) &&
           Commutes(cast.value(), index, kind);
  }
  ir::BinaryExpr binary = ir::BinaryExpr::Cast(expr);
  if (kind != Reduction::kSum || !binary.defined()) return false;
  bool partial_a = IsPartial(binary.a(), index);
  bool partial_b = IsPartial(binary.b(), index);
  switch (binary.kind()) {
    case ir::BinaryKind::kMul:
      return partial_a != partial_b && Commutes(partial_a ? binary.a() : binary.b(), index, kind);
    case ir::BinaryKind::kDiv:
      return IsFloat(ir::ScalarType(expr)) && !partial_b && Commutes(binary.a(), index, kind);
    case ir::BinaryKind::kAdd:
    case ir::BinaryKind::kSub:
      return Commutes(binary.a(), index, kind) && Commutes(binary.b(), index, kind);
    default:
      return false;
  }
}

}  // namespace distir::rules
