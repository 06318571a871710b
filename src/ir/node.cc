#include "ir/node.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "ir/build.h"
#include "ir/tvm/view_definition.h"

namespace distir {
namespace ir {

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

DISTIR_VALUE_FIELD(PrimType, DLDataType, DLDataType, dtype, "ir.PrimType", "dtype")
DISTIR_FIELD(Expr, Type, ty, "ir.Expr", "ty")
DISTIR_FIELD(TensorType, Expr, shape, "relax.TensorType", "shape")
static const Field<PrimType> kElementType("relax.TensorType", "dtype");
DLDataType TensorType::dtype() const {
  const PrimType& type = kElementType(*this);
  return type.defined() ? type.dtype() : kUnknownDtype;
}
DISTIR_VALUE_FIELD(TensorType, int, int32_t, ndim, "relax.TensorType", "ndim")
DISTIR_FIELD(TupleType, ffi::Array<Type>, fields, "ir.TupleType", "fields")
DISTIR_FIELD(DeviceMesh, ffi::Shape, shape, "relax.distributed.DeviceMesh", "shape")
DISTIR_FIELD(DeviceMesh, ffi::Array<int64_t>, device_ids, "relax.distributed.DeviceMesh",
             "device_ids")
DISTIR_VALUE_FIELD(PlacementSpec, int, int32_t, dim, "relax.distributed.PlacementSpec", "axis")
DISTIR_VALUE_FIELD(PlacementSpec, int, int32_t, kind, "relax.distributed.PlacementSpec", "kind")
DISTIR_FIELD(Placement, ffi::Array<PlacementSpec>, dim_specs, "relax.distributed.Placement",
             "dim_specs")
DISTIR_FIELD(DTensorType, TensorType, tensor_ty, "relax.DTensorType", "tensor_ty")
DISTIR_FIELD(DTensorType, DeviceMesh, device_mesh, "relax.DTensorType", "device_mesh")
DISTIR_FIELD(DTensorType, Placement, placement, "relax.DTensorType", "placement")
DISTIR_FIELD(Var, ffi::String, name, "ir.Var", "name")
DISTIR_STRING_FIELD(GlobalVar, name, "ir.GlobalVar", "name_hint")
DISTIR_FIELD(Op, ffi::String, name, "ir.Op", "name")
DISTIR_STRING_FIELD(ExternFunc, name, "relax.expr.ExternFunc", "global_symbol")
DISTIR_STRING_FIELD(StringImm, value, "ir.StringImm", "value")
DISTIR_FIELD(Call, Expr, op, "ir.Call", "op")
DISTIR_FIELD(Call, ffi::Array<Expr>, args, "ir.Call", "args")
DISTIR_FIELD(Call, Node, attrs, "ir.Call", "attrs")
DISTIR_FIELD(Call, ffi::Array<Type>, ty_args, "ir.Call", "ty_args")
DISTIR_FIELD(Call, Node, span, "ir.Expr", "span")
DISTIR_FIELD(Tuple, ffi::Array<Expr>, fields, "ir.Tuple", "fields")
DISTIR_FIELD(TupleGetItem, Expr, tuple, "ir.TupleGetItem", "tuple_value")
DISTIR_VALUE_FIELD(TupleGetItem, int, int32_t, index, "ir.TupleGetItem", "index")
DISTIR_FIELD(ShapeExpr, ffi::Array<Expr>, values, "relax.expr.ShapeExpr", "values")
DISTIR_FIELD(SeqExpr, ffi::Array<BindingBlock>, blocks, "relax.expr.SeqExpr", "blocks")
DISTIR_FIELD(SeqExpr, Expr, body, "relax.expr.SeqExpr", "body")
DISTIR_FIELD(If, Expr, cond, "relax.expr.If", "cond")
DISTIR_FIELD(If, SeqExpr, true_branch, "relax.expr.If", "true_branch")
DISTIR_FIELD(If, SeqExpr, false_branch, "relax.expr.If", "false_branch")
DISTIR_FIELD(BaseFunc, Node, attrs, "ir.BaseFunc", "attrs")
DISTIR_FIELD(Function, ffi::Array<Var>, params, "relax.expr.Function", "params")
DISTIR_FIELD(Function, SeqExpr, body, "relax.expr.Function", "body")
DISTIR_FIELD(Function, Type, ret_ty, "relax.expr.Function", "ret_ty")
DISTIR_VALUE_FIELD(Function, bool, bool, is_pure, "relax.expr.Function", "is_pure")
DISTIR_FIELD(Binding, Var, var, "relax.expr.Binding", "var")
DISTIR_FIELD(VarBinding, Expr, value, "relax.expr.VarBinding", "value")
DISTIR_FIELD(MatchCast, Expr, value, "relax.expr.MatchCast", "value")
DISTIR_FIELD(MatchCast, Type, ty, "relax.expr.MatchCast", "ty")
DISTIR_FIELD(BindingBlock, ffi::Array<Binding>, bindings, "relax.expr.BindingBlock", "bindings")
using AttrMap = ffi::Map<ffi::String, ffi::Any>;
DISTIR_FIELD(DictAttrs, AttrMap, dict, "ir.DictAttrs", "__dict__")
DISTIR_FIELD(IRModule, FunctionMap, functions, "ir.IRModule", "functions")
DISTIR_FIELD(IRModule, Node, attrs, "ir.IRModule", "attrs")
DISTIR_FIELD(IRModule, GlobalInfoMap, global_infos, "ir.IRModule", "global_infos")

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

constexpr int kNameBits = 8;
constexpr uint64_t kGolden = 0x9E3779B97F4A7C15;  // 2^64 by the golden ratio: spreads addresses

bool IsOp(const Expr& op, const char* name) {
  // Operators are unique and never freed: one look-up per literal, then a comparison of pointers.
  // The last literal of each hash is kept; the map has them all.
  struct Known {
    const char* name = nullptr;
    const ffi::Object* op = nullptr;
  };
  static thread_local Known last[1 << kNameBits];
  static thread_local std::unordered_map<const char*, const ffi::Object*> all;
  Known& known = last[reinterpret_cast<uintptr_t>(name) * kGolden >> (64 - kNameBits)];
  if (known.name != name) {
    const ffi::Object*& found = all[name];
    if (found == nullptr) found = GetOp(name).get();
    known = {name, found};
  }
  return op.get() == known.op;
}

std::vector<std::pair<GlobalVar, BaseFunc>> OrderedFunctions(const IRModule& mod) {
  std::vector<std::pair<GlobalVar, BaseFunc>> functions;
  for (const auto& [gv, func] : mod.functions()) functions.emplace_back(gv, func);
  std::sort(functions.begin(), functions.end(),
            [](const auto& a, const auto& b) { return a.first.name() < b.first.name(); });
  return functions;
}

}  // namespace ir
}  // namespace distir
