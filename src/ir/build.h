/*!
 * \file ir/build.h
 * \brief Makes TVM's IR objects through FFI constructors.
 *
 * Types are given, not inferred: every pass here knows the type of what it makes, so nothing is
 * normalised again and building stays linear. Passes keep the A-normal form of their input.
 */
#ifndef DISTIR_IR_BUILD_H_
#define DISTIR_IR_BUILD_H_

#include <string>
#include <utility>
#include <vector>

#include "ir/node.h"

namespace distir::ir {

Call MakeCall(const Type& ty, const Expr& op, const NodeArray<Expr>& args,
              const Node& attrs = Node(), const NodeArray<Type>& ty_args = {},
              const Node& span = Node());
/*! \brief A call of a registered operator with DictAttrs. */
Call MakeOpCall(const Type& ty, const char* op_name, const NodeArray<Expr>& args,
                const std::vector<std::pair<const char*, ffi::Any>>& attrs = {},
                const NodeArray<Type>& ty_args = {});
/*! \brief The registered operator of this name. */
Op GetOp(const std::string& name);
Tuple MakeTuple(const NodeArray<Expr>& fields);
/*! \brief An element of a tuple, typed by it. */
Expr MakeTupleGetItem(const Expr& tuple, int index);
Var MakeVar(const ffi::String& name, const Type& ty, bool dataflow);
/*! \brief A global variable without a type; SetType gives it one. */
GlobalVar MakeGlobalVar(const std::string& name);
Expr MakeTensorConstant(const ffi::Any& tensor, const Type& ty);
Expr MakeInt(int64_t value);
Expr MakeFloat(double value);
Expr MakeString(const std::string& value);
ShapeExpr MakeShape(const NodeArray<Expr>& values);
ExternFunc MakeExternFunc(const std::string& name);

TensorType MakeTensorType(const NodeArray<Expr>& shape, const TensorType& like);
TensorType MakeTensorType(const NodeArray<Expr>& shape, DLDataType dtype);
ShapeType MakeShapeType(const NodeArray<Expr>& values);
TupleType MakeTupleType(const NodeArray<Type>& fields);
FuncType MakeFuncType(const NodeArray<Type>& params, const Type& ret_ty, bool is_pure);
DTensorType MakeDTensorType(const TensorType& tensor_ty, const DeviceMesh& mesh,
                            const Placement& placement);
DeviceMesh MakeDeviceMesh(const std::vector<int64_t>& shape,
                          const std::vector<int64_t>& device_ids);
/*! \brief dims: the sharded tensor dimension per mesh axis, -1 for a replica. */
Placement MakePlacement(const std::vector<int>& dims);

VarBinding MakeBinding(const Var& var, const Expr& value);
MatchCast MakeMatchCast(const Var& var, const Expr& value, const Type& ty);
BindingBlock MakeBlock(const NodeArray<Binding>& bindings, bool dataflow);
SeqExpr MakeSeq(const NodeArray<BindingBlock>& blocks, const Expr& body, const Type& ty);
If MakeIf(const Expr& cond, const SeqExpr& true_branch, const SeqExpr& false_branch,
          const Type& ty);
Function MakeFunction(const NodeArray<Var>& params, const SeqExpr& body, const Type& ret_ty,
                      bool is_pure, const Node& attrs);
/*! \brief A copy of the function's attributes without `key`; with `key` set when value is not None.
 */
Node WithAttr(const Node& attrs, const char* key, const ffi::Any& value);
/*! \brief A copy of an operator's attributes with another value of one field. */
Node WithField(const Node& attrs, const char* field, const ffi::Any& value);
IRModule MakeModule(const FunctionMap& functions, const Node& attrs,
                    const GlobalInfoMap& global_infos);

/*! \brief Gives another name to a variable that nobody but its maker has seen. */
void SetName(const Var& var, const ffi::String& name);
/*! \brief Sets the type of an expression that has none yet. */
void SetType(const Expr& expr, const Type& ty);
bool StructurallyEqual(const ffi::ObjectRef& a, const ffi::ObjectRef& b);
/*! \brief TVMScript of an object, for error messages. */
std::string Print(const ffi::ObjectRef& object);
/*! \brief The name of an operator, or of the function that a call of a packed function calls. */
std::string CalleeName(const Call& call);

}  // namespace distir::ir
#endif  // DISTIR_IR_BUILD_H_
