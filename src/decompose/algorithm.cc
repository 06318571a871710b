// Looks up the decomposition of a call that is sharded along a dimension it needs all of.
#include "decompose/algorithm.h"

#include <tvm/ffi/error.h>

namespace distir::decompose {

bool DecomposedCall::IsDecomposed(size_t operand, int dim) const {
  if (sharding.operands[operand].dims[dim].empty()) return false;
  for (int f : rule.operands[operand][dim]) {
    if (rule.factors[f].Is<rules::DecomposedFactor>() && !sharding.factors[f].empty()) return true;
  }
  return false;
}

const mesh::AxisList& DecomposedCall::DecomposedAxes() const {
  for (size_t f = 0; f < rule.factors.size(); ++f) {
    if (rule.factors[f].Is<rules::DecomposedFactor>() && !sharding.factors[f].empty())
      return sharding.factors[f];
  }
  TVM_FFI_ICHECK(false) << "no decomposed factor is sharded";
  TVM_FFI_UNREACHABLE();
}

rules::Decomposition FindDecomposition(const ir::Expr& op) {
  const rules::Operator* record = rules::FindOperator(op);
  return record == nullptr ? nullptr : record->decomposition;
}

std::vector<int> Marked(const std::vector<bool>& mask) {
  std::vector<int> dims;
  for (size_t d = 0; d < mask.size(); ++d) {
    if (mask[d]) dims.push_back(static_cast<int>(d));
  }
  return dims;
}

}  // namespace distir::decompose
