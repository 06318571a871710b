/*!
 * \file mesh/axis_list.cc
 * \brief Lists of axis references: merging, prefixes, splitting.
 */
#include <tvm/ffi/error.h>

#include <numeric>
#include <tuple>

#include "mesh/sharding.h"

namespace distir::mesh {

namespace {

/*!
 * \brief Reads a list as if it were canonical, without building the canonical list: `head` is the
 * next maximal reference. Heads of two cursors can only agree in their front parts, since what
 * follows a head never continues it.
 */
class Cursor {
 public:
  explicit Cursor(const AxisList& axes) : axes_(axes) { Load(); }

  bool done() const { return head_.size == 1; }
  const AxisRef& head() const { return head_; }

  /*! \brief Takes the major `size` of the head; `size` divides its size. */
  void Take(int64_t size) {
    head_.pre_size *= size;
    head_.size /= size;
    if (head_.size == 1) Load();
  }

  /*! \brief Everything not yet taken. */
  AxisList Rest() {
    AxisList rest;
    rest.reserve(axes_.size() - next_ + 1);
    for (; !done(); Load()) rest.push_back(head_);
    return rest;
  }

 private:
  void Load() {
    head_ = AxisRef{-1, 1, 1};
    for (; next_ < axes_.size(); ++next_) {
      const AxisRef& ref = axes_[next_];
      if (ref.size == 1) continue;
      if (head_.size == 1) {
        head_ = ref;
      } else if (ref.axis == head_.axis && ref.pre_size == head_.pre_size * head_.size) {
        head_.size *= ref.size;
      } else {
        return;
      }
    }
  }

  const AxisList& axes_;
  size_t next_ = 0;
  AxisRef head_{-1, 1, 1};
};

/*! \brief Size of what two heads have in common; 1 if nothing. */
int64_t CommonSize(const Cursor& a, const Cursor& b) {
  if (a.done() || b.done()) return 1;
  if (a.head().axis != b.head().axis || a.head().pre_size != b.head().pre_size) return 1;
  return std::gcd(a.head().size, b.head().size);
}

/*! \brief Moves both cursors behind `prefix` if it is one. */
bool TakePrefix(Cursor* prefix, Cursor* axes) {
  while (!prefix->done()) {
    const int64_t size = prefix->head().size;
    if (CommonSize(*prefix, *axes) != size) return false;
    prefix->Take(size);
    axes->Take(size);
  }
  return true;
}

AxisRef Front(const AxisRef& ref, int64_t size) { return AxisRef{ref.axis, ref.pre_size, size}; }

}  // namespace

bool AxisRef::operator==(const AxisRef& other) const {
  return axis == other.axis && pre_size == other.pre_size && size == other.size;
}

bool AxisRef::operator<(const AxisRef& other) const {
  return std::tie(axis, pre_size, size) < std::tie(other.axis, other.pre_size, other.size);
}

int64_t NumShards(const AxisList& axes) {
  int64_t product = 1;
  for (const AxisRef& ref : axes) product *= ref.size;
  return product;
}

bool Overlaps(const AxisRef& a, const AxisRef& b) {
  if (a.axis != b.axis || a.size == 1 || b.size == 1) return false;
  return b.pre_size % (a.pre_size * a.size) != 0 && a.pre_size % (b.pre_size * b.size) != 0;
}

bool Overlaps(const AxisList& a, const AxisList& b) {
  for (const AxisRef& x : a) {
    for (const AxisRef& y : b) {
      if (Overlaps(x, y)) return true;
    }
  }
  return false;
}

AxisList Canonical(const AxisList& axes) { return Cursor(axes).Rest(); }

AxisList CommonPrefix(const AxisList& a, const AxisList& b) {
  AxisList prefix;
  Cursor left(a), right(b);
  for (int64_t size = CommonSize(left, right); size > 1; size = CommonSize(left, right)) {
    prefix.push_back(Front(left.head(), size));
    left.Take(size);
    right.Take(size);
  }
  return prefix;
}

bool IsPrefix(const AxisList& prefix, const AxisList& axes) {
  Cursor front(prefix), all(axes);
  return TakePrefix(&front, &all);
}

AxisList RemovePrefix(const AxisList& axes, const AxisList& prefix) {
  Cursor front(prefix), all(axes);
  if (!TakePrefix(&front, &all)) {
    TVM_FFI_THROW(ValueError) << ToString(prefix, {}) << " is not a prefix of the axes "
                              << ToString(axes, {});
  }
  return all.Rest();
}

AxisList PrefixDisjointFrom(const AxisList& axes, const AxisList& taken) {
  AxisList prefix;
  for (Cursor cursor(axes); !cursor.done();) {
    const AxisRef head = cursor.head();
    int64_t free = head.size;
    for (const AxisRef& other : taken) {
      if (!Overlaps(head, other)) continue;
      // A front part is disjoint from `other` if it ends at a divisor of where `other` begins.
      free =
          other.pre_size % head.pre_size == 0 ? std::gcd(free, other.pre_size / head.pre_size) : 1;
    }
    if (free > 1) prefix.push_back(Front(head, free));
    if (free != head.size) break;
    cursor.Take(free);
  }
  return prefix;
}

AxisList Complement(const Mesh& mesh, const AxisList& used) {
  AxisList rest;
  for (int axis = 0; axis < mesh.ndim(); ++axis) {
    // `begin` moves from the major to the minor end of the axis, over free and used parts.
    for (int64_t begin = 1; begin < mesh.shape[axis];) {
      int64_t free = mesh.shape[axis] / begin;
      AxisRef next{axis, mesh.shape[axis], 1};  // the first used part not yet passed
      for (const AxisRef& ref : used) {
        if (ref.axis != axis || ref.size == 1 || begin % (ref.pre_size * ref.size) == 0) continue;
        free = ref.pre_size % begin == 0 ? std::gcd(free, ref.pre_size / begin) : 1;
        if (ref < next) next = ref;
      }
      if (free > 1) rest.push_back(AxisRef{axis, begin, free});
      begin = free > 1 ? begin * free : std::lcm(begin, next.pre_size * next.size);
    }
  }
  return rest;
}

}  // namespace distir::mesh
