#include "rules/resizing.h"

#include <numeric>
#include <optional>
#include <string>

#include "rules/layout.h"

namespace distir {
namespace rules {

namespace {

struct ResizeFields {
  explicit ResizeFields(const char* key)
      : layout(key, "layout"),
        method(key, "method"),
        places(key, "coordinate_transformation_mode"),
        rounding(key, "rounding_method"),
        cubic_exclude(key, "cubic_exclude") {}
  ir::AttrField layout, method, places, rounding, cubic_exclude;
};

const ResizeFields kResize2d("relax.attrs.Resize2DAttrs");
const ResizeFields kResize3d("relax.attrs.Resize3DAttrs");

/*! \brief Whether every pixel is one of its group, and which one does not depend on how large the
 * numbers are that its place is computed from. */
bool IsNearestInGroup(const std::string& places, const std::string& rounding, int64_t group,
                      int64_t result_group) {
  if (places == "asymmetric")
    return (rounding.empty() || rounding == "floor") && (group == 1 || result_group == 1);
  if (result_group == 1) return true;
  // Places halfway between two pixels are exact between whole numbers of pixels only.
  return rounding.rfind("round", 0) == 0 && group % 2 != 0;
}

std::optional<int64_t> ReachOf(const ResizeFields& fields, const OpView& view, int64_t group,
                               int64_t result_group) {
  const ir::Node& attrs = view.call.attrs();
  const std::string method = fields.method.Text(attrs), places = fields.places.Text(attrs);
  if (places != "half_pixel" && places != "pytorch_half_pixel" && places != "asymmetric")
    return std::nullopt;
  if (method == "nearest_neighbor") {
    if (!IsNearestInGroup(places, fields.rounding.Text(attrs), group, result_group))
      return std::nullopt;
    return 0;
  }
  // Integers are rounded in the end, where the last bit of a place counts.
  const uint8_t code = view.operands[0].dtype().dtype().code;
  if (code != kDLFloat && code != kDLBfloat) return std::nullopt;
  if (method == "linear") return 1;
  if (method == "cubic" && fields.cubic_exclude.Int(attrs, 0) == 0) return 2;
  return std::nullopt;
}

}  // namespace

std::vector<ResizedDim> ResizedDims(const OpView& view) {
  const bool is_2d = ir::IsOp(view.call.op(), "relax.image.resize2d");
  if (!is_2d && !ir::IsOp(view.call.op(), "relax.image.resize3d")) return {};
  const ResizeFields& fields = is_2d ? kResize2d : kResize3d;
  const std::string layout = LayoutLetters(fields.layout.Text(view.call.attrs()));
  const Sizes from = StaticSizes(view.operands[0]), to = StaticSizes(view.results[0]);
  if (from.size() != layout.size() || DimOf(layout, 'N') != 0 ||
      !view.operands[0].dtype().defined())
    return {};
  std::vector<ResizedDim> dims;
  int spatial = 0;
  for (char letter : kSpatialLetters) {
    const int d = DimOf(layout, letter);
    if (d < 0) continue;
    const int index = spatial++;
    if (from[d] <= 0 || to[d] <= 1) continue;
    const int64_t groups = std::gcd(from[d], to[d]);
    const int64_t group = from[d] / groups, result_group = to[d] / groups;
    const std::optional<int64_t> reach = ReachOf(fields, view, group, result_group);
    if (groups > 1 && reach) dims.push_back({d, index, groups, group, result_group, *reach});
  }
  return dims;
}

void AddResizingFactors(const OpView& view, RuleBuilder* builder) {
  for (const ResizedDim& dim : ResizedDims(view)) {
    if (dim.reach == 0) {
      const int factor = builder->Parallel(dim.groups);
      builder->Operand(0, dim.dim, factor);
      builder->Operand(0, dim.dim, builder->Replicate(dim.group));
      builder->Result(0, dim.dim, factor);
      builder->Result(0, dim.dim, builder->Replicate(dim.result_group));
      continue;
    }
    const double part =
        2.0 * static_cast<double>(dim.reach) / static_cast<double>(dim.groups * dim.group);
    const int factor = builder->Special(dim.groups, Exchanged::kNeighbours, part);
    builder->Operand(0, dim.dim, factor);
    builder->Result(0, dim.dim, factor);
  }
}

}  // namespace rules
}  // namespace distir
