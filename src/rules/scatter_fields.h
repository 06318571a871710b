/*!
 * \file rules/scatter_fields.h
 * \brief What operators that write at positions say of themselves, for their rules and algorithms.
 */
#ifndef DISTIR_RULES_SCATTER_FIELDS_H_
#define DISTIR_RULES_SCATTER_FIELDS_H_

#include "ir/node.h"

namespace distir {
namespace rules {

inline const ir::AttrField kIndexPutAccumulate("relax.attrs.IndexPutAttrs", "accumulate");
inline const ir::AttrField kScatterElementsAxis("relax.attrs.ScatterElementsAttrs", "axis");
inline const ir::AttrField kScatterElementsMode("relax.attrs.ScatterElementsAttrs", "reduction");
inline const ir::AttrField kScatterNdMode("relax.attrs.ScatterNDAttrs", "reduction");
inline const ir::AttrField kSliceScatterAxis("relax.attrs.SliceScatterAttrs", "axis");
inline const ir::AttrField kTakeAxis("relax.attrs.TakeAttrs", "axis");

}  // namespace rules
}  // namespace distir
#endif  // DISTIR_RULES_SCATTER_FIELDS_H_
