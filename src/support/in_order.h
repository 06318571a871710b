/*!
 * \file support/in_order.h
 * \brief Reads the items of a list one by one, in step with a walk over something else.
 *
 * Worked example: a call takes (x, (y, z)) and has a sharding for each tensor, [a, b, c]. A walk
 * over the arguments, tuples flattened, takes a for x, b for y and c for z.
 */
#ifndef DISTIR_SUPPORT_IN_ORDER_H_
#define DISTIR_SUPPORT_IN_ORDER_H_

#include <cstddef>

namespace distir {

template <typename List>
class InOrder {
 public:
  /*! \brief The list must outlive this object. */
  explicit InOrder(const List& list) : list_(list) {}

  bool done() const { return next_ == list_.size(); }
  /*! \brief The item whose turn it is; it stays the next one. */
  const auto& Peek() const { return list_[next_]; }
  const auto& Take() { return list_[next_++]; }

 private:
  const List& list_;
  size_t next_ = 0;
};

}  // namespace distir
#endif  // DISTIR_SUPPORT_IN_ORDER_H_
