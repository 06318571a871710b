// Lists the statements of a kernel, and makes kernels of some of them.
#include "unfuse/statements.h"

#include <algorithm>

#include "ir/build.h"
#include "ir/symbolic.h"

namespace distir::unfuse {

std::vector<ir::Stmt> StatementsOf(const ir::PrimFunc& kernel) {
  auto root = ir::SBlockRealize::Cast(kernel.body());
  if (!root.defined() || !root.block().iter_vars().empty() || root.block().init().defined() ||
      !root.block().match_buffers().empty())
    return {};
  auto body = ir::SeqStmt::Cast(root.block().body());
  if (!body.defined()) return {root.block().body()};
  return {body.seq().begin(), body.seq().end()};
}

bool HasReduction(const ir::Stmt& stmt) {
  if (auto loop = ir::For::Cast(stmt); loop.defined()) return HasReduction(loop.body());
  if (auto seq = ir::SeqStmt::Cast(stmt); seq.defined())
    return std::any_of(seq.seq().begin(), seq.seq().end(), HasReduction);
  if (auto branch = ir::IfThenElse::Cast(stmt); branch.defined())
    return HasReduction(branch.then_case()) ||
           (branch.else_case().defined() && HasReduction(branch.else_case()));
  auto realize = ir::SBlockRealize::Cast(stmt);
  if (!realize.defined()) return false;
  const auto& iterators = realize.block().iter_vars();
  return HasReduction(realize.block().body()) ||
         std::any_of(iterators.begin(), iterators.end(), [](const ir::IterVar& each) {
           return each.kind() == ir::IteratorKind::kReduction;
         });
}

void Section::Add(const ir::Stmt& stmt) {
  statements.push_back(stmt);
  for (const ir::Var& var : ir::UsedVars(stmt)) uses.insert(var.get());
}

bool StatesSizes(const ir::NodeArray<ir::Var>& params, const Section& section,
                 const ir::PrimFunc& kernel) {
  std::set<const ffi::Object*> stated, all;
  const auto read = [](const ir::Var& param, std::set<const ffi::Object*>* sizes) {
    if (!ir::BufferType::Is(param.ty())) return void(sizes->insert(param.get()));
    for (const ir::Expr& size : ir::BufferType::Cast(param.ty()).shape()) {
      if (ir::Var::Is(size)) sizes->insert(size.get());
    }
  };
  for (const ir::Var& param : params) read(param, &stated);
  for (const ir::Var& param : kernel.params()) read(param, &all);
  return std::all_of(all.begin(), all.end(), [&](const ffi::Object* size) {
    return section.uses.count(size) == 0 || stated.count(size) > 0;
  });
}

std::optional<std::vector<SizeOf>> SizesOf(const ir::Var& buffer, const ir::PrimFunc& kernel) {
  std::vector<SizeOf> sizes;
  for (const ir::Expr& size : ir::BufferType::Cast(buffer.ty()).shape()) {
    const size_t known = sizes.size();
    if (ir::StaticDim(size) >= 0) sizes.push_back({ir::StaticDim(size)});
    for (size_t p = 0; p < kernel.params().size() && sizes.size() == known; ++p) {
      auto type = ir::BufferType::Cast(kernel.params()[p].ty());
      if (!type.defined()) continue;
      for (size_t d = 0; d < type.shape().size() && sizes.size() == known; ++d) {
        if (ir::SameDim(type.shape()[d], size)) sizes.push_back({-1, p, d});
      }
    }
    if (sizes.size() == known) return std::nullopt;
  }
  return sizes;
}

ir::PrimFunc MakeKernel(const ir::PrimFunc& like, const ir::NodeArray<ir::Var>& params,
                        const ir::NodeArray<ir::Var>& buffers, const Section& section) {
  ir::Node attrs = ir::WithAttr(like.attrs(), "global_symbol", ffi::Any());
  attrs = ir::WithAttr(attrs, "op_pattern", ffi::Any());
  return ir::RenewDefinitions(ir::MakeSection(like, params, buffers, section.statements, attrs));
}

}  // namespace distir::unfuse
