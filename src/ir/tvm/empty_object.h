/*!
 * \file ir/tvm/empty_object.h
 * \brief Makes empty objects of TVM, whose fields must all be set, without a call of TVM's
 * functions; for types with one or more objects per operator.
 *
 *     const EmptyObject kBinding("relax.expr.VarBinding", {"span", "var", "value"});
 *     const Field<Var> kVar("relax.expr.Binding", "var");
 *     VarBinding made(kBinding.Make());
 *     SetField(kVar, made, var);
 */
#ifndef DISTIR_IR_TVM_EMPTY_OBJECT_H_
#define DISTIR_IR_TVM_EMPTY_OBJECT_H_

#include <initializer_list>
#include <string>
#include <vector>

#include "ir/tvm/reflection.h"

namespace distir::ir {

class EmptyObject : public Resolvable {
 public:
  /*! \param fields All that the type has, in alphabetical order; whoever makes an object sets them
   * or leaves them null. A type that has others is not the one that is known. */
  EmptyObject(const char* type_key, std::initializer_list<const char*> fields)
      : kind_(type_key), fields_(fields.begin(), fields.end()) {}
  std::string Resolve() override;
  ffi::ObjectPtr<ffi::Object> Make() const;

 private:
  Kind kind_;
  std::vector<std::string> fields_;
  TVMFFIObjectCreator creator_ = nullptr;
};

/*! \brief Sets a field of an object that nobody else has seen. */
template <typename T>
void SetField(const Field<T>& field, const ffi::ObjectRef& object, const T& value) {
  const_cast<T&>(field(object)) = value;
}

}  // namespace distir::ir
#endif  // DISTIR_IR_TVM_EMPTY_OBJECT_H_
