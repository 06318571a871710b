/*!
 * \file runtime/tls/exit_status.cc
 * \brief Reports the exit status by on_exit of the GNU C library, the only hook that receives it.
 */
#include "runtime/tls/exit_status.h"

#include <unistd.h>

#include <cstdlib>
#include <utility>
#include <vector>

#include "support/error.h"

namespace distir::runtime::tls {

namespace {

struct Listeners {
  pid_t process = 0;
  std::vector<std::function<void(char)>> tell;
};

void Tell(int status, void* argument) {
  const auto* listeners = static_cast<const Listeners*>(argument);
  if (listeners->process != getpid()) return;
  for (const auto& tell : listeners->tell) tell(static_cast<char>(status));
}

}  // namespace

void TellExitStatus(std::function<void(char)> tell) {
  // Never deleted: static objects are destroyed while the process exits.
  static auto* listeners = new Listeners();
  static const int failed = on_exit(Tell, listeners);
  DISTIR_REQUIRE(failed == 0, RuntimeError)
      << "the system takes no function for the exit of this process";
  if (listeners->process != getpid()) {  // in a fork those of its parent are not its own
    listeners->process = getpid();
    listeners->tell.clear();
  }
  listeners->tell.push_back(std::move(tell));
}

}  // namespace distir::runtime::tls
