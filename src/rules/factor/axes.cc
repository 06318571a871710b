// Reads axis attributes and arguments, negative ones included.
#include "rules/factor/axes.h"

namespace distir::rules {

std::optional<std::vector<int>> ReadAxes(const ffi::Any& value, int rank) {
  auto array = value.as<ffi::Array<int64_t>>();
  if (array.has_value()) {
    std::vector<int> axes;
    for (int64_t axis : *array) axes.push_back(NormalizeAxis(axis, rank));
    return axes;
  }
  if (auto axis = value.as<int64_t>()) return std::vector<int>{NormalizeAxis(*axis, rank)};
  return std::nullopt;
}

std::vector<bool> AxisMask(const ffi::Any& value, int rank) {
  auto axes = ReadAxes(value, rank);
  std::vector<bool> mask(rank, !axes.has_value());
  if (axes) {
    for (int axis : *axes) {
      if (axis >= 0 && axis < rank) mask[axis] = true;
    }
  }
  return mask;
}

std::optional<std::vector<int64_t>> IntegersOf(const ir::Expr& tuple) {
  auto fields = ir::Tuple::Cast(tuple);
  if (!fields.defined()) return std::nullopt;
  std::vector<int64_t> values;
  for (const ir::Expr& field : fields.fields()) {
    if (!ir::IntImm::Is(field)) return std::nullopt;
    values.push_back(ir::IntImm::Cast(field).value());
  }
  return values;
}

}  // namespace distir::rules
