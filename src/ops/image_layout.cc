// Adds the batch and channel factors of image operators to a rule.
#include "ops/image_layout.h"

namespace distir::ops {

void AddBatchAndChannels(const OpView& view, const std::string& layout,
                         const std::string& out_layout, RuleBuilder* builder) {
  Sizes sizes = StaticSizes(view.operands[0]);
  bool can_split = !rules::IsBlocked(layout + out_layout) || layout == out_layout;
  for (char letter : {'N', 'C', 'c'}) {
    int dim = rules::DimOf(layout, letter), out_dim = rules::DimOf(out_layout, letter);
    if (dim < 0 || dim >= static_cast<int>(sizes.size()) || out_dim < 0) continue;
    if (letter != 'N' && !can_split) continue;
    int factor = builder->Parallel(sizes[dim]);
    for (size_t i = 0; i < view.operands.size(); ++i) builder->Operand(i, dim, factor);
    builder->Result(0, out_dim, factor);
  }
}

}  // namespace distir::ops
