// dispatch_experts: tokens go to the devices that have their experts, instead of the experts to all
// tokens.
//
//     all = R.dist.all_gather(experts, ..)          t = R.dist.dispatch_tokens(x, ids, ..)
//     w = R.take(all, ids, axis=0)             ->   h = R.dist.grouped_matmul(t[0], experts, t[1])
//     y = R.matmul(x, w)                            y = R.dist.combine_tokens(h, ids, t[1], ..)
//
// If all devices along the axes of the experts have the same tokens, each selects those of its
// own experts, and the results are summed up.
//
// Rows of ids stand for a token and one of its choices. The part between two such products of the
// same choices, if it works row by row, is computed where the rows are: in y = silu(x w) v only
// x is dispatched and only y combined.
#include "abi/collective.h"
#include "dialect/operators/token_dispatch.h"
#include "optimize/experts/product.h"
#include "optimize/experts/rows.h"
#include "optimize/experts/types.h"
#include "optimize/optimization.h"

namespace distir::optimize {

namespace {

class Dispatch {
 public:
  Dispatch(EditableFunction* editable, Program* program, Tally* tally)
      : editable_(*editable),
        meshes_(*program->meshes),
        rows_(editable, program->meshes),
        is_offered_(IsOffered(program->options, abi::Collective::kDispatchTokens)),
        tally_(*tally) {}

  void Run() {
    for (EditableBinding* binding : editable_.Bindings()) {
      if (binding->dropped || binding->block == nullptr || binding->cast.defined()) continue;
      auto call = ir::Call::Cast(binding->value);
      if (!call.defined() || !ir::IsOp(call.op(), "relax.matmul") || !TypeOf(call).defined())
        continue;
      auto product = ReadProduct(call, editable_, &meshes_);
      if (!product) continue;
      if (const char* why = Refusal(binding, call, &*product)) {
        tally_.Skip(why);
        continue;
      }
      rows_.Write(binding, call, *product);
      ++tally_.matched;
    }
    rows_.Finish();
  }

 private:
  /*! \brief Reason why a product stays as it is; null if it does not. */
  const char* Refusal(const EditableBinding* binding, const ir::Call& call, Product* p) {
    if (const char* why = WhyNotThere(call, p)) return why;
    if (SentBytes(*p, TypeOf(call)) > p->sent_bytes) return "gathering the experts sends less";
    for (const ir::Expr& needed : {p->experts, p->choice.ids}) {
      if (!editable_.IsVisible(needed, binding)) return "experts or choices are not visible";
    }
    if (!is_offered_) return "the runtime does not dispatch tokens";
    return nullptr;
  }

  /*! \brief Rows there and back; of rows that all have, their sum. */
  double SentBytes(const Product& p, const ir::DTensorType& y) {
    const double back = LocalBytes(y.tensor_ty(), meshes_.ShardingOf(y));
    if (p.choice.has_copies) return 2 * back;
    const ir::DTensorType x = TypeOf(p.x);
    return LocalBytes(x.tensor_ty(), meshes_.ShardingOf(x)) + back;
  }

  EditableFunction& editable_;
  dialect::MeshTable& meshes_;
  ExpertRows rows_;
  const bool is_offered_;
  Tally& tally_;
};

}  // namespace

void DispatchExperts(Program* program, Tally* tally) {
  for (NamedFunction& function : program->functions)
    Dispatch(function.editable.get(), program, tally).Run();
}

}  // namespace distir::optimize
