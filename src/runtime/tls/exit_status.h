/*!
 * \file runtime/tls/exit_status.h
 * \brief Passes the exit status of this process to a callback.
 */
#ifndef DISTIR_RUNTIME_TLS_EXIT_STATUS_H_
#define DISTIR_RUNTIME_TLS_EXIT_STATUS_H_

#include <functional>

namespace distir::runtime::tls {

/*!
 * \brief Has a function called with the status when this process exits.
 *
 * Python's own functions at the exit do not know the status, and run before it is certain. Nothing
 * is called where the process ends without exiting (a signal, _exit), nor in a fork of it.
 */
void TellExitStatus(std::function<void(char)> tell);

}  // namespace distir::runtime::tls

#endif  // DISTIR_RUNTIME_TLS_EXIT_STATUS_H_
