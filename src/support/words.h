/*!
 * \file support/words.h
 * \brief Hash-table keys that are lists of numbers.
 *
 * Two keys are equal exactly if all of their words are, so a key must have lengths and kinds among
 * its words where lists follow each other. An object stands in it by its address: whoever keeps the
 * key keeps the object alive.
 *
 *     std::unordered_map<Words, int, HashWords> known;
 *     known[{Address(&rule), 3, Bits(0.5)}] = 7;
 */
#ifndef DISTIR_SUPPORT_WORDS_H_
#define DISTIR_SUPPORT_WORDS_H_

#include <cstdint>
#include <cstring>
#include <vector>

namespace distir {

using Words = std::vector<int64_t>;

inline int64_t Address(const void* object) {
  return static_cast<int64_t>(reinterpret_cast<intptr_t>(object));
}

/*! \brief The bytes of a value of at most eight. */
template <typename T>
int64_t Bits(const T& value) {
  static_assert(sizeof(T) <= sizeof(int64_t));
  int64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}

struct HashWords {
  size_t operator()(const Words& words) const {
    uint64_t hash = words.size();
    for (int64_t word : words) {
      hash = (hash ^ static_cast<uint64_t>(word)) * 0x9E3779B97F4A7C15;  // 2^64 by the golden ratio
      hash ^= hash >> 32;
    }
    return hash;
  }
};

}  // namespace distir
#endif  // DISTIR_SUPPORT_WORDS_H_
