/*!
 * \file ir/tvm/registration.h
 * \brief Registers operators and their attributes in TVM's operator registry.
 */
#ifndef DISTIR_IR_TVM_REGISTRATION_H_
#define DISTIR_IR_TVM_REGISTRATION_H_

#include <functional>
#include <string>
#include <vector>

#include "ir/node.h"

namespace distir::ir {

using InferType = std::function<Type(const Call& call)>;

/*! \brief While this thread infers a type: the module of the BlockBuilder that asks for it.
 * Otherwise null. */
IRModule ModuleOfInference();

/*! \brief Registers a new operator with one tensor argument per name in `arguments`. */
void RegisterOp(const std::string& name, const std::string& description,
                const std::vector<const char*>& arguments, bool is_pure);
/*! \brief Type inference for calls whose arguments are Tensors. */
void SetInferType(const std::string& op, InferType infer);
/*! \brief Type inference for calls with a DTensor argument; takes the place of upstream's where
 * there is one. */
void SetInferDTensorType(const std::string& op, InferType infer);
/*!
 * \brief Lets `infer` decide for calls with a DTensor inside a tuple argument, which TVM takes for
 * calls on Tensors; other calls keep the operator's own inference.
 */
void SetInferDTensorTupleType(const std::string& op, InferType infer);
/*! \brief True if an expression is an operator that is registered as free of effects. */
bool IsPureOp(const Expr& op);
bool HasAttr(const std::string& op, const char* attr);
/*! \brief Names of all registered operators. */
std::vector<std::string> ListOpNames();
/*! \brief Plain type inference of a call whose arguments have Tensor types. */
Type InferTensorType(const Call& call);

}  // namespace distir::ir
#endif  // DISTIR_IR_TVM_REGISTRATION_H_
