// Indexes the bindings of a function by the meshes that they concern, in one walk.
#include "lower/stages/mesh_index.h"

#include <algorithm>

#include "ir/build.h"
#include "ir/leaves.h"
#include "ir/rewriter.h"
#include "ir/symbolic.h"
#include "rules/call/infer_type.h"

namespace distir::lower {

namespace ffi = tvm::ffi;

namespace {

/*! \brief Location of a value: on some meshes, or on all devices that hold it or parts of it. */
class Where {
 public:
  Where(dialect::MeshTable* meshes, const FunctionRoots& roots)
      : meshes_(*meshes), roots_of_functions_(roots) {}

  void AddType(const ir::Type& type) {
    bool has_tensors = false, has_others = false;
    ir::ForEachLeaf(type, [&](const ir::Type& leaf) {
      auto dtensor = ir::DTensorType::Cast(leaf);
      (dtensor.defined() ? has_tensors : has_others) = true;
      if (dtensor.defined())
        roots_.insert(meshes_.DevicesOf(meshes_.RootOf(dtensor.device_mesh())));
    });
    is_mixed_ = is_mixed_ || (has_tensors && has_others);
  }

  void AddBinding(const ir::Binding& binding) {
    AddOutside(binding);
    auto bound = ir::VarBinding::Cast(binding);
    auto branch = bound.defined() ? ir::If::Cast(bound.value()) : ir::If();
    if (!branch.defined()) return;
    for (const ir::SeqExpr& seq : {branch.true_branch(), branch.false_branch()})
      ir::VisitBindings(seq, [this](const ir::Binding& inner) { AddOutside(inner); });
  }

  bool IsEverywhere() const { return is_mixed_ || roots_.empty(); }
  const std::set<int>& roots() const { return roots_; }

 private:
  /*! \brief A binding without the bindings of its branches. */
  void AddOutside(const ir::Binding& binding) {
    AddType(binding.var().ty());
    if (auto cast = ir::MatchCast::Cast(binding); cast.defined()) return AddType(cast.value().ty());
    const ir::Expr& value = ir::VarBinding::Cast(binding).value();
    if (auto call = ir::Call::Cast(value); call.defined()) {
      for (const ir::Expr& arg : call.args()) AddType(arg.ty());
      auto callee = roots_of_functions_.find(call.op().get());
      if (callee != roots_of_functions_.end())
        roots_.insert(callee->second.begin(), callee->second.end());
    } else if (auto branch = ir::If::Cast(value); branch.defined()) {
      AddType(branch.cond().ty());
      AddType(branch.true_branch().body().ty());
      AddType(branch.false_branch().body().ty());
    }
  }

  dialect::MeshTable& meshes_;
  const FunctionRoots& roots_of_functions_;
  std::set<int> roots_;
  bool is_mixed_ = false;
};

}  // namespace

void MeshIndex::Places::Add(int place, bool is_everywhere, const std::set<int>& roots) {
  if (is_everywhere) return everywhere_.push_back(place);
  for (int root : roots) of_root_[root].push_back(place);
}

std::vector<int> MeshIndex::Places::Of(const std::set<int>& roots) const {
  std::vector<int> places = everywhere_;
  for (int root : roots) {
    auto found = of_root_.find(root);
    if (found != of_root_.end())
      places.insert(places.end(), found->second.begin(), found->second.end());
  }
  std::sort(places.begin(), places.end());
  places.erase(std::unique(places.begin(), places.end()), places.end());
  return places;
}

MeshIndex::MeshIndex(const ir::Function& function, dialect::MeshTable* meshes,
                     const FunctionRoots& roots)
    : function_(function) {
  const auto add = [&](Places* places, int place, const std::function<void(Where*)>& look) {
    Where where(meshes, roots);
    look(&where);
    places->Add(place, where.IsEverywhere(), where.roots());
  };
  int place = 0;
  for (const ir::Var& param : function.params()) {
    add(&params_, place++, [&](Where* where) { where->AddType(param.ty()); });
    vars_.insert(param.get());
    ir::MapDims(ir::Type(rules::StripDistribution(param.ty())), [this](const ir::Expr& dim) {
      symbols_.insert(dim.get());
      return dim;
    });
  }
  for (const ir::BindingBlock& block : function.body().blocks()) {
    for (const ir::Binding& binding : block.bindings()) {
      add(&bindings_, static_cast<int>(all_.size()),
          [&](Where* where) { where->AddBinding(binding); });
      vars_.insert(binding.var().get());
      all_.push_back(binding);
    }
  }
  if (auto tuple = ir::Tuple::Cast(function.body().body()); tuple.defined()) {
    place = 0;
    for (const ir::Expr& field : tuple.fields())
      add(&fields_, place++, [&](Where* where) { where->AddType(field.ty()); });
  }
  place = 0;
  ir::ForEachLeaf(function.body().body().ty(), [&](const ir::Type& leaf) {
    add(&results_, place++, [&](Where* where) { where->AddType(leaf); });
  });
}

MeshPart MeshIndex::PartOf(const std::set<int>& roots) const {
  MeshPart part;
  part.params = params_.Of(roots);
  part.results = results_.Of(roots);
  ffi::Array<ir::Var> params;
  for (int place : part.params) {
    params.push_back(function_.params()[place]);
    part.vars.insert(params.back().get());
  }
  ffi::Array<ir::Binding> bindings;
  for (int place : bindings_.Of(roots)) {
    bindings.push_back(all_[place]);
    part.vars.insert(bindings.back().var().get());
  }
  ir::Expr value = function_.body().body();
  if (auto tuple = ir::Tuple::Cast(value); tuple.defined()) {
    ffi::Array<ir::Expr> fields;
    for (int place : fields_.Of(roots)) fields.push_back(tuple.fields()[place]);
    value = ir::MakeTuple(fields);
  }
  part.function =
      ir::MakeFunction(params, ir::MakeSeq({ir::MakeBlock(bindings, false)}, value, value.ty()),
                       function_.ret_ty(), function_.is_pure(), function_.attrs());
  return part;
}

}  // namespace distir::lower
