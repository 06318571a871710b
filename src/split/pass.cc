// SplitFused: kernels become operators first, so that what products were combined of shows as
// R.concat and R.split.
#include "split/pass.h"

#include "dialect/operators/annotation.h"
#include "dialect/placement.h"
#include "ir/rewriter.h"
#include "split/combined_products.h"
#include "split/data_extents.h"
#include "split/epilogues.h"
#include "split/hoisted_buffers.h"
#include "split/lifted_operators.h"
#include "split/sorted_rows.h"
#include "split/unrolled_sums.h"
#include "support/functions.h"

namespace distir {
namespace split {

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
  support::Functions().def("distir.split.LiftOperators", LiftOperators);
}

}  // namespace

ir::IRModule SplitFused(const ir::IRModule& mod) {
  if (!StatesSharding(mod)) return mod;
  return SplitEpilogues(JoinTerms(
      KeepOwnOrder(SeparateProducts(LiftOperators(LeaveDataExtentsOpen(HoistBuffers(mod)))))));
}

}  // namespace split
}  // namespace distir
