/*!
 * \file support/contains.h
 * \brief Tests whether a list contains an item.
 */
#ifndef DISTIR_SUPPORT_CONTAINS_H_
#define DISTIR_SUPPORT_CONTAINS_H_

#include <algorithm>

namespace distir {

template <typename List, typename Item>
bool Has(const List& list, const Item& item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

}  // namespace distir

#endif  // DISTIR_SUPPORT_CONTAINS_H_
