// Decides whether an operator call can be padded, and to which extents.
#include "padding/padded_call.h"

#include <map>

#include "ir/symbolic.h"

namespace distir::padding {

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
  std::map<int, ir::Expr> symbolic;
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
        if (tensors[i][d].empty()) continue;
        const int f = tensors[i][d][0];
        const rules::Factor& factor = rule.factors[f];
        if (!factor.may_be_uneven || factor.moves()) continue;
        bool is_same = true;
        if (factor.size > 0 && sizes[d] > 0) {
          const int64_t extent = ir::StaticDim(padded[i][d]) / (sizes[d] / factor.size);
          is_same = extents.emplace(f, extent).first->second == extent;
        } else if (factor.size < 0 && tensors[i][d].size() == 1) {
          is_same = ir::SameDim(symbolic.emplace(f, padded[i][d]).first->second, padded[i][d]);
        }
        if (!is_same) refuse(all[i], static_cast<int>(d));
      }
    }
  };
  check(operands, rule.operands, taken);
  check(results, rule.results, given);
  return extents;
}

}  // namespace distir::padding
