// Decides which operands and results of collectives get memory of the runtime.
#include "target/cpu/collective_memory.h"

#include "ir/symbolic.h"

namespace distir::target {

namespace {

constexpr int64_t kSmallestElements = int64_t{1} << 14;

}  // namespace

bool IsLargeTensor(const ir::Type& type) {
  ir::TensorType tensor = ir::TensorType::Cast(type);
  ir::ShapeExpr shape = tensor.defined() ? ir::ShapeExpr::Cast(tensor.shape()) : ir::ShapeExpr();
  if (!shape.defined()) return false;
  int64_t count = 1;
  for (const ir::Expr& extent : shape.values()) {
    const int64_t known = ir::StaticDim(extent);
    if (known < 0) return true;
    count *= known;
  }
  return count >= kSmallestElements;
}

}  // namespace distir::target
