#include "padding/padded_call.h"

namespace distir {
namespace padding {

bool StatesSizes(const rules::Operator& record) {
  return record.shape_argument >= 0 || record.local_attrs != nullptr ||
         record.local_args != nullptr;
}

FactorExtents PaddedExtents(const rules::FactorRule& rule,
                            const std::vector<ir::DTensorType>& operands,
                            const std::vector<ir::DTensorType>& results, PaddedTypes* types,
                            const std::function<void(const ir::DTensorType&, int)>& refuse) {
  FactorExtents extents;
  auto check = [&](const std::vector<ir::DTensorType>& all,
                   const std::vector<rules::TensorFactors>& tensors) {
    for (size_t i = 0; i < all.size(); ++i) {
      if (!all[i].defined()) continue;
      for (int d : types->UnevenDims(all[i])) {
        const rules::FactorList& factors = tensors[i][d];
        if (factors.size() != 1 || !rule.factors[factors[0]].may_be_uneven) refuse(all[i], d);
      }
      rules::Sizes padded = types->Extents(all[i]);
      for (size_t d = 0; d < padded.size(); ++d) {
        for (int f : tensors[i][d]) {
          if (!rule.factors[f].may_be_uneven || rule.factors[f].moves()) continue;
          if (extents.emplace(f, padded[d]).first->second != padded[d])
            refuse(all[i], static_cast<int>(d));
        }
      }
    }
  };
  check(operands, rule.operands);
  check(results, rule.results);
  return extents;
}

}  // namespace padding
}  // namespace distir
