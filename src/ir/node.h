/*!
 * \file ir/node.h
 * \brief Views of TVM's IR objects: reference-counted handles with typed accessors, one class per
 * node.
 *
 * A view holds the TVM object itself, so views pass unchanged to and from FFI functions and
 * containers. `T::Is(x)` asks for the type, `T::Cast(x)` gives the view or null. `T::As(x)` gives
 * x itself as the view, without counting a reference, or a null pointer: for walks, and as long as
 * x is there. Accessors do not check the type again.
 *
 *     if (Call call = Call::Cast(expr); call.defined()) Use(call.op(), call.args());
 */
#ifndef DISTIR_IR_NODE_H_
#define DISTIR_IR_NODE_H_

#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/dtype.h>

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "ir/tvm/node_array.h"
#include "ir/tvm/reflection.h"

namespace distir::ir {

// Defines the members that every view has; `key` is TVM's type key.
#define DISTIR_VIEW(Name, Base)                                                            \
 private:                                                                                  \
  static const Kind kind_;                                                                 \
                                                                                           \
 public:                                                                                   \
  using Base::Base;                                                                        \
  static const Kind& GetKind() { return kind_; }                                           \
  static bool Is(const ffi::ObjectRef& object) { return GetKind().Matches(object.get()); } \
  static Name Cast(const ffi::ObjectRef& object) {                                         \
    if (!Is(object)) return Name();                                                        \
    return Name(ffi::details::ObjectUnsafe::ObjectPtrFromObjectRef<ffi::Object>(object));  \
  }                                                                                        \
  static const Name* As(const ffi::ObjectRef& object) {                                    \
    return Is(object) ? static_cast<const Name*>(&object) : nullptr;                       \
  }

// An accessor that is read so often that a call of a function for each shows.
#define DISTIR_GET(Type, accessor)            \
 private:                                     \
  static const Field<Type> accessor##_field_; \
                                              \
 public:                                      \
  const Type& accessor() const { return accessor##_field_(*this); }

// Accessor of a plain value.
#define DISTIR_GET_VALUE(Result, Stored, accessor) \
 private:                                          \
  static const Field<Stored> accessor##_field_;    \
                                                   \
 public:                                           \
  Result accessor() const { return accessor##_field_(*this); }

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
  DISTIR_GET_VALUE(DLDataType, DLDataType, dtype)
};

/*! \brief Stand-in for an unknown dtype: no bits, and neither float nor integer. */
inline constexpr DLDataType kUnknownDtype{kDLOpaqueHandle, 0, 0};

class Expr : public Node {
  DISTIR_VIEW(Expr, Node)
  DISTIR_GET(Type, ty)
};

class TensorType : public Type {
  DISTIR_VIEW(TensorType, Type)
  /*! \brief Null, a ShapeExpr, or another expression of shape type. */
  DISTIR_GET(Expr, shape)
  /*! \brief The dtype of the elements; kUnknownDtype where nothing states it. */
  DLDataType dtype() const;
  bool has_dtype() const { return dtype().bits != 0; }
  DISTIR_GET_VALUE(int, int32_t, ndim)
};

class ShapeType : public Type {
  DISTIR_VIEW(ShapeType, Type)
  /*! \brief The dimensions; nullopt where the shape is unknown. */
  ffi::Optional<ffi::Array<Expr>> values() const;
};

class TupleType : public Type {
  DISTIR_VIEW(TupleType, Type)
  DISTIR_GET(NodeArray<Type>, fields)
};

class FuncType : public Type {
  DISTIR_VIEW(FuncType, Type)
};

class GlobalInfo : public Node {
  DISTIR_VIEW(GlobalInfo, Node)
};

class DeviceMesh : public GlobalInfo {
  DISTIR_VIEW(DeviceMesh, GlobalInfo)
  DISTIR_GET(ffi::Shape, shape)
  DISTIR_GET(ffi::Array<int64_t>, device_ids)
};

class PlacementSpec : public Node {
  DISTIR_VIEW(PlacementSpec, Node)
  /*! \brief The sharded tensor dimension, or -1 for a replica. */
  DISTIR_GET_VALUE(int, int32_t, dim)
  /*! \brief 0 for a shard, which an invalid text may give dimension -1, too. */
  DISTIR_GET_VALUE(int, int32_t, kind)
  bool IsShard() const { return kind() == 0; }
};

class Placement : public Node {
  DISTIR_VIEW(Placement, Node)
  DISTIR_GET(NodeArray<PlacementSpec>, dim_specs)
};

class DTensorType : public Type {
  DISTIR_VIEW(DTensorType, Type)
  DISTIR_GET(TensorType, tensor_ty)
  DISTIR_GET(DeviceMesh, device_mesh)
  DISTIR_GET(Placement, placement)
};

// ---- expressions

class Var : public Expr {
  DISTIR_VIEW(Var, Expr)
  DISTIR_GET(ffi::String, name)
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
  DISTIR_GET(ffi::String, name)
};

class ExternFunc : public Expr {
  DISTIR_VIEW(ExternFunc, Expr)
  std::string name() const;
};

class Call : public Expr {
  DISTIR_VIEW(Call, Expr)
  DISTIR_GET(Expr, op)
  DISTIR_GET(NodeArray<Expr>, args)
  DISTIR_GET(Node, attrs)
  DISTIR_GET(NodeArray<Type>, ty_args)
  DISTIR_GET(Node, span)
};

class Tuple : public Expr {
  DISTIR_VIEW(Tuple, Expr)
  DISTIR_GET(NodeArray<Expr>, fields)
};

class TupleGetItem : public Expr {
  DISTIR_VIEW(TupleGetItem, Expr)
  DISTIR_GET(Expr, tuple)
  DISTIR_GET_VALUE(int, int32_t, index)
};

class ShapeExpr : public Expr {
  DISTIR_VIEW(ShapeExpr, Expr)
  DISTIR_GET(NodeArray<Expr>, values)
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
  DISTIR_GET(Var, var)
};

class VarBinding : public Binding {
  DISTIR_VIEW(VarBinding, Binding)
  DISTIR_GET(Expr, value)
};

class MatchCast : public Binding {
  DISTIR_VIEW(MatchCast, Binding)
  DISTIR_GET(Expr, value)
  DISTIR_GET(Type, ty)
};

class BindingBlock : public Node {
  DISTIR_VIEW(BindingBlock, Node)
  DISTIR_GET(NodeArray<Binding>, bindings)
};

class DataflowBlock : public BindingBlock {
  DISTIR_VIEW(DataflowBlock, BindingBlock)
};

// ---- control and functions

class SeqExpr : public Expr {
  DISTIR_VIEW(SeqExpr, Expr)
  DISTIR_GET(NodeArray<BindingBlock>, blocks)
  DISTIR_GET(Expr, body)
};

class If : public Expr {
  DISTIR_VIEW(If, Expr)
  DISTIR_GET(Expr, cond)
  DISTIR_GET(SeqExpr, true_branch)
  DISTIR_GET(SeqExpr, false_branch)
};

class BaseFunc : public Expr {
  DISTIR_VIEW(BaseFunc, Expr)
  DISTIR_GET(Node, attrs)
};

class Function : public BaseFunc {
  DISTIR_VIEW(Function, BaseFunc)
  DISTIR_GET(NodeArray<Var>, params)
  DISTIR_GET(SeqExpr, body)
  DISTIR_GET(Type, ret_ty)
  DISTIR_GET_VALUE(bool, bool, is_pure)
};

// ---- module

using AttrMap = ffi::Map<ffi::String, ffi::Any>;

class DictAttrs : public Node {
  DISTIR_VIEW(DictAttrs, Node)
  DISTIR_GET(AttrMap, dict)
};

using FunctionMap = ffi::Map<GlobalVar, BaseFunc>;
using GlobalInfoMap = ffi::Map<ffi::String, ffi::Array<GlobalInfo>>;

class IRModule : public Node {
  DISTIR_VIEW(IRModule, Node)
  DISTIR_GET(FunctionMap, functions)
  DISTIR_GET(Node, attrs)
  DISTIR_GET(GlobalInfoMap, global_infos)
};

/*! \brief An entry of a DictAttrs (None when absent or when attrs is no DictAttrs). */
ffi::Any GetAttr(const Node& attrs, const char* key);

/*! \brief An operator that the library names. Operators are unique and never freed. */
struct NamedOp {
  const char* name;  // the literal, which is told by its address
  const ffi::Object* op;
};
constexpr int kNamedOpBits = 12;
/*! \brief Operator looked up last, by the hash of the literal's address. */
extern std::atomic<const NamedOp*> last_named_ops[1 << kNamedOpBits];
/*! \brief Looks the operator up and enters it. */
const NamedOp* FindNamedOp(const char* name, std::atomic<const NamedOp*>* entry);

/*! \brief True if the callee is the registered operator of this name, which must be a string
 * literal. */
inline bool IsOp(const Expr& op, const char* name) {
  constexpr uint64_t kGolden = 0x9E3779B97F4A7C15;  // 2^64 by the golden ratio: spreads addresses
  std::atomic<const NamedOp*>& entry =
      last_named_ops[reinterpret_cast<uintptr_t>(name) * kGolden >> (64 - kNamedOpBits)];
  const NamedOp* named = entry.load(std::memory_order_acquire);
  if (named == nullptr || named->name != name) named = FindNamedOp(name, &entry);
  return op.get() == named->op;
}

/*! \brief The functions of a module ordered by name, so that passes do not depend on the hash order
 * of the map. */
std::vector<std::pair<GlobalVar, BaseFunc>> OrderedFunctions(const IRModule& mod);

}  // namespace distir::ir
#endif  // DISTIR_IR_NODE_H_
