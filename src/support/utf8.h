/*!
 * \file support/utf8.h
 * \brief Makes cut or foreign text valid UTF-8 without control characters.
 *
 * Example: of "né" cut behind three bytes of four, ReadableText gives "n?" and not half a
 * character, which Python would refuse to decode.
 */
#ifndef DISTIR_SUPPORT_UTF8_H_
#define DISTIR_SUPPORT_UTF8_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace distir::support {

/*! \brief The text with a question mark for each byte that is no part of a character, and for what
 * a terminal would obey. */
inline std::string ReadableText(std::string_view text) {
  std::string result;
  const auto byte = [&text](size_t i) { return static_cast<unsigned char>(text[i]); };
  for (size_t i = 0; i < text.size();) {
    const unsigned char first = byte(i);
    const size_t size = first < 0x80                    ? 1
                        : first >= 0xC2 && first < 0xE0 ? 2
                        : first >= 0xE0 && first < 0xF0 ? 3
                        : first >= 0xF0 && first < 0xF5 ? 4
                                                        : 0;
    bool is_character = size != 0 && i + size <= text.size();
    for (size_t k = 1; is_character && k < size; ++k) is_character = (byte(i + k) & 0xC0) == 0x80;
    if (is_character && size > 1) {
      const unsigned char second =
          byte(i + 1);  // overlong forms, surrogates, beyond the last plane
      is_character = !(first == 0xE0 && second < 0xA0) && !(first == 0xED && second >= 0xA0) &&
                     !(first == 0xF0 && second < 0x90) && !(first == 0xF4 && second >= 0x90) &&
                     !(first == 0xC2 && second < 0xA0);  // C1: control characters
    } else if (is_character) {
      is_character = (first >= 0x20 && first != 0x7F) || first == '\n' || first == '\t';
    }
    if (is_character) {
      result.append(text.substr(i, size));
      i += size;
    } else {
      result += '?';
      ++i;
    }
  }
  return result;
}

}  // namespace distir::support
#endif  // DISTIR_SUPPORT_UTF8_H_
