/*!
 * \file padding/padded_call.h
 * \brief Decides which operator calls can be padded, and to which extents.
 */
#ifndef DISTIR_PADDING_PADDED_CALL_H_
#define DISTIR_PADDING_PADDED_CALL_H_

#include <functional>
#include <vector>

#include "ir/node.h"
#include "padding/extents.h"
#include "rules/factor/factor_rule.h"
#include "rules/operator.h"
#include "rules/tir/resized_kernels.h"

namespace distir::padding {

/*! \brief True if the call of an operator can be written for other sizes. */
bool StatesSizes(const rules::Operator& record);

/*!
 * \brief The padded extents of a call's factors that may be uneven. Every uneven dimension has to
 * be one such factor, or grains of one, with the same extent in all tensors.
 * \param operands, results Their types before they are padded; null for plain tensors.
 * \param taken, given The padded extents of both.
 * \param refuse Called with the type and the dimension where that is not so; throws.
 */
rules::FactorExtents PaddedExtents(const rules::FactorRule& rule,
                                   const std::vector<ir::DTensorType>& operands,
                                   const std::vector<ir::DTensorType>& results,
                                   const ValueExtents& taken, const ValueExtents& given,
                                   const std::function<void(const ir::DTensorType&, int)>& refuse);

}  // namespace distir::padding
#endif  // DISTIR_PADDING_PADDED_CALL_H_
