// Maps symbolic sizes that R.match_cast defines to sizes of the function's parameters.
#include "padding/cast_sizes.h"

#include <algorithm>
#include <vector>

#include "dialect/placement.h"
#include "ir/rewriter.h"
#include "ir/symbolic.h"

namespace distir::padding {

CastSizes::CastSizes(const ir::Function& function) {
  for (const ir::Var& param : function.params()) {
    if (ir::PrimType::Is(param.ty())) of_params_.insert(param.get());
    ir::MapDims(param.ty(), [this](const ir::Expr& dim) {
      ir::VisitVars(dim, [this](const ir::Var& size) { of_params_.insert(size.get()); });
      return dim;
    });
  }
  ir::VisitBindings(function.body(), [this](const ir::Binding& binding) {
    if (auto cast = ir::MatchCast::Cast(binding); cast.defined()) Read(cast);
  });
}

void CastSizes::Read(const ir::MatchCast& cast) {
  std::vector<ir::DTensorType> from, to;
  dialect::CollectDTensorTypes(cast.value().ty(), &from);
  dialect::CollectDTensorTypes(cast.ty(), &to);
  for (size_t i = 0; i < std::min(from.size(), to.size()); ++i) {
    if (!from[i].defined() || !to[i].defined()) continue;
    const ir::NodeArray<ir::Expr>& before = ir::ShapeOf(from[i].tensor_ty());
    const ir::NodeArray<ir::Expr>& after = ir::ShapeOf(to[i].tensor_ty());
    for (size_t d = 0; d < std::min(before.size(), after.size()); ++d) {
      if (ir::Var::Is(after[d]) && !IsKnown(after[d]) && IsKnown(before[d]))
        sizes_.emplace(after[d].get(), InParams(before[d]));
    }
  }
}

ir::Expr CastSizes::InParams(const ir::Expr& extent) const {
  if (sizes_.empty()) return extent;
  return ir::SubstituteVars(extent, [this](const ir::Var& size) {
    auto found = sizes_.find(size.get());
    return found == sizes_.end() ? ir::Expr() : found->second;
  });
}

bool CastSizes::IsKnown(const ir::Expr& extent) const {
  bool is_known = true;
  ir::VisitVars(extent, [&](const ir::Var& size) {
    is_known = is_known && (of_params_.count(size.get()) > 0 || sizes_.count(size.get()) > 0);
  });
  return is_known;
}

}  // namespace distir::padding
