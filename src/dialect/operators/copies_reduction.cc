// Reads R.ccl.allreduce on DTensors, as upstream's LowerGlobalViewToLocalView writes it, as a
// reduction of copies.
#include "dialect/operators/copies_reduction.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "dialect/mesh_table.h"
#include "dialect/operators/collective.h"
#include "ir/build.h"
#include "ir/operator_attrs.h"

namespace distir::dialect {

bool IsCopiesReduction(const ir::Expr& op) { return ir::IsOp(op, "relax.ccl.allreduce"); }

bool IsLegalizable(const ir::Call& call) {
  return ir::IsOp(call.op(), "relax.dist.redistribute") ||
         (IsCopiesReduction(call.op()) && ir::DTensorType::Is(call.args()[0].ty()));
}

void RequireCopies(const ir::Call& call) {
  auto type = ir::DTensorType::Cast(call.args()[0].ty());
  if (!type.defined()) return;
  const std::vector<int> dims = PlacementDims(type.placement());
  if (std::all_of(dims.begin(), dims.end(), [](int dim) { return dim < 0; })) return;
  auto var = ir::Var::Cast(call.args()[0]);
  TVM_FFI_THROW(ValueError) << "R.ccl.allreduce reduces the copies of a replicated DTensor; `"
                            << (var.defined() ? std::string(var.name()) : "its argument")
                            << "` is sharded: " << ir::Print(type) << "; redistribute it first";
}

ir::Call MakeCopiesReduction(const ir::Call& call, const ir::Expr& value) {
  RequireCopies(call);
  auto type = ir::DTensorType::Cast(value.ty());
  const std::string name = ir::attrs::kAllReduceOpType(call.attrs()).cast<ffi::String>();
  std::vector<int> axes(type.device_mesh().shape().size());
  std::iota(axes.begin(), axes.end(), 0);
  return MakeCollective(CollectiveKind::kAllReduce, value, type, axes,
                        name == "avg" ? mesh::Reduction::kMean : mesh::ReductionFromName(name));
}

}  // namespace distir::dialect
