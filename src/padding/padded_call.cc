#include "padding/padded_call.h"

namespace distir {
namespace padding {

bool StatesSizes(const rules::Operator& record) {
  return record.shape_argument >= 0 || record.local_attrs != nullptr ||
         record.local_args != nullptr;
}

rules::FactorExtents PaddedExtents(const rules::FactorRule& rule,
                                   const std::vector<ir::DTensorType>& operands,
                                   const std::vector<ir::DTensorType>& results,
                                   const ValueExtents& taken, const ValueExtents& given,
                                   const std::function<void(const ir::DTensorType&, int)>& refuse) {
  rules::FactorExtents extents;
  auto check = [&](const std::vector<ir::DTensorType>& all,
                   const std::vector<rules::TensorFactors>& tensors, const ValueExtents& padded) {
    for (size_t i = 0; i < all.size(); ++i) {
      if (!all[i].defined()) continue;
      for (int d : PaddedDims(all[i], padded[i])) {
        const rules::FactorList& factors = tensors[i][d];
        if (factors.empty() || !rule.factors[factors[0]].may_be_uneven) refuse(all[i], d);
      }
      const rules::Sizes sizes = rules::StaticSizes(all[i].tensor_ty());
      for (size_t d = 0; d < sizes.size(); ++d) {
        if (tensors[i][d].empty() || sizes[d] <= 0) continue;
        const int f = tensors[i][d][0];
        const rules::Factor& factor = rule.factors[f];
        if (!factor.may_be_uneven || factor.size <= 0 || factor.moves()) continue;
        const int64_t extent = padded[i][d] / (sizes[d] / factor.size);
        if (extents.emplace(f, extent).first->second != extent) refuse(all[i], static_cast<int>(d));
      }
    }
  };
  check(operands, rule.operands, taken);
  check(results, rule.results, given);
  return extents;
}

}  // namespace padding
}  // namespace distir
