// Makes IR objects through TVM's FFI constructors.
#include "ir/build.h"

#include <unordered_map>

#include "ir/tvm/empty_object.h"

namespace distir::ir {

namespace {

const GlobalFunction kGetOp("ir.GetOp");
const GlobalFunction kTuple("relax.Tuple");
const GlobalFunction kTupleGetItem("relax.TupleGetItem");
const GlobalFunction kGlobalVar("ir.GlobalVar");
const GlobalFunction kTensorConst("relax.MakeTensorConst");
const GlobalFunction kIntImm("ir.IntImm");
const GlobalFunction kFloatImm("ir.FloatImm");
const GlobalFunction kStringImm("ir.StringImm");
const GlobalFunction kShapeExpr("relax.ShapeExpr");
const GlobalFunction kExternFunc("relax.ExternFunc");
const GlobalFunction kTensorType("relax.TensorType");
const GlobalFunction kShapeType("relax.ShapeType");
const GlobalFunction kTupleType("ir.TupleType");
const GlobalFunction kFuncType("relax.FuncType");
const GlobalFunction kDTensorType("relax.distributed.DTensorType");
const GlobalFunction kDeviceMesh("relax.distributed.DeviceMesh");
const GlobalFunction kPlacement("relax.distributed.Placement");
const GlobalFunction kSharding("relax.distributed.Sharding");
const GlobalFunction kReplica("relax.distributed.Replica");
const GlobalFunction kMatchCast("relax.MatchCast");
const GlobalFunction kBindingBlock("relax.BindingBlock");
const GlobalFunction kDataflowBlock("relax.DataflowBlock");
const GlobalFunction kSeqExpr("relax.SeqExpr");
const GlobalFunction kIf("relax.If");
const GlobalFunction kFunction("relax.Function");
const GlobalFunction kModule("ir.IRModule");
const GlobalFunction kUpdateType("relax.UpdateType");
const GlobalFunction kStructuralEqual("ffi.StructuralEqual");
const GlobalFunction kRepr("ffi.ReprPrint");
const GlobalFunction kMakeObject("ffi.MakeObjectFromPackedArgs");
const GlobalFunction kRange("ir.Range_from_min_extent");

const Node kNoSpan;

// Objects that a program has for each operator are made in place.
const EmptyObject kCall("ir.Call", {"args", "attrs", "op", "span", "ty", "ty_args"});
const Field<Node> kSpan("ir.Expr", "span");
const Field<Type> kType("ir.Expr", "ty");
const Field<Expr> kOp("ir.Call", "op");
const Field<NodeArray<Expr>> kArgs("ir.Call", "args");
const Field<Node> kAttrs("ir.Call", "attrs");
const Field<NodeArray<Type>> kTypeArgs("ir.Call", "ty_args");
const EmptyObject kVar("ir.Var", {"name", "span", "ty"});
const EmptyObject kDataflowVar("relax.expr.DataflowVar", {"name", "span", "ty"});
const Field<ffi::String> kName("ir.Var", "name");
const EmptyObject kVarBinding("relax.expr.VarBinding", {"span", "value", "var"});
const Field<Var> kBoundVar("relax.expr.Binding", "var");
const Field<Expr> kBoundValue("relax.expr.VarBinding", "value");

DLDataType Int64() { return DLDataType{kDLInt, 64, 1}; }
DLDataType Float64() { return DLDataType{kDLFloat, 64, 1}; }

Node MakeDictAttrs(const ffi::Map<ffi::String, ffi::Any>& dict) {
  return kMakeObject("ir.DictAttrs", "__dict__", dict).cast<Node>();
}

bool AreConsecutive(const std::vector<int64_t>& ids) {
  for (size_t i = 1; i < ids.size(); ++i) {
    if (ids[i] != ids[i - 1] + 1) return false;
  }
  return true;
}

}  // namespace

Call MakeCall(const Type& ty, const Expr& op, const NodeArray<Expr>& args, const Node& attrs,
              const NodeArray<Type>& ty_args, const Node& span) {
  Call call(kCall.Make());
  SetField(kSpan, call, span);
  SetField(kType, call, ty);
  SetField(kOp, call, op);
  SetField(kArgs, call, args);
  SetField(kAttrs, call, attrs);
  SetField(kTypeArgs, call, ty_args);
  return call;
}

Call MakeOpCall(const Type& ty, const char* op_name, const NodeArray<Expr>& args,
                const std::vector<std::pair<const char*, ffi::Any>>& attrs,
                const NodeArray<Type>& ty_args) {
  Node attrs_node;
  if (!attrs.empty()) {
    ffi::Map<ffi::String, ffi::Any> dict;
    for (const auto& [key, value] : attrs) dict.Set(key, value);
    attrs_node = MakeDictAttrs(dict);
  }
  return MakeCall(ty, GetOp(op_name), args, attrs_node, ty_args);
}

Op GetOp(const std::string& name) {
  static std::unordered_map<std::string, Op> cache;
  auto it = cache.find(name);
  if (it == cache.end()) it = cache.emplace(name, kGetOp(name).cast<Op>()).first;
  return it->second;
}

Tuple MakeTuple(const NodeArray<Expr>& fields) { return kTuple(fields, kNoSpan).cast<Tuple>(); }

Expr MakeTupleGetItem(const Expr& tuple, int index) {
  return kTupleGetItem(tuple, index, kNoSpan).cast<Expr>();
}

Var MakeVar(const ffi::String& name, const Type& ty, bool dataflow) {
  Var var((dataflow ? kDataflowVar : kVar).Make());
  SetField(kType, var, ty);
  SetField(kName, var, name);
  return var;
}

GlobalVar MakeGlobalVar(const std::string& name) { return kGlobalVar(name).cast<GlobalVar>(); }

Expr MakeTensorConstant(const ffi::Any& tensor, const Type& ty) {
  return kTensorConst(tensor, ty, kNoSpan).cast<Expr>();
}

Expr MakeInt(int64_t value) { return kIntImm(Int64(), value, kNoSpan).cast<Expr>(); }
Expr MakeFloat(double value) { return kFloatImm(Float64(), value, kNoSpan).cast<Expr>(); }
Expr MakeString(const std::string& value) { return kStringImm(value, kNoSpan).cast<Expr>(); }
ShapeExpr MakeShape(const NodeArray<Expr>& values) {
  return kShapeExpr(values, kNoSpan).cast<ShapeExpr>();
}
ExternFunc MakeExternFunc(const std::string& name) {
  return kExternFunc(name, nullptr, kNoSpan).cast<ExternFunc>();
}

TensorType MakeTensorType(const NodeArray<Expr>& shape, const TensorType& like) {
  ffi::Optional<DLDataType> dtype;
  if (like.has_dtype()) dtype = like.dtype();
  return kTensorType(MakeShape(shape), dtype, -1, nullptr, kNoSpan).cast<TensorType>();
}

TensorType MakeTensorType(const NodeArray<Expr>& shape, DLDataType dtype) {
  return kTensorType(MakeShape(shape), dtype, -1, nullptr, kNoSpan).cast<TensorType>();
}

ShapeType MakeShapeType(const NodeArray<Expr>& values) {
  return kShapeType(values, -1, kNoSpan).cast<ShapeType>();
}

TupleType MakeTupleType(const NodeArray<Type>& fields) {
  return kTupleType(fields, kNoSpan).cast<TupleType>();
}

FuncType MakeFuncType(const NodeArray<Type>& params, const Type& ret_ty, bool is_pure) {
  return kFuncType(params, ret_ty, is_pure, kNoSpan).cast<FuncType>();
}

DTensorType MakeDTensorType(const TensorType& tensor_ty, const DeviceMesh& mesh,
                            const Placement& placement) {
  return kDTensorType(tensor_ty, mesh, placement, kNoSpan).cast<DTensorType>();
}

DeviceMesh MakeDeviceMesh(const std::vector<int64_t>& shape,
                          const std::vector<int64_t>& device_ids) {
  ffi::Shape mesh_shape(shape);
  if (AreConsecutive(device_ids) && !device_ids.empty()) {
    // As upstream prints it: R.device_mesh((2, 2), R.Range(0, 4)).
    ffi::Any range = kRange(MakeInt(device_ids[0]), MakeInt(device_ids.size()), kNoSpan);
    return kDeviceMesh(mesh_shape, ffi::Array<int64_t>(), range).cast<DeviceMesh>();
  }
  ffi::Array<int64_t> ids(device_ids.begin(), device_ids.end());
  return kDeviceMesh(mesh_shape, ids, nullptr).cast<DeviceMesh>();
}

Placement MakePlacement(const std::vector<int>& dims) {
  ffi::Array<PlacementSpec> specs;
  for (int dim : dims) {
    specs.push_back((dim < 0 ? kReplica() : kSharding(dim)).cast<PlacementSpec>());
  }
  return kPlacement(specs).cast<Placement>();
}

VarBinding MakeBinding(const Var& var, const Expr& value) {
  VarBinding binding(kVarBinding.Make());
  SetField(kBoundVar, binding, var);
  SetField(kBoundValue, binding, value);
  return binding;
}
MatchCast MakeMatchCast(const Var& var, const Expr& value, const Type& ty) {
  return kMatchCast(var, value, ty, kNoSpan).cast<MatchCast>();
}
BindingBlock MakeBlock(const NodeArray<Binding>& bindings, bool dataflow) {
  return (dataflow ? kDataflowBlock(bindings, kNoSpan) : kBindingBlock(bindings, kNoSpan))
      .cast<BindingBlock>();
}
SeqExpr MakeSeq(const NodeArray<BindingBlock>& blocks, const Expr& body, const Type& ty) {
  SeqExpr seq = kSeqExpr(blocks, body, kNoSpan).cast<SeqExpr>();
  SetType(seq, ty);
  return seq;
}
If MakeIf(const Expr& cond, const SeqExpr& true_branch, const SeqExpr& false_branch,
          const Type& ty) {
  If expr = kIf(cond, true_branch, false_branch, kNoSpan).cast<If>();
  SetType(expr, ty);
  return expr;
}
Function MakeFunction(const NodeArray<Var>& params, const SeqExpr& body, const Type& ret_ty,
                      bool is_pure, const Node& attrs) {
  return kFunction(params, body, ret_ty, is_pure, attrs, kNoSpan).cast<Function>();
}

Node WithAttr(const Node& attrs, const char* key, const ffi::Any& value) {
  ffi::Map<ffi::String, ffi::Any> dict;
  if (DictAttrs old = DictAttrs::Cast(attrs); old.defined()) {
    for (const auto& [name, entry] : old.dict()) {
      if (name != key) dict.Set(name, entry);
    }
  }
  if (value != nullptr) dict.Set(key, value);
  return MakeDictAttrs(dict);
}

Node WithField(const Node& attrs, const char* field, const ffi::Any& value) {
  std::vector<ffi::Any> arguments = {ffi::String(attrs->GetTypeKey())};
  for (ffi::Any& entry : ListFields(attrs)) arguments.push_back(std::move(entry));
  for (size_t i = 1; i < arguments.size(); i += 2) {
    if (arguments[i].cast<ffi::String>() == field) arguments[i + 1] = value;
  }
  return kMakeObject.Apply(arguments).cast<Node>();
}

IRModule MakeModule(const FunctionMap& functions, const Node& attrs,
                    const GlobalInfoMap& global_infos) {
  return kModule(functions, attrs, global_infos).cast<IRModule>();
}

void SetName(const Var& var, const ffi::String& name) {
  const_cast<ffi::String&>(var.name()) = name;  // the field itself
}
void SetType(const Expr& expr, const Type& ty) { kUpdateType(expr, ty); }

bool StructurallyEqual(const ffi::ObjectRef& a, const ffi::ObjectRef& b) {
  return a.same_as(b) || kStructuralEqual(a, b, false, false).cast<bool>();
}

std::string CalleeName(const Call& call) {
  // The operators for calls of functions have the function as their first argument.
  if (!call.args().empty() && ExternFunc::Is(call.args()[0]))
    return ExternFunc::Cast(call.args()[0]).name();
  if (auto registered = Op::Cast(call.op()); registered.defined()) return registered.name();
  if (auto packed = ExternFunc::Cast(call.op()); packed.defined()) return packed.name();
  return Print(call.op());
}

std::string Print(const ffi::ObjectRef& object) {
  return static_cast<std::string>(kRepr(object).cast<ffi::String>());
}

}  // namespace distir::ir
