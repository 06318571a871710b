/*!
 * \file rules/factor/axes.h
 * \brief Reads the `axis` and `axes` attributes of operators, and arguments like them.
 */
#ifndef DISTIR_RULES_FACTOR_AXES_H_
#define DISTIR_RULES_FACTOR_AXES_H_

#include <optional>
#include <vector>

#include "ir/node.h"

namespace distir::rules {

namespace ffi = tvm::ffi;

/*! \brief An axis in [0, rank). */
inline int NormalizeAxis(int64_t axis, int rank) {
  return static_cast<int>(axis < 0 ? axis + rank : axis);
}

/*! \brief The axes of an attribute that is an array of integers, normalised; nullopt when the
 * attribute is None. */
std::optional<std::vector<int>> ReadAxes(const ffi::Any& value, int rank);
/*! \brief mask[d] is whether dimension d is named by the attribute; all are when it is None. */
std::vector<bool> AxisMask(const ffi::Any& value, int rank);
/*! \brief The integers of an argument that is a tuple of them; nullopt for any other. */
std::optional<std::vector<int64_t>> IntegersOf(const ir::Expr& tuple);

}  // namespace distir::rules
#endif  // DISTIR_RULES_FACTOR_AXES_H_
