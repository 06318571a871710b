// Resizes loops and buffers of a kernel, and proves that accesses stay in bounds.
#include "rules/tir/edit.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <functional>
#include <unordered_map>
#include <vector>

#include "ir/build.h"
#include "ir/symbolic.h"

namespace distir::rules {

namespace {

/*! \brief Walks an edited kernel, whose iterators are still those that the edit names. */
class BoundsChecker {
 public:
  BoundsChecker(const std::string& what, const ir::KernelEdit& edit) : what_(what), edit_(edit) {}

  void Run(const ir::PrimFunc& function) {
    // With a size of 0, nothing runs over it.
    for (const ir::Var& param : function.params()) {
      auto type = ir::BufferType::Cast(param.ty());
      if (!type.defined()) continue;
      for (const ir::Expr& size : type.shape())
        ir::VisitVars(size, [this](const ir::Var& var) { proofs_.BindSize(var); });
    }
    Visit(function.body());
  }

 private:
  struct Iterator {
    ir::Expr extent;
    std::vector<std::string> loops;  // that it follows from
  };

  void Visit(const ir::Stmt& stmt) {
    if (!stmt.defined()) return;
    if (auto loop = ir::For::Cast(stmt); loop.defined()) {
      Define(loop.loop_var(), loop.min(), loop.extent(), {loop.loop_var().name()});
      Visit(loop.body());
    } else if (auto realize = ir::SBlockRealize::Cast(stmt); realize.defined()) {
      VisitBlock(realize);
    } else if (auto seq = ir::SeqStmt::Cast(stmt); seq.defined()) {
      for (const ir::Stmt& one : seq.seq()) Visit(one);
    } else if (auto store = ir::BufferStore::Cast(stmt); store.defined()) {
      CheckAccess(store.buffer(), store.indices());
      VisitValue(store.value());
    } else if (auto branch = ir::IfThenElse::Cast(stmt); branch.defined()) {
      VisitValue(branch.condition());
      Visit(branch.then_case());
      Visit(branch.else_case());
    } else if (auto bind = ir::BindStmt::Cast(stmt); bind.defined()) {
      VisitValue(bind.value());
    } else if (!ir::Evaluate::Is(stmt)) {
      TVM_FFI_THROW(ValueError) << what_ << ": a statement of kind " << stmt->GetTypeKey()
                                << " cannot be checked";
    }
  }

  void VisitBlock(const ir::SBlockRealize& realize) {
    const ir::SBlock& block = realize.block();
    VisitValue(realize.predicate());
    for (size_t i = 0; i < block.iter_vars().size(); ++i) {
      const ir::IterVar& iterator = block.iter_vars()[i];
      const ir::Expr& value = realize.iter_values()[i];
      const ir::Expr& extent = iterator.dom().extent();
      if (edit_.extents.count(iterator.var().get()) > 0 || IsEdited(value)) {
        if (!IsBelow(value, extent))
          Refuse(value, "all values of block iterator `" + iterator.var().name() + "`", extent);
      }
      Define(iterator.var(), iterator.dom().min(), extent, LoopsOf(value));
    }
    Visit(block.init());
    Visit(block.body());
  }

  void VisitValue(const ir::Expr& value) {
    if (auto load = ir::TensorLoad::Cast(value); load.defined()) {
      CheckAccess(ir::Var::Cast(load.source()), load.indices());
      return;
    }
    ir::VisitOperands(value, [this](const ir::Expr& operand) { VisitValue(operand); });
  }

  void CheckAccess(const ir::Var& buffer, const ir::NodeArray<ir::Expr>& indices) {
    auto resized = edit_.resized.find(buffer.get());
    const ir::NodeArray<ir::Expr>& shape = ir::BufferType::Cast(buffer.ty()).shape();
    for (size_t d = 0; d < indices.size(); ++d) {
      VisitValue(indices[d]);
      bool is_resized = resized != edit_.resized.end() && resized->second[d];
      if (!is_resized && !IsEdited(indices[d])) continue;
      if (!IsBelow(indices[d], shape[d]))
        Refuse(indices[d], "dimension " + std::to_string(d) + " of `" + buffer.name() + "`",
               shape[d]);
    }
  }

  [[noreturn]] void Refuse(const ir::Expr& index, const std::string& where, const ir::Expr& size) {
    std::string loops;
    for (const std::string& loop : LoopsOf(index))
      loops += (loops.empty() ? "`" : ", `") + loop + "`";
    TVM_FFI_THROW(ValueError) << what_ << ": index `" << ir::Print(index) << "`"
                              << (loops.empty() ? "" : " in loop " + loops)
                              << " is not proven to stay within " << where
                              << ", of which a worker has " << ir::Print(size);
  }

  // ---- iterators

  void Define(const ir::Var& var, const ir::Expr& min, const ir::Expr& extent,
              std::vector<std::string> loops) {
    iterators_[var.get()] = {ir::StaticDim(min) == 0 ? extent : ir::Expr(), std::move(loops)};
    proofs_.Bind(var, min, extent);
  }

  /*! \brief True if an index is by an iterator whose extent was edited; what it loads is data. */
  bool IsEdited(const ir::Expr& index) const {
    bool any = false;
    VisitIterators(index,
                   [&](const ir::Var& var) { any = any || edit_.extents.count(var.get()) > 0; });
    return any;
  }

  std::vector<std::string> LoopsOf(const ir::Expr& index) const {
    std::vector<std::string> loops;
    VisitIterators(index, [&](const ir::Var& var) {
      for (const std::string& loop : iterators_.at(var.get()).loops) {
        if (std::find(loops.begin(), loops.end(), loop) == loops.end()) loops.push_back(loop);
      }
    });
    return loops;
  }

  void VisitIterators(const ir::Expr& index,
                      const std::function<void(const ir::Var&)>& visit) const {
    if (ir::TensorLoad::Is(index)) return;
    if (auto var = ir::Var::Cast(index); var.defined()) {
      if (iterators_.count(var.get()) > 0) visit(var);
      return;
    }
    ir::VisitOperands(index, [&](const ir::Expr& operand) { VisitIterators(operand, visit); });
  }

  /*! \brief True if 0 <= index < size is proven. */
  bool IsBelow(const ir::Expr& index, const ir::Expr& size) {
    // Most are an iterator itself: no need to ask.
    if (auto var = ir::Var::Cast(index); var.defined()) {
      auto found = iterators_.find(var.get());
      if (found != iterators_.end() && found->second.extent.defined() &&
          ir::SameDim(found->second.extent, size))
        return true;
    }
    return proofs_.IsWithin(index, size);
  }

  const std::string& what_;
  const ir::KernelEdit& edit_;
  std::unordered_map<const ffi::Object*, Iterator> iterators_;
  ir::IndexProofs proofs_;
};

}  // namespace

ir::PrimFunc EditChecked(const std::string& what, const ir::PrimFunc& function,
                         const ir::KernelEdit& edit, const ir::Node& attrs) {
  ir::PrimFunc edited = ir::EditKernel(function, edit, attrs);
  BoundsChecker(what, edit).Run(edited);
  return ir::RenewDefinitions(edited);
}

}  // namespace distir::rules
