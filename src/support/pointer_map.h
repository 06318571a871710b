/*!
 * \file support/pointer_map.h
 * \brief Hash table by address, for facts of each variable: one array, no node per entry.
 *
 * Entries stay until the map goes. A reference to a value is valid until the next insertion. The
 * map does not keep what the addresses name alive.
 *
 *     PointerMap<int> uses;
 *     ++uses[var.get()];
 *     if (const int* count = uses.Find(var.get())) Use(*count);
 */
#ifndef DISTIR_SUPPORT_POINTER_MAP_H_
#define DISTIR_SUPPORT_POINTER_MAP_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace distir {

template <typename T>
class PointerMap {
 public:
  /*! \brief The value of an address, which must not be null; a new one where there is none. */
  T& operator[](const void* key) {
    if (2 * (size_ + 1) > entries_.size()) Grow();
    Entry& entry = entries_[PlaceOf(key)];
    if (entry.key == nullptr) {
      entry.key = key;
      ++size_;
    }
    return entry.value;
  }
  /*! \brief Null where there is none. */
  const T* Find(const void* key) const {
    if (size_ == 0 || key == nullptr) return nullptr;
    const Entry& entry = entries_[PlaceOf(key)];
    return entry.key == nullptr ? nullptr : &entry.value;
  }
  T* Find(const void* key) { return const_cast<T*>(std::as_const(*this).Find(key)); }

 private:
  struct Entry {
    const void* key = nullptr;
    T value = T();
  };

  /*! \brief Place of an address, or the free one for it: the first from that of its hash on. At
   * most half of all places are taken. */
  size_t PlaceOf(const void* key) const {
    constexpr uint64_t kGolden = 0x9E3779B97F4A7C15;  // 2^64 by the golden ratio
    size_t place = reinterpret_cast<uintptr_t>(key) * kGolden >> shift_;
    while (entries_[place].key != nullptr && entries_[place].key != key)
      place = (place + 1) & (entries_.size() - 1);
    return place;
  }

  void Grow() {
    std::vector<Entry> grown(entries_.empty() ? size_t{1} << kFirstBits : 2 * entries_.size());
    grown.swap(entries_);
    shift_ = grown.empty() ? 64 - kFirstBits : shift_ - 1;
    for (Entry& entry : grown) {
      if (entry.key != nullptr) entries_[PlaceOf(entry.key)] = std::move(entry);
    }
  }

  static constexpr int kFirstBits = 4;
  std::vector<Entry> entries_;  // a power of two
  size_t size_ = 0;
  int shift_ = 64;
};

}  // namespace distir
#endif  // DISTIR_SUPPORT_POINTER_MAP_H_
