/*!
 * \file autoshard/digest.h
 * \brief Digests of numbers, by which equal parts of a problem are found.
 *
 * Worked example: the layers of a model have nodes and edges of equal costs; what is worked out for
 * one of them is kept by the digest of its costs, and taken for the others.
 */
#ifndef DISTIR_AUTOSHARD_DIGEST_H_
#define DISTIR_AUTOSHARD_DIGEST_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace distir::autoshard {

/*! \brief Two words that are computed independently, so that equal digests mean equal numbers. */
class Digest {
 public:
  void Add(int64_t value) {
    first_ = (first_ ^ static_cast<uint64_t>(value)) * 0x9E3779B97F4A7C15;
    first_ ^= first_ >> 32;
    second_ = (second_ + static_cast<uint64_t>(value)) * 0xD6E8FEB86659FD93;
    second_ ^= second_ >> 29;
  }
  void Add(const std::vector<int64_t>& values) {
    Add(static_cast<int64_t>(values.size()));
    for (int64_t each : values) Add(each);
  }
  bool operator==(const Digest& other) const {
    return first_ == other.first_ && second_ == other.second_;
  }
  struct Hash {
    size_t operator()(const Digest& digest) const { return digest.first_; }
  };

 private:
  uint64_t first_ = 0x243F6A8885A308D3;
  uint64_t second_ = 0x13198A2E03707344;
};

}  // namespace distir::autoshard

#endif  // DISTIR_AUTOSHARD_DIGEST_H_
