// Copies kernels with resized factors, one copy for equal sizes.
#include "rules/tir/resized_kernels.h"

#include <algorithm>

#include "ir/build.h"
#include "ir/symbolic.h"
#include "rules/tir/edit.h"

namespace distir::rules {

namespace {

/*! \brief An extent of these factors with the new sizes of those in `extents`. */
ir::Expr NewExtent(const ir::Expr& extent, const FactorList& factors, const KernelRule& kernel,
                   const FactorExtents& extents) {
  int64_t size = ir::StaticDim(extent);
  bool changed = false;
  for (int factor : factors) {
    auto padded = extents.find(factor);
    if (padded == extents.end()) continue;
    size = size / kernel.factors[factor].size * padded->second;
    changed = true;
  }
  return changed ? ir::MakeIntLike(size, extent) : extent;
}

ir::PrimFunc Resize(const std::string& name, const std::string& how, const KernelRule& kernel,
                    const FactorExtents& extents) {
  ir::KernelEdit edit;
  auto reshape = [&](const ir::Var& buffer) {
    auto found = kernel.buffers.find(buffer.get());
    if (found == kernel.buffers.end()) return;
    ffi::Array<ir::Expr> shape;
    std::vector<bool> changed;
    for (const ir::Expr& size : ir::BufferType::Cast(buffer.ty()).shape()) {
      shape.push_back(NewExtent(size, found->second[shape.size()], kernel, extents));
      changed.push_back(!shape.back().same_as(size));
    }
    if (std::count(changed.begin(), changed.end(), true) > 0)
      edit.Reshape(buffer, shape, std::move(changed));
  };
  for (const ir::Var& param : kernel.function.params()) reshape(param);
  for (const ir::Var& buffer : kernel.intermediates) reshape(buffer);
  for (const auto& [variable, factors] : kernel.iterators) {
    const ir::Expr& extent = kernel.extents.at(variable);
    ir::Expr padded = NewExtent(extent, factors, kernel, extents);
    if (!padded.same_as(extent)) edit.extents[variable] = padded;
  }
  const std::string what = "kernel `" + name + "` " + how + " by its rule " + Describe(kernel);
  return EditChecked(what, kernel.function, edit,
                     ir::WithAttr(kernel.function.attrs(), "global_symbol", ffi::Any()));
}

}  // namespace

ResizedKernels::ResizedKernels(const ir::FunctionMap& functions, std::string suffix)
    : suffix_(std::move(suffix)) {
  for (const auto& [gv, base] : functions) names_.Add(gv.name());
}

ir::GlobalVar ResizedKernels::Resized(const ir::GlobalVar& name, const KernelRule& kernel,
                                      const FactorExtents& extents) {
  FactorExtents changed;
  for (const auto& [factor, extent] : extents) {
    if (kernel.factors[factor].may_be_uneven && kernel.factors[factor].size != extent)
      changed.emplace(factor, extent);
  }
  if (changed.empty()) return name;
  auto [known, is_new] = known_.try_emplace({kernel.function.get(), changed});
  if (!is_new) return known->second;
  ir::PrimFunc padded = Resize(name.name(), suffix_, kernel, changed);
  known->second = ir::MakeGlobalVar(names_.Fresh(name.name() + "_" + suffix_));
  ir::SetType(known->second, padded.ty());
  made_.emplace_back(known->second, padded);
  return known->second;
}

}  // namespace distir::rules
