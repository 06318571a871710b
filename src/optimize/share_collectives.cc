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

#include "dialect/operators/collective.h"
#include "optimize/optimization.h"

namespace distir::optimize {

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
    EditableFunction& editable = *function.editable;
    std::map<Key, ir::Var> first;
    for (EditableBinding* binding : editable.Bindings()) {
      const ir::Call* made = ir::Call::As(binding->value);
      if (made == nullptr || binding->block == nullptr || binding->cast.defined() ||
          !dialect::DTensorCollective(made->op()) || !ir::DTensorType::Is(made->ty()))
        continue;
      const ir::Call call = *made;
      auto [found, is_new] = first.emplace(KeyOf(call), binding->var);
      if (is_new) continue;
      if (!editable.IsVisible(found->second, binding)) {
        tally->Skip("out of sight");
        found->second = binding->var;
        continue;
      }
      ++tally->matched;
      editable.Alias(binding, found->second);
    }
  }
}

}  // namespace distir::optimize
