/*!
 * \file ir/leaves.h
 * \brief Walks over the leaves of types, with tuples flattened.
 *
 * Worked example: the leaves of Tuple(Tensor((4,)), Tuple(Shape([2]), Object)) are Tensor((4,)),
 * Shape([2]) and Object, in this order.
 */
#ifndef DISTIR_IR_LEAVES_H_
#define DISTIR_IR_LEAVES_H_

#include "ir/build.h"
#include "ir/node.h"

namespace distir::ir {

/*! \brief True if one of the leaves fulfils the predicate; leaves behind it are not looked at. */
template <typename Predicate>
bool AnyLeaf(const Type& type, const Predicate& predicate) {
  auto tuple = TupleType::Cast(type);
  if (!tuple.defined()) return predicate(type);
  for (const Type& field : tuple.fields()) {
    if (AnyLeaf(field, predicate)) return true;
  }
  return false;
}

/*! \brief Calls `visit` with every leaf, in order. */
template <typename Visit>
void ForEachLeaf(const Type& type, const Visit& visit) {
  AnyLeaf(type, [&visit](const Type& leaf) {
    visit(leaf);
    return false;
  });
}

/*! \brief The type with `map` applied to every leaf, in order; the same object where nothing
 * changes.
 */
template <typename Map>
Type MapLeaves(const Type& type, const Map& map) {
  auto tuple = TupleType::Cast(type);
  if (!tuple.defined()) return map(type);
  ffi::Array<Type> fields;
  bool changed = false;
  for (const Type& field : tuple.fields()) {
    fields.push_back(MapLeaves(field, map));
    changed = changed || !fields.back().same_as(field);
  }
  return changed ? Type(MakeTupleType(fields)) : type;
}

}  // namespace distir::ir
#endif  // DISTIR_IR_LEAVES_H_
