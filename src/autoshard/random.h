/*!
 * \file autoshard/random.h
 * \brief Random numbers that a seed determines, the same on every platform.
 */
#ifndef DISTIR_AUTOSHARD_RANDOM_H_
#define DISTIR_AUTOSHARD_RANDOM_H_

#include <cstdint>

namespace distir::autoshard {

/*! \brief SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
 */
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t mixed = (state_ += 0x9e3779b97f4a7c15ULL);
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9ULL;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebULL;
    return mixed ^ (mixed >> 31);
  }
  /*! \brief A whole number below `bound`. */
  int32_t Below(int32_t bound) {
    return static_cast<int32_t>(((Next() >> 32) * static_cast<uint64_t>(bound)) >> 32);
  }
  /*! \brief A number in (0, 1]. */
  double Unit() { return static_cast<double>((Next() >> 11) + 1) * 0x1.0p-53; }

 private:
  uint64_t state_;
};

}  // namespace distir::autoshard

#endif  // DISTIR_AUTOSHARD_RANDOM_H_
