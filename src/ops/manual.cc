// Factor rules of the collectives in manual regions. Every device sends the same part of its value,
// so shards along automatic axes are sent as full values are.
#include "dialect/operators/manual.h"

#include "abi/collective.h"
#include "ir/tvm/registration.h"
#include "ops/family.h"
#include "rules/call/infer_type.h"
#include "rules/factor/broadcasting.h"

namespace distir::ops {

namespace {

/*! \brief Dimensions that are joined or divided need replication, all others are parallel. */
FactorRule ParallelBut(const OpView& view, std::initializer_list<const char*> keys) {
  RuleBuilder builder(view);
  std::vector<bool> changes(view.operands[0].ndim(), false);
  for (const char* key : keys) changes[dialect::ManualInteger(view.call, key)] = true;
  const Sizes before = StaticSizes(view.operands[0]), after = StaticSizes(view.results[0]);
  for (size_t d = 0; d < before.size(); ++d) {
    if (changes[d]) {
      builder.Operand(0, d, builder.NeedsReplication(before[d]));
      builder.Result(0, d, builder.NeedsReplication(after[d]));
    } else {
      const int factor = builder.Parallel(before[d]);
      builder.Operand(0, d, factor);
      builder.Result(0, d, factor);
    }
  }
  return builder.Finish();
}

FactorRule AlongDim(const OpView& view) { return ParallelBut(view, {"dim"}); }
FactorRule AlongTwo(const OpView& view) { return ParallelBut(view, {"split_dim", "concat_dim"}); }

Operator Manual(abi::Collective collective, rules::RuleFunction rule) {
  return Operator(abi::InManualRegion(collective).c_str(), rule).Pad(Padding::kParallel);
}

const Operators kElementwise("manual region", {"all"},
                             {Manual(abi::Collective::kAllReduce, rules::Broadcasting),
                              Manual(abi::Collective::kPermute, rules::Broadcasting)});
const Operators kAlong("manual region",
                       {"all but those that are joined or divided", "",
                        "those that are joined or divided over manual axes"},
                       {Manual(abi::Collective::kAllGather, AlongDim),
                        Manual(abi::Collective::kReduceScatter, AlongDim),
                        Manual(abi::Collective::kAllToAll, AlongTwo)});
const DescribedOperators kCrossings("manual region",
                                    "its automatic axes are the same inside and outside",
                                    {"relax.dist.enter_manual", "relax.dist.leave_manual"});

const ir::OnLoad kRegister([] {
  for (const abi::CollectiveRecord& record : abi::CollectiveRecords()) {
    if (*record.manual_text == '\0') continue;
    const std::string& name = abi::InManualRegion(record.collective);
    ir::RegisterOp(name, record.manual_text, {"x"}, true);
    ir::SetInferType(name, dialect::InferManualCollective);
    ir::SetInferDTensorType(name, rules::InferDTensorType);
  }
});

}  // namespace

}  // namespace distir::ops
