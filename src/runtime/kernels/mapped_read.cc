// Reads mapped files; a truncated file is an error instead of SIGBUS.
#include "runtime/kernels/mapped_read.h"

#include <csetjmp>
#include <csignal>
#include <mutex>

namespace distir::runtime {

namespace {

thread_local sigjmp_buf* reader = nullptr;  // of a read that this thread is in

struct sigaction previous;

void OnBusError(int number, siginfo_t* info, void*) {
  if (reader != nullptr) siglongjmp(*reader, 1);
  // Somebody else's: the instruction is run again, and meets whoever was here before.
  sigaction(SIGBUS, &previous, nullptr);
  if (info->si_code <= 0) raise(number);  // a process has sent it
}

// Each time, as others (Python's faulthandler) may have come since.
void Install() {
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  struct sigaction current{};
  sigaction(SIGBUS, nullptr, &current);
  if ((current.sa_flags & SA_SIGINFO) != 0 && current.sa_sigaction == OnBusError) return;
  previous = current;
  struct sigaction ours{};
  ours.sa_sigaction = OnBusError;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&ours.sa_mask);
  sigaction(SIGBUS, &ours, nullptr);
}

}  // namespace

bool ReadMapped(void (*read)(const void* argument), const void* argument) {
  Install();
  sigjmp_buf here;
  if (sigsetjmp(here, 1) != 0) {
    reader = nullptr;
    return false;
  }
  reader = &here;
  read(argument);
  reader = nullptr;
  return true;
}

}  // namespace distir::runtime
