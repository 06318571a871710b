// Maps the symbolic sizes of a callee to expressions of the caller.
#include "padding/callee_sizes.h"

#include <algorithm>
#include <vector>

#include "ir/leaves.h"
#include "ir/symbolic.h"
#include "rules/factor/factor_rule.h"

namespace distir::padding {

namespace ffi = tvm::ffi;

namespace {

/*! \brief The dimensions of the tensors and shapes in a type, in order. */
std::vector<ir::NodeArray<ir::Expr>> DimsOf(const ir::Type& type) {
  std::vector<ir::NodeArray<ir::Expr>> all;
  ir::ForEachLeaf(type, [&all](const ir::Type& leaf) {
    if (auto shape = ir::ShapeType::Cast(leaf); shape.defined()) {
      all.push_back(shape.values().value_or(ffi::Array<ir::Expr>()));
      return;
    }
    std::vector<ir::TensorType> tensor;
    rules::CollectTensorTypes(leaf, &tensor);
    all.push_back(tensor.empty() ? ir::NodeArray<ir::Expr>() : ir::ShapeOf(tensor[0]));
  });
  return all;
}

}  // namespace

CalleeSizes::CalleeSizes(const ir::Function& callee, const ir::Call& call) {
  for (size_t i = 0; i < call.args().size(); ++i) {
    // A number is a size by its own name.
    if (ir::PrimType::Is(callee.params()[i].ty()))
      sizes_.emplace(callee.params()[i].get(), call.args()[i]);
    const auto given = DimsOf(call.args()[i].ty()), taken = DimsOf(callee.params()[i].ty());
    for (size_t t = 0; t < std::min(given.size(), taken.size()); ++t) {
      for (size_t d = 0; d < std::min(given[t].size(), taken[t].size()); ++d) {
        if (ir::Var::Is(taken[t][d])) sizes_.emplace(taken[t][d].get(), given[t][d]);
      }
    }
  }
}

ir::Expr CalleeSizes::Find(const ir::Expr& size) const {
  auto found = sizes_.find(size.get());
  return found == sizes_.end() ? ir::Expr() : found->second;
}

ir::Expr CalleeSizes::InCaller(const ir::Expr& extent) const {
  return ir::SubstituteVars(extent, [this](const ir::Var& size) { return Find(size); });
}

}  // namespace distir::padding
