/*!
 * \file tests/pipelines/target/block_on_host/warp.h
 * \brief Instructions of a warp that flash_attention.cuh uses, on the host: its threads exchange
 * their registers, as the PTX manual says which lane has what.
 */
#ifndef DISTIR_TESTS_BLOCK_ON_HOST_WARP_H_
#define DISTIR_TESTS_BLOCK_ON_HOST_WARP_H_

#include <cstring>

#define DISTIR_BLOCK_ON_HOST

inline float __uint_as_float(unsigned bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

namespace distir {

struct Warp {
  void Wait() { WaitFor(barrier); }

  Barrier barrier{32};
  const unsigned char* rows[32];
  unsigned a[32][4], b[32][2];
  float values[32];
};

inline Warp warps[32];

inline Warp& ThisWarp() { return warps[threadIdx.x / 32]; }
inline int ThisLane() { return threadIdx.x % 32; }

// Copies are late: those of a thread arrive when it waits for them.
struct Copy {
  void* to;
  unsigned char bytes[16];
};
inline std::vector<Copy> copies_of_threads[1024];

inline void CopyAsync(void* to, const void* from, bool is_read) {
  Copy copy{to, {}};
  if (is_read) std::memcpy(copy.bytes, from, 16);
  copies_of_threads[threadIdx.x].push_back(copy);
}

inline void WaitForCopies() {
  std::vector<Copy>& copies = copies_of_threads[threadIdx.x];
  for (const Copy& copy : copies) std::memcpy(copy.to, copy.bytes, 16);
  copies.clear();
}

inline void LoadMatrices(unsigned (&to)[4], const void* row) {
  Warp& warp = ThisWarp();
  warp.rows[ThisLane()] = static_cast<const unsigned char*>(row);
  warp.Wait();
  for (int i = 0; i < 4; ++i)
    std::memcpy(&to[i], warp.rows[8 * i + ThisLane() / 4] + 4 * (ThisLane() % 4), 4);
  warp.Wait();
}

inline void LoadTransposed(unsigned (&to)[4], const void* row) {
  Warp& warp = ThisWarp();
  warp.rows[ThisLane()] = static_cast<const unsigned char*>(row);
  warp.Wait();
  for (int i = 0; i < 4; ++i) {
    uint16_t pair[2];
    for (int j = 0; j < 2; ++j)
      std::memcpy(&pair[j], warp.rows[8 * i + 2 * (ThisLane() % 4) + j] + 2 * (ThisLane() / 4), 2);
    std::memcpy(&to[i], pair, 4);
  }
  warp.Wait();
}

template <typename T>
struct Small {
  static float Half(unsigned bits, int which) {
    T pair[2];
    std::memcpy(pair, &bits, 4);
    return static_cast<float>(pair[which]);
  }

  static void MultiplyAdd(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    Warp& warp = ThisWarp();
    std::memcpy(warp.a[ThisLane()], a, sizeof(a));
    warp.b[ThisLane()][0] = b0;
    warp.b[ThisLane()][1] = b1;
    warp.Wait();
    for (int i = 0; i < 4; ++i) {
      const int row = ThisLane() / 4 + i / 2 * 8, column = ThisLane() % 4 * 2 + i % 2;
      for (int k = 0; k < 16; ++k) {
        const float left = Half(warp.a[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2], k % 2);
        sum[i] += left * Half(warp.b[column * 4 + k % 8 / 2][k / 8], k % 2);
      }
    }
    warp.Wait();
  }
};

inline float OfLane(float value, int bits) {
  Warp& warp = ThisWarp();
  warp.values[ThisLane()] = value;
  warp.Wait();
  const float other = warp.values[ThisLane() ^ bits];
  warp.Wait();
  return other;
}

}  // namespace distir

#endif  // DISTIR_TESTS_BLOCK_ON_HOST_WARP_H_
