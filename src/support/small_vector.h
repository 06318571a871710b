/*!
 * \file support/small_vector.h
 * \brief Vector that stores its first elements inline, for the many lists of one or two elements:
 * axes of a dimension, factors of a dimension, slots of a value.
 *
 * Members behave as those of std::vector. Elements are plain data, moved as bytes; a moved-from
 * vector is empty.
 *
 *     SmallVector<int, 2> slots = {3, 5};  // no allocation
 *     slots.push_back(8);                  // all three move to the heap
 */
#ifndef DISTIR_SUPPORT_SMALL_VECTOR_H_
#define DISTIR_SUPPORT_SMALL_VECTOR_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <type_traits>

namespace distir {

template <typename T, uint32_t kInline>
class SmallVector {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);
  static_assert(kInline > 0);

 public:
  using value_type = T;
  using iterator = T*;
  using const_iterator = const T*;
  using reference = T&;
  using const_reference = const T&;
  using size_type = size_t;
  using difference_type = std::ptrdiff_t;

  SmallVector() {}  // so that a constant may be empty
  explicit SmallVector(size_t size, const T& value = T()) { resize(size, value); }
  SmallVector(std::initializer_list<T> values) { insert(end(), values.begin(), values.end()); }
  template <typename It, typename = typename std::iterator_traits<It>::iterator_category>
  SmallVector(It first, It last) {
    insert(end(), first, last);
  }
  SmallVector(const SmallVector& other) { Assign(other); }
  SmallVector(SmallVector&& other) noexcept { Take(&other); }
  SmallVector& operator=(const SmallVector& other) {
    if (this != &other) {
      clear();
      Assign(other);
    }
    return *this;
  }
  SmallVector& operator=(SmallVector&& other) noexcept {
    if (this != &other) {
      Free();
      Take(&other);
    }
    return *this;
  }
  ~SmallVector() { Free(); }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* data() { return capacity_ == kInline ? reinterpret_cast<T*>(inline_) : heap_; }
  const T* data() const {
    return capacity_ == kInline ? reinterpret_cast<const T*>(inline_) : heap_;
  }
  T* begin() { return data(); }
  T* end() { return data() + size_; }
  const T* begin() const { return data(); }
  const T* end() const { return data() + size_; }
  std::reverse_iterator<const T*> rbegin() const { return std::reverse_iterator<const T*>(end()); }
  std::reverse_iterator<const T*> rend() const { return std::reverse_iterator<const T*>(begin()); }
  T& operator[](size_t i) { return data()[i]; }
  const T& operator[](size_t i) const { return data()[i]; }
  T& front() { return data()[0]; }
  const T& front() const { return data()[0]; }
  T& back() { return data()[size_ - 1]; }
  const T& back() const { return data()[size_ - 1]; }

  void clear() { size_ = 0; }
  void pop_back() { --size_; }
  void push_back(T value) {
    if (size_ == capacity_) reserve(2 * size_);
    data()[size_++] = value;
  }
  void resize(size_t size, const T& value = T()) {
    const T fill = value;  // which may be an element
    reserve(size);
    for (size_t i = size_; i < size; ++i) data()[i] = fill;
    size_ = static_cast<uint32_t>(size);
  }
  void reserve(size_t capacity) {
    if (capacity <= capacity_) return;
    T* grown = static_cast<T*>(::operator new(capacity * sizeof(T)));
    std::memcpy(static_cast<void*>(grown), data(), size_ * sizeof(T));
    Free();
    heap_ = grown;
    capacity_ = static_cast<uint32_t>(capacity);
  }
  /*! \brief Inserts a range, which must not lie in this vector. */
  template <typename It, typename = typename std::iterator_traits<It>::iterator_category>
  iterator insert(const_iterator position, It first, It last) {
    const size_t at = position - data();
    const size_t count = std::distance(first, last);
    if (size_ + count > capacity_) reserve(std::max<size_t>(size_ + count, 2 * size_));
    T* begin = data() + at;
    std::memmove(static_cast<void*>(begin + count), begin, (size_ - at) * sizeof(T));
    std::copy(first, last, begin);
    size_ += static_cast<uint32_t>(count);
    return begin;
  }
  iterator insert(const_iterator position, T value) { return insert(position, &value, &value + 1); }
  iterator erase(const_iterator first, const_iterator last) {
    T* begin = data() + (first - data());
    std::memmove(static_cast<void*>(begin), last, (end() - last) * sizeof(T));
    size_ -= static_cast<uint32_t>(last - first);
    return begin;
  }
  iterator erase(const_iterator position) { return erase(position, position + 1); }

  friend bool operator==(const SmallVector& a, const SmallVector& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  }
  friend bool operator!=(const SmallVector& a, const SmallVector& b) { return !(a == b); }
  friend bool operator<(const SmallVector& a, const SmallVector& b) {
    return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
  }

 private:
  void Assign(const SmallVector& other) {
    reserve(other.size_);
    std::memcpy(static_cast<void*>(data()), other.data(), other.size_ * sizeof(T));
    size_ = other.size_;
  }
  void Take(SmallVector* other) {
    size_ = other->size_;
    capacity_ = other->capacity_;
    if (capacity_ == kInline) {
      std::memcpy(static_cast<void*>(inline_), other->inline_, size_ * sizeof(T));
    } else {
      heap_ = other->heap_;
    }
    other->size_ = 0;
    other->capacity_ = kInline;
  }
  void Free() {
    if (capacity_ != kInline) ::operator delete(heap_);
    capacity_ = kInline;
  }

  uint32_t size_ = 0;
  uint32_t capacity_ = kInline;  // kInline: the elements are in inline_
  union {
    T* heap_;
    alignas(T) unsigned char inline_[kInline * sizeof(T)];
  };
};

}  // namespace distir
#endif  // DISTIR_SUPPORT_SMALL_VECTOR_H_
