/*!
 * \file abi/builtin.h
 * \brief Names of the runtime's builtins, which compiled programs call.
 */
#ifndef DISTIR_ABI_BUILTIN_H_
#define DISTIR_ABI_BUILTIN_H_

#include <string>

namespace distir {
namespace abi {

/*! \brief Prefix of the global function of a builtin: "distir.runtime.all_reduce". */
inline const std::string kRuntime = "distir.runtime.";

}  // namespace abi
}  // namespace distir

#endif  // DISTIR_ABI_BUILTIN_H_
