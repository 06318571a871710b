// share_collectives: equal collectives of one value are made once.
//
//     a = R.dist.all_gather(x, mesh[0], "R")          a = R.dist.all_gather(x, mesh[0], "R")
//     b = f(a)                                   ->   b = f(a)
//     c = R.dist.all_gather(x, mesh[0], "R")          d = g(a)
//     d = g(c)
//
// The first one has to be visible where the second stands: it is not if it lies in another branch,
// or in a dataflow block that does not give it out.
#include <map>
#include <tuple>

#include "dialect/collective.h"
#include "optimize/optimization.h"

namespace distir {
namespace optimize {

namespace {

using Key = std::tuple<const ffi::Object*, const ffi::Object*, const ffi::Object*, std::vector<int>,
                       std::vector<int>, mesh::Reduction>;

Key KeyOf(const ir::Call& call) {
  return {call.op().get(),
          call.args()[0].get(),
          dialect::TargetMesh(call).get(),
          dialect::PlacementDims(dialect::TargetPlacement(call)),
          dialect::ReduceAxes(call),
          dialect::ReductionOf(call)};
}

}  // namespace

void ShareCollectives(Program* program, Tally* tally) {
  for (NamedFunction& function : program->functions) {
    EditableFunction& listing = *function.listing;
    std::map<Key, ir::Var> first;
    for (Line* line : listing.Lines()) {
      auto call = ir::Call::Cast(line->value);
      if (!call.defined() || line->block == nullptr || line->cast.defined() ||
          !dialect::DTensorCollective(call.op()) || !ir::DTensorType::Is(call.ty()))
        continue;
      auto [found, is_new] = first.emplace(KeyOf(call), line->var);
      if (is_new) continue;
      if (!listing.IsVisible(found->second, line)) {
        tally->Skip("out of sight");
        found->second = line->var;
        continue;
      }
      ++tally->matched;
      listing.Alias(line, found->second);
    }
  }
}

}  // namespace optimize
}  // namespace distir
