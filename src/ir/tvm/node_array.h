/*!
 * \file ir/tvm/node_array.h
 * \brief Array of TVM's objects that is read without reference counting.
 *
 * `ffi::Array` gives each element as a handle of its own, which counts a reference up and down
 * again with locked instructions, for every argument of every call that a loop looks at. A
 * NodeArray gives the handle that lies in the array:
 *
 *     for (const Expr& argument : call.args()) Visit(argument);
 *
 * A reference lives as long as the array does: copy it where the array may go before.
 */
#ifndef DISTIR_IR_TVM_NODE_ARRAY_H_
#define DISTIR_IR_TVM_NODE_ARRAY_H_

#include <tvm/ffi/any.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/error.h>

#include <cstddef>
#include <cstdint>
#include <iterator>

namespace distir::ir {

namespace ffi = tvm::ffi;

/*! \brief The elements are objects: `T` is derived from ffi::ObjectRef and has no other members. */
template <typename T>
class NodeArray : public ffi::Array<T> {
  static_assert(sizeof(T) == sizeof(TVMFFIObject*), "handles of objects");

 public:
  using ffi::Array<T>::Array;
  NodeArray(const ffi::Array<T>& other) : ffi::Array<T>(other) {}

  class Iterator {
   public:
    using iterator_category = std::random_access_iterator_tag;
    using value_type = T;
    using difference_type = std::ptrdiff_t;
    using pointer = const T*;
    using reference = const T&;

    explicit Iterator(const ffi::Any* at) : at_(at) {}
    const T& operator*() const { return HandleIn(*at_); }
    const T* operator->() const { return &HandleIn(*at_); }
    const T& operator[](difference_type i) const { return HandleIn(at_[i]); }
    Iterator& operator++() { return ++at_, *this; }
    Iterator operator++(int) { return Iterator(at_++); }
    Iterator& operator--() { return --at_, *this; }
    Iterator& operator+=(difference_type i) { return at_ += i, *this; }
    Iterator operator+(difference_type i) const { return Iterator(at_ + i); }
    Iterator operator-(difference_type i) const { return Iterator(at_ - i); }
    difference_type operator-(const Iterator& other) const { return at_ - other.at_; }
    bool operator==(const Iterator& other) const { return at_ == other.at_; }
    bool operator!=(const Iterator& other) const { return at_ != other.at_; }

   private:
    const ffi::Any* at_;
  };

  using iterator = Iterator;
  using const_iterator = Iterator;

  Iterator begin() const { return Iterator(this->GetArrayObj()->begin()); }
  Iterator end() const { return Iterator(this->GetArrayObj()->end()); }
  const T& operator[](int64_t i) const { return HandleIn(this->GetArrayObj()->at(i)); }
  const T& front() const { return (*this)[0]; }
  const T& back() const { return (*this)[static_cast<int64_t>(this->size()) - 1]; }

 private:
  // An Any with an object holds its address, as a handle does.
  static const T& HandleIn(const ffi::Any& any) {
    const auto* stored = reinterpret_cast<const TVMFFIAny*>(&any);
    return *reinterpret_cast<const T*>(&stored->v_obj);
  }
};

}  // namespace distir::ir

namespace tvm {
namespace ffi {

template <typename T>
inline constexpr bool use_default_type_traits_v<distir::ir::NodeArray<T>> = false;

template <typename T>
struct TypeTraits<distir::ir::NodeArray<T>> : public TypeTraits<Array<T>> {};

}  // namespace ffi
}  // namespace tvm
#endif  // DISTIR_IR_TVM_NODE_ARRAY_H_
