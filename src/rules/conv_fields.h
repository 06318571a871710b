/*!
 * \file rules/conv_fields.h
 * \brief What convolutions say of themselves, for their channels and for their windows.
 */
#ifndef DISTIR_RULES_CONV_FIELDS_H_
#define DISTIR_RULES_CONV_FIELDS_H_

#include "ir/node.h"

namespace distir {
namespace rules {

struct ConvFields {
  explicit ConvFields(const char* key)
      : groups(key, "groups"),
        strides(key, "strides"),
        padding(key, "padding"),
        dilation(key, "dilation"),
        data_layout(key, "data_layout"),
        kernel_layout(key, "kernel_layout"),
        out_layout(key, "out_layout") {}
  ir::AttrField groups, strides, padding, dilation, data_layout, kernel_layout, out_layout;
};

struct TransposedFields : ConvFields {
  explicit TransposedFields(const char* key)
      : ConvFields(key), output_padding(key, "output_padding") {}
  ir::AttrField output_padding;
};

inline const ConvFields kConv1d("relax.attrs.Conv1DAttrs");
inline const ConvFields kConv2d("relax.attrs.Conv2DAttrs");
inline const ConvFields kConv3d("relax.attrs.Conv3DAttrs");
inline const TransposedFields kTransposed1d("relax.attrs.Conv1DTransposeAttrs");
inline const TransposedFields kTransposed2d("relax.attrs.Conv2DTransposeAttrs");
inline const TransposedFields kTransposed3d("relax.attrs.Conv3DTransposeAttrs");

}  // namespace rules
}  // namespace distir
#endif  // DISTIR_RULES_CONV_FIELDS_H_
