/*!
 * \file abi/builtin.h
 * \brief Names of the runtime's builtins, which compiled programs call.
 */
#ifndef DISTIR_ABI_BUILTIN_H_
#define DISTIR_ABI_BUILTIN_H_

#include <string>

namespace distir::abi {

/*! \brief Prefix of the global function of a builtin: "distir.runtime.all_reduce". */
inline const std::string kRuntime = "distir.runtime.";

}  // namespace distir::abi

#endif  // DISTIR_ABI_BUILTIN_H_
