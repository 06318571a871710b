/*!
 * \file analysis/builtin_count.h
 * \brief Operations and bytes of the runtime's packed functions, as for kernels
 * (analysis/kernel_count.h), and bytes of row exchanges.
 */
#ifndef DISTIR_ANALYSIS_BUILTIN_COUNT_H_
#define DISTIR_ANALYSIS_BUILTIN_COUNT_H_

#include <string>

#include "abi/collective.h"
#include "analysis/kernel_count.h"
#include "ir/node.h"

namespace distir::analysis {

/*! \brief Bytes of the tensors in a type; sizes that are not known count as 1. */
double BytesOf(const ir::Type& type);

/*! \brief The text of a string; empty for everything else. */
std::string StringArgument(const ir::Expr& expr);

/*! \brief True if a function of the runtime computes and does not communicate.
 *  \param name Without "distir.runtime.". */
bool IsComputed(const std::string& name);

/*!
 * \brief Counts a call of the fused norm, or of a function that IsComputed.
 * \param args All arguments, with tensors that it writes to.
 * \param result The type of what it gives.
 */
KernelCount CountBuiltin(const std::string& name, const ir::NodeArray<ir::Expr>& args,
                         const ir::Type& result);

/*! \brief Bytes of the rows that a worker exchanges in a collective of slots or of pairs, its own
 *  included. \param count Source of their number. \param args (x or y, mask, groups,
 * choices) */
double BytesOfRows(abi::RowCount count, const ir::NodeArray<ir::Expr>& args,
                   const ir::Type& result);

}  // namespace distir::analysis
#endif  // DISTIR_ANALYSIS_BUILTIN_COUNT_H_
