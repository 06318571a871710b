/*!
 * \file support/error.h
 * \brief Conventions and wording of error messages.
 *
 * A user's mistake is TVM_FFI_THROW(ValueError) << ...; the message names the entity and, where
 * there is a choice, what would have been accepted. TVM_FFI_ICHECK is for states that no input can
 * reach.
 *
 * Worked example, for an axis name that a mesh does not have:
 *
 *     TVM_FFI_THROW(ValueError) << "mesh axis \"" << name << "\" does not exist; the axes are "
 *                               << Listed(mesh.names);  // "dp", "tp"
 */
#ifndef DISTIR_SUPPORT_ERROR_H_
#define DISTIR_SUPPORT_ERROR_H_

#include <tvm/ffi/error.h>

#include <sstream>
#include <string>
#include <type_traits>

/*!
 * \brief Throws unless the condition holds:
 * \code
 *   DISTIR_REQUIRE(size > 0, ValueError) << "size is " << size;
 * \endcode
 * Unlike TVM_FFI_CHECK it does not put the condition's text, which means nothing to a user, before
 * the message.
 */
#define DISTIR_REQUIRE(condition, ErrorKind) \
  if (condition) {                           \
  } else                                     \
    TVM_FFI_THROW(ErrorKind)

namespace distir::support {

/*! \brief The items of a range separated by ", ", strings in quotes; "none" if there are none. */
template <typename Range>
std::string Listed(const Range& items) {
  std::ostringstream text;
  bool first = true;
  for (const auto& item : items) {
    if (!first) text << ", ";
    first = false;
    if constexpr (std::is_convertible_v<decltype(item), std::string>) {
      text << '"' << std::string(item) << '"';
    } else {
      text << item;
    }
  }
  return first ? "none" : text.str();
}

}  // namespace distir::support

#endif  // DISTIR_SUPPORT_ERROR_H_
