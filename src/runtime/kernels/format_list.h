/*!
 * \file runtime/kernels/format_list.h
 * \brief Prints lists of numbers in messages: shapes, device ids. Example: "[4, 8]", "[]".
 */
#ifndef DISTIR_RUNTIME_KERNELS_FORMAT_LIST_H_
#define DISTIR_RUNTIME_KERNELS_FORMAT_LIST_H_

#include <sstream>
#include <string>

namespace distir::runtime {

template <typename Iterator>
std::string FormatList(Iterator begin, Iterator end) {
  std::ostringstream text;
  text << "[";
  for (Iterator it = begin; it != end; ++it) {
    if (it != begin) text << ", ";
    text << *it;
  }
  text << "]";
  return text.str();
}

template <typename List>
std::string FormatList(const List& list) {
  return FormatList(list.begin(), list.end());
}

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_KERNELS_FORMAT_LIST_H_
