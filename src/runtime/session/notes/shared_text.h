/*!
 * \file runtime/session/notes/shared_text.h
 * \brief Short text that one thread writes and any thread or process may read at any time.
 *
 * Says what a worker is doing, for messages about workers that fail, stall or are gone. Writing
 * never waits; a reader tries again while the writer is at work. Longer texts are cut off. All
 * bits zero is an empty text.
 *
 * Example: `text.Set("matmul")` by the worker; `text.Get()` by whoever reports its failure.
 */
#ifndef DISTIR_RUNTIME_SESSION_NOTES_SHARED_TEXT_H_
#define DISTIR_RUNTIME_SESSION_NOTES_SHARED_TEXT_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "support/utf8.h"

namespace distir::runtime {

class SharedText {
 public:
  void Set(std::string_view text) noexcept {
    const size_t size = std::min(text.size(), kBytes);
    version_.fetch_add(1, std::memory_order_acq_rel);  // odd: being written
    size_.store(static_cast<uint32_t>(size), std::memory_order_release);
    for (size_t i = 0; i * 8 < size; ++i) {
      uint64_t word = 0;
      std::memcpy(&word, text.data() + i * 8, std::min<size_t>(8, size - i * 8));
      words_[i].store(word, std::memory_order_release);
    }
    version_.fetch_add(1, std::memory_order_release);
  }

  std::string Get() const {
    char bytes[kBytes];
    size_t size = 0;
    // A writer that was stopped half way leaves an odd version for ever.
    for (int attempt = 0; attempt < 1000; ++attempt) {
      const uint32_t version = version_.load(std::memory_order_acquire);
      size = std::min<size_t>(size_.load(std::memory_order_acquire), kBytes);
      for (size_t i = 0; i * 8 < size; ++i) {
        const uint64_t word = words_[i].load(std::memory_order_acquire);
        std::memcpy(bytes + i * 8, &word, 8);
      }
      if (version % 2 == 0 && version_.load(std::memory_order_acquire) == version) break;
    }
    return support::ReadableText(std::string_view(bytes, size));  // it may be cut, or anybody's
  }

 private:
  static constexpr size_t kBytes = 256;

  std::atomic<uint32_t> version_{0};
  std::atomic<uint32_t> size_{0};
  std::atomic<uint64_t> words_[kBytes / 8] = {};
};

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_SESSION_NOTES_SHARED_TEXT_H_
