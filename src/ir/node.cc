// Defines the accessors of the IR views: type keys and fields of TVM's objects.
#include "ir/node.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "ir/build.h"
#include "ir/tvm/view_definition.h"

namespace distir::ir {

DISTIR_KIND(Type, "ir.Type")
DISTIR_KIND(PrimType, "ir.PrimType")
DISTIR_KIND(Expr, "ir.Expr")
DISTIR_KIND(TensorType, "relax.TensorType")
DISTIR_KIND(ShapeType, "relax.ShapeType")
DISTIR_KIND(TupleType, "ir.TupleType")
DISTIR_KIND(FuncType, "relax.FuncType")
DISTIR_KIND(GlobalInfo, "ir.GlobalInfo")
DISTIR_KIND(DeviceMesh, "relax.distributed.DeviceMesh")
DISTIR_KIND(PlacementSpec, "relax.distributed.PlacementSpec")
DISTIR_KIND(Placement, "relax.distributed.Placement")
DISTIR_KIND(DTensorType, "relax.DTensorType")
DISTIR_KIND(Var, "ir.Var")
DISTIR_KIND(DataflowVar, "relax.expr.DataflowVar")
DISTIR_KIND(GlobalVar, "ir.GlobalVar")
DISTIR_KIND(Op, "ir.Op")
DISTIR_KIND(ExternFunc, "relax.expr.ExternFunc")
DISTIR_KIND(Call, "ir.Call")
DISTIR_KIND(Tuple, "ir.Tuple")
DISTIR_KIND(TupleGetItem, "ir.TupleGetItem")
DISTIR_KIND(ShapeExpr, "relax.expr.ShapeExpr")
DISTIR_KIND(Constant, "ir.GenericConst")
DISTIR_KIND(IntImm, "ir.IntImm")
DISTIR_KIND(StringImm, "ir.StringImm")
DISTIR_KIND(SeqExpr, "relax.expr.SeqExpr")
DISTIR_KIND(If, "relax.expr.If")
DISTIR_KIND(BaseFunc, "ir.BaseFunc")
DISTIR_KIND(Function, "relax.expr.Function")
DISTIR_KIND(Binding, "relax.expr.Binding")
DISTIR_KIND(VarBinding, "relax.expr.VarBinding")
DISTIR_KIND(MatchCast, "relax.expr.MatchCast")
DISTIR_KIND(BindingBlock, "relax.expr.BindingBlock")
DISTIR_KIND(DataflowBlock, "relax.expr.DataflowBlock")
DISTIR_KIND(DictAttrs, "ir.DictAttrs")
DISTIR_KIND(IRModule, "ir.IRModule")

DISTIR_DEFINE_GET(PrimType, DLDataType, dtype, "ir.PrimType", "dtype")
DISTIR_DEFINE_GET(Expr, Type, ty, "ir.Expr", "ty")
DISTIR_DEFINE_GET(TensorType, Expr, shape, "relax.TensorType", "shape")
static const Field<PrimType> kElementType("relax.TensorType", "dtype");
DLDataType TensorType::dtype() const {
  const PrimType& type = kElementType(*this);
  return type.defined() ? type.dtype() : kUnknownDtype;
}
DISTIR_DEFINE_GET(TensorType, int32_t, ndim, "relax.TensorType", "ndim")
DISTIR_DEFINE_GET(TupleType, NodeArray<Type>, fields, "ir.TupleType", "fields")
DISTIR_DEFINE_GET(DeviceMesh, ffi::Shape, shape, "relax.distributed.DeviceMesh", "shape")
DISTIR_DEFINE_GET(DeviceMesh, ffi::Array<int64_t>, device_ids, "relax.distributed.DeviceMesh",
                  "device_ids")
DISTIR_DEFINE_GET(PlacementSpec, int32_t, dim, "relax.distributed.PlacementSpec", "axis")
DISTIR_DEFINE_GET(PlacementSpec, int32_t, kind, "relax.distributed.PlacementSpec", "kind")
DISTIR_DEFINE_GET(Placement, NodeArray<PlacementSpec>, dim_specs, "relax.distributed.Placement",
                  "dim_specs")
DISTIR_DEFINE_GET(DTensorType, TensorType, tensor_ty, "relax.DTensorType", "tensor_ty")
DISTIR_DEFINE_GET(DTensorType, DeviceMesh, device_mesh, "relax.DTensorType", "device_mesh")
DISTIR_DEFINE_GET(DTensorType, Placement, placement, "relax.DTensorType", "placement")
DISTIR_DEFINE_GET(Var, ffi::String, name, "ir.Var", "name")
DISTIR_STRING_FIELD(GlobalVar, name, "ir.GlobalVar", "name_hint")
DISTIR_DEFINE_GET(Op, ffi::String, name, "ir.Op", "name")
DISTIR_STRING_FIELD(ExternFunc, name, "relax.expr.ExternFunc", "global_symbol")
DISTIR_STRING_FIELD(StringImm, value, "ir.StringImm", "value")
DISTIR_DEFINE_GET(Call, Expr, op, "ir.Call", "op")
DISTIR_DEFINE_GET(Call, NodeArray<Expr>, args, "ir.Call", "args")
DISTIR_DEFINE_GET(Call, Node, attrs, "ir.Call", "attrs")
DISTIR_DEFINE_GET(Call, NodeArray<Type>, ty_args, "ir.Call", "ty_args")
DISTIR_DEFINE_GET(Call, Node, span, "ir.Expr", "span")
DISTIR_DEFINE_GET(Tuple, NodeArray<Expr>, fields, "ir.Tuple", "fields")
DISTIR_DEFINE_GET(TupleGetItem, Expr, tuple, "ir.TupleGetItem", "tuple_value")
DISTIR_DEFINE_GET(TupleGetItem, int32_t, index, "ir.TupleGetItem", "index")
DISTIR_DEFINE_GET(ShapeExpr, NodeArray<Expr>, values, "relax.expr.ShapeExpr", "values")
DISTIR_DEFINE_GET(SeqExpr, NodeArray<BindingBlock>, blocks, "relax.expr.SeqExpr", "blocks")
DISTIR_DEFINE_GET(SeqExpr, Expr, body, "relax.expr.SeqExpr", "body")
DISTIR_DEFINE_GET(If, Expr, cond, "relax.expr.If", "cond")
DISTIR_DEFINE_GET(If, SeqExpr, true_branch, "relax.expr.If", "true_branch")
DISTIR_DEFINE_GET(If, SeqExpr, false_branch, "relax.expr.If", "false_branch")
DISTIR_DEFINE_GET(BaseFunc, Node, attrs, "ir.BaseFunc", "attrs")
DISTIR_DEFINE_GET(Function, NodeArray<Var>, params, "relax.expr.Function", "params")
DISTIR_DEFINE_GET(Function, SeqExpr, body, "relax.expr.Function", "body")
DISTIR_DEFINE_GET(Function, Type, ret_ty, "relax.expr.Function", "ret_ty")
DISTIR_DEFINE_GET(Function, bool, is_pure, "relax.expr.Function", "is_pure")
DISTIR_DEFINE_GET(Binding, Var, var, "relax.expr.Binding", "var")
DISTIR_DEFINE_GET(VarBinding, Expr, value, "relax.expr.VarBinding", "value")
DISTIR_DEFINE_GET(MatchCast, Expr, value, "relax.expr.MatchCast", "value")
DISTIR_DEFINE_GET(MatchCast, Type, ty, "relax.expr.MatchCast", "ty")
DISTIR_DEFINE_GET(BindingBlock, NodeArray<Binding>, bindings, "relax.expr.BindingBlock", "bindings")
DISTIR_DEFINE_GET(DictAttrs, AttrMap, dict, "ir.DictAttrs", "__dict__")
DISTIR_DEFINE_GET(IRModule, FunctionMap, functions, "ir.IRModule", "functions")
DISTIR_DEFINE_GET(IRModule, Node, attrs, "ir.IRModule", "attrs")
DISTIR_DEFINE_GET(IRModule, GlobalInfoMap, global_infos, "ir.IRModule", "global_infos")

static const Field<ffi::Any> kConstantValue("ir.GenericConst", "value");
// A big integer is stored as the FFI value it is: an int64 where it fits one.
static const Field<ffi::Any> kIntImmValue("ir.IntImm", "value");
static const AttrField kShapeTypeValues("relax.ShapeType", "values");

ffi::Any Constant::value() const { return kConstantValue(*this); }
bool Constant::IsTensor() const { return value().type_index() == ffi::TypeIndex::kTVMFFITensor; }
ffi::Optional<ffi::Array<Expr>> ShapeType::values() const {
  return kShapeTypeValues(*this).cast<ffi::Optional<ffi::Array<Expr>>>();
}
int64_t IntImm::value() const { return kIntImmValue(*this).as<int64_t>().value_or(0); }

ffi::Any GetAttr(const Node& attrs, const char* key) {
  DictAttrs dict = DictAttrs::Cast(attrs);
  if (!dict.defined()) return ffi::Any();
  auto it = dict.dict().find(key);
  return it == dict.dict().end() ? ffi::Any() : (*it).second;
}

std::atomic<const NamedOp*> last_named_ops[1 << kNamedOpBits];  // all null

const NamedOp* FindNamedOp(const char* name, std::atomic<const NamedOp*>* entry) {
  static std::mutex mutex;
  static std::unordered_map<const char*, NamedOp> all;  // never erased, so entries stay in place
  std::lock_guard<std::mutex> lock(mutex);
  auto [found, is_new] = all.try_emplace(name, NamedOp{name, nullptr});
  if (is_new) found->second.op = GetOp(name).get();
  entry->store(&found->second, std::memory_order_release);
  return &found->second;
}

std::vector<std::pair<GlobalVar, BaseFunc>> OrderedFunctions(const IRModule& mod) {
  std::vector<std::pair<GlobalVar, BaseFunc>> functions;
  for (const auto& [gv, func] : mod.functions()) functions.emplace_back(gv, func);
  std::sort(functions.begin(), functions.end(),
            [](const auto& a, const auto& b) { return a.first.name() < b.first.name(); });
  return functions;
}

}  // namespace distir::ir
