// Infers DTensor result types from argument types and factor rules.
#include "rules/call/infer_type.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <iterator>
#include <string>

#include "dialect/mesh_names.h"
#include "dialect/operators/collective.h"
#include "ir/build.h"
#include "ir/leaves.h"
#include "ir/symbolic.h"
#include "ir/tvm/registration.h"
#include "mesh/axis_text.h"
#include "rules/operator.h"
#include "rules/registry.h"
#include "support/error.h"
#include "support/in_order.h"

namespace distir::rules {

namespace {

// Operators whose result type is their type argument.
constexpr const char* kTyped[] = {"relax.call_tir",           "relax.call_tir_inplace",
                                  "relax.call_tir_with_grad", "relax.call_dps_packed",
                                  "relax.call_pure_packed",   "relax.call_inplace_packed"};

/*! \brief Types the leaves of `global_ty` on `view`, the mesh that everything of this call is named
 * on. */
ir::Type TypeResults(const ir::Type& global_ty, const InferredCall& call, dialect::MeshTable& table,
                     InOrder<std::vector<mesh::Sharding>>* results) {
  return ir::MapLeaves(global_ty, [&](const ir::Type& leaf) -> ir::Type {
    auto tensor = ir::TensorType::Cast(leaf);
    if (!tensor.defined()) return leaf;
    const mesh::Sharding& sharding = results->Take();
    ir::Placement placement = table.PlacementOn(call.device_mesh, call.root, sharding);
    DISTIR_REQUIRE(placement.defined(), ValueError)
        << "the device mesh " << ir::Print(call.device_mesh)
        << " cannot express the result's sharding "
        << mesh::ToString(sharding, table.Root(call.root)) << mesh::Legend(table.Root(call.root))
        << "; redistribute the arguments to a finer view of the mesh";
    return ir::MakeDTensorType(tensor, call.device_mesh, placement);
  });
}

ir::Expr StripExpr(const ir::Expr& arg) {
  if (auto tuple = ir::Tuple::Cast(arg); tuple.defined()) {
    ffi::Array<ir::Expr> fields;
    for (const ir::Expr& field : tuple.fields()) fields.push_back(StripExpr(field));
    return ir::MakeTuple(fields);
  }
  ir::Type stripped = StripDistribution(arg.ty());
  if (stripped.same_as(arg.ty())) return arg;
  return ir::MakeVar("x", stripped, false);
}

}  // namespace

ir::Type StripDistribution(const ir::Type& type) {
  return ir::MapLeaves(type, [](const ir::Type& leaf) -> ir::Type {
    const ir::DTensorType* dtensor = ir::DTensorType::As(leaf);
    const ir::TensorType* tensor =
        dtensor != nullptr ? &dtensor->tensor_ty() : ir::TensorType::As(leaf);
    return tensor == nullptr ? leaf : ir::Type(ir::WithKnownShape(*tensor));
  });
}

bool StatesResultType(const ir::Expr& callee) {
  if (ir::ExternFunc::Is(callee)) return true;
  if (!ir::Op::Is(callee)) return false;
  return std::any_of(std::begin(kTyped), std::end(kTyped),
                     [&callee](const char* typed) { return ir::IsOp(callee, typed); });
}

ir::Type InferGlobalType(const ir::Call& call) {
  if (StatesResultType(call.op()) && !call.ty_args().empty()) {
    if (call.ty_args().size() == 1) return StripDistribution(call.ty_args()[0]);
    return StripDistribution(ir::MakeTupleType(call.ty_args()));
  }
  ffi::Array<ir::Expr> args;
  for (const ir::Expr& arg : call.args()) args.push_back(StripExpr(arg));
  return ir::InferTensorType(
      ir::MakeCall(call.ty(), call.op(), args, call.attrs(), call.ty_args(), call.span()));
}

PlacedTensors::PlacedTensors(std::vector<ir::DTensorType> all, dialect::MeshTable* table)
    : types(std::move(all)), shardings(types.size()), elements(types.size()) {
  for (size_t i = 0; i < types.size(); ++i) {
    if (!types[i].defined()) continue;
    shardings[i] = &table->ShardingOf(types[i]);
    elements[i] = NumElements(StaticSizes(types[i].tensor_ty()));
  }
}

PlacedTensors PlacedArguments(const ir::Call& call, dialect::MeshTable* table) {
  std::vector<ir::DTensorType> types;
  for (const ir::Expr& arg : call.args()) dialect::CollectDTensorTypes(arg.ty(), &types);
  return PlacedTensors(std::move(types), table);
}

PlacedTensors PlacedResults(const ir::Call& call, dialect::MeshTable* table) {
  std::vector<ir::DTensorType> types;
  dialect::CollectDTensorTypes(call.ty(), &types);
  return PlacedTensors(std::move(types), table);
}

InferredCall InferCall(const ir::Call& call, const ir::Type& global_ty, const FactorRule& rule,
                       dialect::MeshTable* table) {
  const PlacedTensors operands = PlacedArguments(call, table);
  InferredCall inferred;
  const ir::DTensorType* first = nullptr;
  for (const ir::DTensorType& type : operands.types) {
    if (!type.defined()) continue;
    const int root = table->RootOf(type);
    if (first == nullptr) {
      first = &type;
      inferred.device_mesh = type.device_mesh();
      inferred.root = root;
    } else if (root != inferred.root) {
      TVM_FFI_THROW(ValueError) << "the arguments of " << ir::CalleeName(call)
                                << " lie on different device sets: " << ir::Print(*first) << " and "
                                << ir::Print(type) << "; redistribute one of them first";
    }
  }
  TVM_FFI_ICHECK(first != nullptr) << "InferCall needs a DTensor argument";
  inferred.sharding = ImpliedSharding(
      rule, operands.shardings, std::vector<const mesh::Sharding*>(rule.results.size(), nullptr),
      operands.elements);
  InOrder results(inferred.sharding.results);
  inferred.type = TypeResults(global_ty, inferred, *table, &results);
  return inferred;
}

ir::Type InferDTensorType(const ir::Call& call) {
  if (StatesResultType(call.op()) && !call.ty_args().empty()) {
    std::vector<ir::DTensorType> stated;
    for (const ir::Type& type : call.ty_args()) dialect::CollectDTensorTypes(type, &stated);
    bool all_distributed = true;
    for (const ir::DTensorType& type : stated) all_distributed = all_distributed && type.defined();
    if (all_distributed) {
      return call.ty_args().size() == 1 ? call.ty_args()[0] : ir::MakeTupleType(call.ty_args());
    }
  }
  ir::Type global_ty = InferGlobalType(call);
  FactorRule rule = RuleOf(ViewCall(call, global_ty));
  dialect::MeshTable table;
  std::vector<ir::DTensorType> types;
  for (const ir::Expr& arg : call.args()) dialect::CollectDTensorTypes(arg.ty(), &types);
  for (const ir::DTensorType& type : types) {
    if (type.defined()) dialect::NameAsKnown(&table, type.device_mesh());
  }
  return InferCall(call, global_ty, rule, &table).type;
}

namespace {

// Not tensor operators, or with inference of their own.
bool NeedsInference(const std::string& name) {
  if (name.rfind("relax.", 0) != 0 || name.rfind("relax.dist.", 0) == 0 ||
      name.rfind("relax.ccl.", 0) == 0)
    return false;
  return ir::HasAttr(name, "FInferType");
}

const ir::OnLoad kRegister([] {
  for (const std::string& name : ir::ListOpNames()) {
    if (NeedsInference(name)) ir::SetInferDTensorType(name, InferDTensorType);
  }
  for (const Operator& record : AllOperators()) {
    if (record.takes_tuple) ir::SetInferDTensorTupleType(record.name, InferDTensorType);
  }
});

}  // namespace

}  // namespace distir::rules
