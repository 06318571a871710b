/*!
 * \file support/counted.h
 * \brief Prints a number with its noun, for messages: "1 axis", "2 axes".
 */
#ifndef DISTIR_SUPPORT_COUNTED_H_
#define DISTIR_SUPPORT_COUNTED_H_

#include <string>

namespace distir::support {

/*! \brief "1 axis", "2 axes". */
inline std::string Counted(size_t number, const char* singular, const char* plural) {
  return std::to_string(number) + " " + (number == 1 ? singular : plural);
}

}  // namespace distir::support
#endif  // DISTIR_SUPPORT_COUNTED_H_
