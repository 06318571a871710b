/*!
 * \file analysis/operator_calls.h
 * \brief Outlines equal operator calls to one function, so that each kind of call is legalised
 * once.
 *
 * A stack of 80 decoder layers calls some 30 different operators on tensors of the same types 4,000
 * times. OutlineOperators writes a function for each of the 30, TVM legalises these, and
 * InlineOperators puts what came of them in the place of every call:
 *
 *     y = R.multiply(x, R.const(2.0))              y = cls.operator_3(x)
 *     z = R.multiply(y, R.const(2.0))      ->      z = cls.operator_3(y)
 *                                                  def operator_3(p0): return R.multiply(p0, 2.0)
 */
#ifndef DISTIR_ANALYSIS_OPERATOR_CALLS_H_
#define DISTIR_ANALYSIS_OPERATOR_CALLS_H_

#include "ir/node.h"

namespace distir::analysis {

/*! \brief The function attribute that names the operator which a function stands for. */
constexpr const char* kOperatorAttr = "distir.operator";

/*! \brief The calls that are outlined. */
enum class Outlined {
  kLegalized,  // those of operators that TVM legalises; one with a constant of several elements
               // stays
  kAll,  // also those that passes before write as kernels; such a constant is an argument. To count
};

/*! \brief Calls of operators become calls of functions. A call with symbolic sizes stays. */
ir::IRModule OutlineOperators(const ir::IRModule& mod, Outlined which);
/*! \brief The bodies of these functions in the place of their calls, and no such functions. The
 * last variable of a body has the name of the call's. */
ir::IRModule InlineOperators(const ir::IRModule& mod);

}  // namespace distir::analysis
#endif  // DISTIR_ANALYSIS_OPERATOR_CALLS_H_
