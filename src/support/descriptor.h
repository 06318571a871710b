/*!
 * \file support/descriptor.h
 * \brief File descriptor with one owner that closes it.
 *
 * What is told of a descriptor by its number has one of its own, for as long as it uses it: the
 * system gives the number of one that is closed to the next file, and who still has the number
 * would read and write that.
 *
 * Worked example, for a socket that Python may close at any time:
 *
 *     Descriptor own = Descriptor::CopyOf(number);  // the same connection, under another number
 */
#ifndef DISTIR_SUPPORT_DESCRIPTOR_H_
#define DISTIR_SUPPORT_DESCRIPTOR_H_

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "support/error.h"

namespace distir::support {

class Descriptor {
 public:
  Descriptor() = default;
  /*! \param number A descriptor, which is taken over. */
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    Close();
    number_ = std::exchange(other.number_, -1);
    return *this;
  }
  ~Descriptor() { Close(); }

  /*!
   * \brief Another descriptor of the same file, which is none of the standard streams and is closed
   *        when the process runs another program.
   * \throws ValueError if there is no such descriptor, RuntimeError if there can be no more.
   */
  static Descriptor CopyOf(int number) {
    constexpr int kFirstAfterStandard = 3;
    const int copy = fcntl(number, F_DUPFD_CLOEXEC, kFirstAfterStandard);
    const int error = errno;
    DISTIR_REQUIRE(copy >= 0 || error != EBADF, ValueError) << "there is no descriptor " << number;
    DISTIR_REQUIRE(copy >= 0, RuntimeError)
        << "cannot copy descriptor " << number << ": " << std::strerror(error);
    return Descriptor(copy);
  }

  /*! \brief Its number; -1 for none. */
  int number() const { return number_; }

  /*! \brief Its number, which belongs to the caller from now on. */
  int Release() { return std::exchange(number_, -1); }

  void Close() {
    if (number_ >= 0) close(std::exchange(number_, -1));
  }

 private:
  int number_ = -1;
};

}  // namespace distir::support

#endif  // DISTIR_SUPPORT_DESCRIPTOR_H_
