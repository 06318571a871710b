/*!
 * \file ir/node.h
 * \brief Views of TVM's IR objects: reference-counted handles with typed accessors, one class per
 * node.
 *
 * A view holds the TVM object itself, so views pass unchanged to and from FFI functions and
 * containers. `T::Is(x)` asks for the type, `T::Cast(x)` gives the view or null. Accessors do not
 * check the type again.
 *
 *     if (Call call = Call::Cast(expr); call.defined()) Use(call.op(), call.args());
 */
#ifndef DISTIR_IR_NODE_H_
#define DISTIR_IR_NODE_H_

#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/dtype.h>

#include <string>

#include "ir/tvm/reflection.h"

namespace distir {
namespace ir {

// Defines the members that every view has; `key` is TVM's type key.
#define DISTIR_VIEW(Name, Base)                                                            \
 public:                                                                                   \
  using Base::Base;                                                                        \
  static const Kind& GetKind();                                                            \
  static bool Is(const ffi::ObjectRef& object) { return GetKind().Matches(object.get()); } \
  static Name Cast(const ffi::ObjectRef& object) {                                         \
    if (!Is(object)) return Name();                                                        \
    return Name(ffi::details::ObjectUnsafe::ObjectPtrFromObjectRef<ffi::Object>(object));  \
  }

class Node : public ffi::ObjectRef {
 public:
  using ffi::ObjectRef::ObjectRef;
};

// ---- types

class Type : public Node {
  DISTIR_VIEW(Type, Node)
};

class PrimType : public Type {
  DISTIR_VIEW(PrimType, Type)
  DLDataType dtype() const;
};

/*! \brief What a tensor has where its dtype is unknown: no bits, and neither float nor integer. */
inline constexpr DLDataType kUnknownDtype{kDLOpaqueHandle, 0, 0};

class Expr : public Node {
  DISTIR_VIEW(Expr, Node)
  const Type& ty() const;
};

class TensorType : public Type {
  DISTIR_VIEW(TensorType, Type)
  /*! \brief Null, a ShapeExpr, or another expression of shape type. */
  const Expr& shape() const;
  /*! \brief The dtype of the elements; kUnknownDtype where nothing states it. */
  DLDataType dtype() const;
  bool has_dtype() const { return dtype().bits != 0; }
  int ndim() const;
};

class ShapeType : public Type {
  DISTIR_VIEW(ShapeType, Type)
  /*! \brief The dimensions; nullopt where the shape is unknown. */
  ffi::Optional<ffi::Array<Expr>> values() const;
};

class TupleType : public Type {
  DISTIR_VIEW(TupleType, Type)
  const ffi::Array<Type>& fields() const;
};

class FuncType : public Type {
  DISTIR_VIEW(FuncType, Type)
};

class GlobalInfo : public Node {
  DISTIR_VIEW(GlobalInfo, Node)
};

class DeviceMesh : public GlobalInfo {
  DISTIR_VIEW(DeviceMesh, GlobalInfo)
  const ffi::Shape& shape() const;
  const ffi::Array<int64_t>& device_ids() const;
};

class PlacementSpec : public Node {
  DISTIR_VIEW(PlacementSpec, Node)
  /*! \brief The sharded tensor dimension, or -1 for a replica. */
  int dim() const;
  /*! \brief 0 for a shard, which an invalid text may give dimension -1, too. */
  int kind() const;
  bool IsShard() const { return kind() == 0; }
};

class Placement : public Node {
  DISTIR_VIEW(Placement, Node)
  const ffi::Array<PlacementSpec>& dim_specs() const;
};

class DTensorType : public Type {
  DISTIR_VIEW(DTensorType, Type)
  const TensorType& tensor_ty() const;
  const DeviceMesh& device_mesh() const;
  const Placement& placement() const;
};

// ---- expressions

class Var : public Expr {
  DISTIR_VIEW(Var, Expr)
  const ffi::String& name() const;
};

class DataflowVar : public Var {
  DISTIR_VIEW(DataflowVar, Var)
};

class GlobalVar : public Expr {
  DISTIR_VIEW(GlobalVar, Expr)
  std::string name() const;
};

class Op : public Expr {
  DISTIR_VIEW(Op, Expr)
  const ffi::String& name() const;
};

class ExternFunc : public Expr {
  DISTIR_VIEW(ExternFunc, Expr)
  std::string name() const;
};

class Call : public Expr {
  DISTIR_VIEW(Call, Expr)
  const Expr& op() const;
  const ffi::Array<Expr>& args() const;
  const Node& attrs() const;
  const ffi::Array<Type>& ty_args() const;
  const Node& span() const;
};

class Tuple : public Expr {
  DISTIR_VIEW(Tuple, Expr)
  const ffi::Array<Expr>& fields() const;
};

class TupleGetItem : public Expr {
  DISTIR_VIEW(TupleGetItem, Expr)
  const Expr& tuple() const;
  int index() const;
};

class ShapeExpr : public Expr {
  DISTIR_VIEW(ShapeExpr, Expr)
  const ffi::Array<Expr>& values() const;
};

/*! \brief A constant whose value is any FFI value; a tensor constant holds a Tensor. */
class Constant : public Expr {
  DISTIR_VIEW(Constant, Expr)
  bool IsTensor() const;
  ffi::Any value() const;
};

class IntImm : public Expr {
  DISTIR_VIEW(IntImm, Expr)
  int64_t value() const;
};

class StringImm : public Expr {
  DISTIR_VIEW(StringImm, Expr)
  std::string value() const;
};

// ---- bindings

class Binding : public Node {
  DISTIR_VIEW(Binding, Node)
  const Var& var() const;
};

class VarBinding : public Binding {
  DISTIR_VIEW(VarBinding, Binding)
  const Expr& value() const;
};

class MatchCast : public Binding {
  DISTIR_VIEW(MatchCast, Binding)
  const Expr& value() const;
  const Type& ty() const;
};

class BindingBlock : public Node {
  DISTIR_VIEW(BindingBlock, Node)
  const ffi::Array<Binding>& bindings() const;
};

class DataflowBlock : public BindingBlock {
  DISTIR_VIEW(DataflowBlock, BindingBlock)
};

// ---- control and functions

class SeqExpr : public Expr {
  DISTIR_VIEW(SeqExpr, Expr)
  const ffi::Array<BindingBlock>& blocks() const;
  const Expr& body() const;
};

class If : public Expr {
  DISTIR_VIEW(If, Expr)
  const Expr& cond() const;
  const SeqExpr& true_branch() const;
  const SeqExpr& false_branch() const;
};

class BaseFunc : public Expr {
  DISTIR_VIEW(BaseFunc, Expr)
  const Node& attrs() const;
};

class Function : public BaseFunc {
  DISTIR_VIEW(Function, BaseFunc)
  const ffi::Array<Var>& params() const;
  const SeqExpr& body() const;
  const Type& ret_ty() const;
  bool is_pure() const;
};

// ---- module

class DictAttrs : public Node {
  DISTIR_VIEW(DictAttrs, Node)
  const ffi::Map<ffi::String, ffi::Any>& dict() const;
};

using FunctionMap = ffi::Map<GlobalVar, BaseFunc>;
using GlobalInfoMap = ffi::Map<ffi::String, ffi::Array<GlobalInfo>>;

class IRModule : public Node {
  DISTIR_VIEW(IRModule, Node)
  const FunctionMap& functions() const;
  const Node& attrs() const;
  const GlobalInfoMap& global_infos() const;
};

/*! \brief An entry of a DictAttrs (None when absent or when attrs is no DictAttrs). */
ffi::Any GetAttr(const Node& attrs, const char* key);

/*! \brief Whether the callee is the registered operator of this name, which must be a string
 * literal. */
bool IsOp(const Expr& op, const char* name);

/*! \brief The functions of a module ordered by name, so that passes do not depend on the hash order
 * of the map. */
std::vector<std::pair<GlobalVar, BaseFunc>> OrderedFunctions(const IRModule& mod);

}  // namespace ir
}  // namespace distir
#endif  // DISTIR_IR_NODE_H_
