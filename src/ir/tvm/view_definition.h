/*!
 * \file ir/tvm/view_definition.h
 * \brief Macros that define what DISTIR_VIEW declares; for the files that define views.
 */
#ifndef DISTIR_IR_TVM_VIEW_DEFINITION_H_
#define DISTIR_IR_TVM_VIEW_DEFINITION_H_

#include "ir/tvm/reflection.h"

// One line per node type: its key.
#define DISTIR_KIND(Name, key) const Kind Name::kind_(key);

// One line per accessor that the view has inline.
#define DISTIR_DEFINE_GET(View, Type, accessor, key, name) \
  const Field<Type> View::accessor##_field_(key, name);

// One line per field: the accessor, its type, the key of the declaring type, the field's name.
#define DISTIR_FIELD(View, Type, accessor, key, name)              \
  static const Field<Type> k##View##_##accessor##Field(key, name); \
  const Type& View::accessor() const { return k##View##_##accessor##Field(*this); }

#define DISTIR_VALUE_FIELD(View, Result, Stored, accessor, key, name) \
  static const Field<Stored> k##View##_##accessor##Field(key, name);  \
  Result View::accessor() const { return k##View##_##accessor##Field(*this); }

#define DISTIR_STRING_FIELD(View, accessor, key, name)                    \
  static const Field<ffi::String> k##View##_##accessor##Field(key, name); \
  std::string View::accessor() const {                                    \
    return static_cast<std::string>(k##View##_##accessor##Field(*this));  \
  }

#endif  // DISTIR_IR_TVM_VIEW_DEFINITION_H_
