// Moves buffers that a kernel allocates by a statement to the block of the kernel.
#include "unfuse/hoisted_buffers.h"

#include <vector>

#include "ir/allocation.h"
#include "ir/build.h"

namespace distir::unfuse {

namespace ffi = tvm::ffi;

namespace {

/*! \brief The kernel with the buffers that its outermost statements allocate in its block; null
 * where there are none. */
ir::PrimFunc Hoisted(const ir::PrimFunc& kernel) {
  auto root = ir::SBlockRealize::Cast(kernel.body());
  if (!root.defined() || !root.block().iter_vars().empty() || root.block().init().defined())
    return ir::PrimFunc();
  auto all = ir::SeqStmt::Cast(root.block().body());
  if (!all.defined()) return ir::PrimFunc();
  ffi::Array<ir::Var> buffers = root.block().alloc_buffers();
  std::vector<ir::Stmt> statements;
  for (const ir::Stmt& stmt : all.seq()) {
    if (const ir::Var buffer = ir::AllocatedBuffer(stmt); buffer.defined()) {
      buffers.push_back(buffer);
    } else {
      statements.push_back(stmt);
    }
  }
  if (statements.empty() || statements.size() == all.seq().size()) return ir::PrimFunc();
  return ir::MakeSection(kernel, kernel.params(), buffers, statements, kernel.attrs());
}

}  // namespace

ir::IRModule HoistBuffers(const ir::IRModule& mod) {
  ir::FunctionMap functions = mod.functions();
  bool any = false;
  for (const auto& [name, base] : ir::OrderedFunctions(mod)) {
    auto kernel = ir::PrimFunc::Cast(base);
    if (!kernel.defined()) continue;
    const ir::PrimFunc hoisted = Hoisted(kernel);
    if (!hoisted.defined()) continue;
    functions.Set(name, hoisted);
    any = true;
  }
  return any ? ir::MakeModule(functions, mod.attrs(), mod.global_infos()) : mod;
}

}  // namespace distir::unfuse
