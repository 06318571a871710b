/*!
 * \file runtime/kernels/streaming_store.h
 * \brief Non-temporal stores, for results that are too large for the caches.
 *
 * An ordinary store reads its cache line first; these write whole lines, which halves the traffic
 * of a copy. Other threads may read what was stored once FinishStreaming was called.
 */
#ifndef DISTIR_RUNTIME_KERNELS_STREAMING_STORE_H_
#define DISTIR_RUNTIME_KERNELS_STREAMING_STORE_H_

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace distir::runtime {

/*! \brief Least size of a result that is streamed: it fills the caches of a core. */
constexpr int64_t kStreamedBytes = int64_t{4} << 20;

/*! \brief Addresses that are streamed to are multiples of this; one store. */
constexpr int64_t kStreamAlignment = 16;

inline bool IsStreamAligned(const void* target) {
  return reinterpret_cast<uintptr_t>(target) % kStreamAlignment == 0;
}

/*! \brief Stores a multiple of kStreamAlignment bytes at an aligned address. */
inline void StreamBytes(const char* source, int64_t num_bytes, char* target) {
#if defined(__SSE2__)
  for (int64_t i = 0; i < num_bytes; i += kStreamAlignment) {
    const __m128i value = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + i));
    _mm_stream_si128(reinterpret_cast<__m128i*>(target + i), value);
  }
#else
  std::memcpy(target, source, num_bytes);
#endif
}

inline void FinishStreaming() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

/*! \brief memcpy that streams, at any addresses. */
inline void StreamCopy(const char* source, int64_t num_bytes, char* target) {
  const int64_t misaligned = reinterpret_cast<uintptr_t>(target) % kStreamAlignment;
  const int64_t head = std::min(num_bytes, (kStreamAlignment - misaligned) % kStreamAlignment);
  std::memcpy(target, source, head);
  const int64_t body = (num_bytes - head) / kStreamAlignment * kStreamAlignment;
  StreamBytes(source + head, body, target + head);
  std::memcpy(target + head + body, source + head + body, num_bytes - head - body);
}

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_KERNELS_STREAMING_STORE_H_
