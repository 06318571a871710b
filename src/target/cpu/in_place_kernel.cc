// Finds kernels whose result may take the memory of an operand.
#include "target/cpu/in_place_kernel.h"

#include <unordered_set>

#include "ir/build.h"
#include "ir/symbolic.h"

namespace distir::target {

namespace ffi = tvm::ffi;

namespace {

class Accesses {
 public:
  Accesses(const ir::Var& operand, const ir::Var& result) : operand_(operand), result_(result) {}

  bool AreElementwise(const ir::Stmt& body) {
    Visit(body);
    return fits_ && num_stores_ == 1;
  }

 private:
  void Visit(const ir::Stmt& stmt) {
    if (!fits_ || !Uses(stmt)) return;
    if (auto loop = ir::For::Cast(stmt); loop.defined()) {
      has_loop_ = true;
      fits_ = !block_.defined();
      return Visit(loop.body());
    }
    if (auto realize = ir::SBlockRealize::Cast(stmt); realize.defined())
      return VisitBlock(realize.block());
    if (auto sequence = ir::SeqStmt::Cast(stmt); sequence.defined()) {
      for (const ir::Stmt& each : sequence.seq()) Visit(each);
      return;
    }
    if (auto store = ir::BufferStore::Cast(stmt); store.defined()) return VisitStore(store);
    fits_ = false;
  }

  void VisitBlock(const ir::SBlock& block) {
    const bool is_root = block.iter_vars().empty() && !has_loop_;
    fits_ = !block_.defined() && block.match_buffers().empty() && !block.init().defined();
    if (!is_root) block_ = block;
    Visit(block.body());
    block_ = ir::SBlock();
  }

  void VisitStore(const ir::BufferStore& store) {
    ++num_stores_;
    fits_ = store.buffer().same_as(result_) && IndicesAreIterators(store.indices());
    VisitValue(store.value(), store.indices());
  }

  /*! \brief True if the store runs once per element: its indices are all iterators of its block. */
  bool IndicesAreIterators(const ir::NodeArray<ir::Expr>& indices) const {
    std::unordered_set<const ffi::Object*> used;
    for (const ir::Expr& index : indices) {
      if (ir::IntImm::Is(index)) continue;
      if (!ir::Var::Is(index) || !used.insert(index.get()).second) return false;
    }
    if (!block_.defined()) return used.empty() && !has_loop_;
    for (const ir::IterVar& each : block_.iter_vars()) {
      if (each.kind() != ir::IteratorKind::kSpatial) return false;
      if (used.erase(each.var().get()) == 0 && ir::StaticDim(each.dom().extent()) != 1)
        return false;
    }
    return used.empty();
  }

  void VisitValue(const ir::Expr& value, const ir::NodeArray<ir::Expr>& indices) {
    if (!fits_) return;
    if (auto load = ir::TensorLoad::Cast(value); load.defined()) {
      if (load.source().same_as(result_)) fits_ = false;
      if (load.source().same_as(operand_)) {
        for (size_t d = 0; d < indices.size(); ++d)
          fits_ = fits_ && ir::StructurallyEqual(load.indices()[d], indices[d]);
      }
      for (const ir::Expr& index : load.indices()) VisitValue(index, indices);
      return;
    }
    const bool is_known =
        ir::VisitOperands(value, [&](const ir::Expr& each) { VisitValue(each, indices); });
    fits_ = fits_ && is_known;
  }

  bool Uses(const ir::Stmt& stmt) const {
    for (const ir::Var& var : ir::UsedVars(stmt)) {
      if (var.same_as(operand_) || var.same_as(result_)) return true;
    }
    return false;
  }

  const ir::Var operand_, result_;
  ir::SBlock block_;  // around the statement, other than the kernel's own
  bool has_loop_ = false;
  bool fits_ = true;
  int num_stores_ = 0;
};

bool IsCompact(const ir::Var& param) {
  const auto buffer = ir::BufferType::Cast(param.ty());
  return buffer.defined() && buffer.IsCompact();
}

}  // namespace

bool CanWriteToOperand(const ir::PrimFunc& kernel, size_t operand) {
  const ir::NodeArray<ir::Var>& params = kernel.params();
  if (operand + 1 >= params.size()) return false;
  const ir::Var &from = params[operand], to = params[params.size() - 1];
  return IsCompact(from) && IsCompact(to) && Accesses(from, to).AreElementwise(kernel.body());
}

}  // namespace distir::target
