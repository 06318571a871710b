// SplitFused, in order: kernels become operators first, so that combined products show as R.concat
// and R.split.
#include "unfuse/pass.h"

#include "dialect/operators/annotation.h"
#include "dialect/placement.h"
#include "ir/rewriter.h"
#include "support/functions.h"
#include "unfuse/combined_products.h"
#include "unfuse/data_extents.h"
#include "unfuse/epilogues.h"
#include "unfuse/hoisted_buffers.h"
#include "unfuse/lifted_operators.h"
#include "unfuse/sorted_rows.h"
#include "unfuse/unrolled_sums.h"

namespace distir::unfuse {

namespace {

bool StatesSharding(const ir::IRModule& mod) {
  bool any = false;
  for (const auto& [name, base] : mod.functions()) {
    const ir::Function function = ir::Function::Cast(base);
    if (!function.defined() || any) continue;
    for (const ir::Var& param : function.params()) any = any || dialect::HasDTensor(param.ty());
    ir::VisitBindings(function.body(), [&any](const ir::Binding& binding) {
      any = any || dialect::IsAnnotation(ir::BoundCall(binding)) ||
            dialect::HasDTensor(binding.var().ty());
    });
  }
  return any;
}

// For who looks at a module before it is partitioned.
TVM_FFI_STATIC_INIT_BLOCK() {
  support::Functions().def("distir.unfuse.LiftOperators", LiftOperators);
}

}  // namespace

ir::IRModule SplitFused(const ir::IRModule& mod) {
  if (!StatesSharding(mod)) return mod;
  return SplitEpilogues(JoinTerms(
      KeepOwnOrder(SeparateProducts(LiftOperators(LeaveDataExtentsOpen(HoistBuffers(mod)))))));
}

}  // namespace distir::unfuse
