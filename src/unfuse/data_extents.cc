// Opens extents that depend on data, behind a match_cast.
#include "unfuse/data_extents.h"

#include <unordered_map>
#include <unordered_set>

#include "dialect/placement.h"
#include "ir/build.h"
#include "ir/data_extents.h"
#include "ir/rewriter.h"

namespace distir::unfuse {

namespace ffi = tvm::ffi;

namespace {

class Opener : public ir::FunctionRewriter {
 public:
  explicit Opener(const ir::Function& function) {
    std::unordered_map<const ffi::Object*, const ffi::Object*> boxes_of;  // by variable
    ir::VisitBindings(function.body(), [&](const ir::Binding& binding) {
      if (ir::HasDataExtent(ir::BoundCall(binding))) found_.insert(binding.var().get());
      if (const ir::MatchCast* cast = ir::MatchCast::As(binding)) {
        auto known = boxes_of.find(cast->value().get());
        if (known != boxes_of.end()) found_.erase(known->second);  // an earlier run has done so
        return;
      }
      auto item = ir::TupleGetItem::Cast(ir::VarBinding::As(binding)->value());
      if (item.defined() && item.index() == 0)
        boxes_of.emplace(binding.var().get(), item.tuple().get());
    });
  }

  /*! \brief The function; null where there is nothing to do. */
  ir::Function Run(const ir::Function& function) {
    if (found_.empty()) return ir::Function();
    const ir::Function written = RewriteFunction(function);
    // The stated result may name a sharding, which the body does not.
    if (!dialect::HasDTensor(function.ret_ty())) return written;
    return ir::MakeFunction(written.params(), written.body(), function.ret_ty(), function.is_pure(),
                            written.attrs());
  }

 private:
  bool KeepsUnchanged() const override { return true; }

  void RewriteVarBinding(const ir::Var& var, const ir::Expr& value) override {
    if (found_.count(var.get()) == 0) return FunctionRewriter::RewriteVarBinding(var, value);
    const ir::Expr all = Emit(var.name(), Rewrite(value));
    ffi::Array<ir::Expr> fields;
    const int count = static_cast<int>(ir::TupleType::Cast(var.ty()).fields().size());
    for (int i = 0; i < count; ++i)
      fields.push_back(Emit(var.name(), ir::MakeTupleGetItem(all, i)));
    const ir::TensorType open = ir::WithoutShape(ir::TensorType::Cast(fields[0].ty()));
    const ir::Var boxes = ir::MakeVar(FreshName(var.name()), open, writer().is_dataflow());
    writer().Add(ir::MakeMatchCast(boxes, fields[0], open));
    fields.Set(0, boxes);
    Bind(var, ir::MakeTuple(fields));
  }

  std::unordered_set<const ffi::Object*> found_;  // variables of such calls
};

}  // namespace

ir::IRModule LeaveDataExtentsOpen(const ir::IRModule& mod) {
  return ir::RewriteFunctions(
      mod, [](const ir::Function& function) { return Opener(function).Run(function); });
}

}  // namespace distir::unfuse
