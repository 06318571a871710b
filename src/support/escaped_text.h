/*!
 * \file support/escaped_text.h
 * \brief Escapes foreign names for comments of Python, messages and signatures.
 *
 * Example: EscapedText("w\n\x1b[2J") is "w\\n\\x1b[2J": what a terminal would obey and what begins
 * a line is spelled as Python spells it in a string (`text/printable.py` does the same).
 * MessageText is the same of a message, and of each word leaves what a reader needs.
 */
#ifndef DISTIR_SUPPORT_ESCAPED_TEXT_H_
#define DISTIR_SUPPORT_ESCAPED_TEXT_H_

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace distir::support {

/*! \brief True if a character is a control character, separates lines, changes the direction or the
 * shape of text, is a mark or tag that nobody sees, or is none. */
inline bool IsControl(uint32_t code) {
  return code < 0x20 || (code >= 0x7F && code < 0xA0) || code == 0xAD || code == 0x61C ||
         code == 0x180E || code == 0x200B || code == 0x200E || code == 0x200F ||
         (code >= 0x2028 && code <= 0x202E) || (code >= 0x2060 && code <= 0x206F) ||
         code == 0xFEFF || (code >= 0xFFF9 && code <= 0xFFFB) || code == 0xFFFE || code == 0xFFFF ||
         (code >= 0xE0000 && code <= 0xE007F);
}

/*! \brief The text on one line; of UTF-8, whose other characters stay. */
inline std::string EscapedText(std::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size();) {
    const auto first = static_cast<unsigned char>(text[i]);
    const size_t size = first < 0xC0 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
    uint32_t code = size == 1 ? first : first & (0xFF >> (size + 1));
    for (size_t k = 1; k < size && i + k < text.size(); ++k)
      code = code << 6 | (static_cast<unsigned char>(text[i + k]) & 0x3F);
    if (first >= 0x80 && size == 1) code = 0x20;  // no character: Python will say so
    char escaped[12];
    if (code == '\n' || code == '\t' || code == '\r') {
      std::snprintf(escaped, sizeof(escaped), "\\%c",
                    code == '\n'   ? 'n'
                    : code == '\t' ? 't'
                                   : 'r');
      result += escaped;
    } else if (IsControl(code)) {
      const char* form = code < 0x100 ? "\\x%02x" : code < 0x10000 ? "\\u%04x" : "\\U%08x";
      std::snprintf(escaped, sizeof(escaped), form, code);
      result += escaped;
    } else {
      result.append(text.substr(i, size));
    }
    i += size;
  }
  return result;
}

/*! \brief A message on one line, in which words have at most some 400 bytes: of longer ones the
 * begin and the end are left, with how much is left out between them. */
inline std::string MessageText(std::string_view text) {
  constexpr size_t kLongest = 400;
  auto continues = [&text](size_t i) {  // within a character of UTF-8
    return i < text.size() && (static_cast<unsigned char>(text[i]) & 0xC0) == 0x80;
  };
  std::string cut;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size() - 1) + 1;  // behind the space
    size_t left = begin + kLongest / 2, right = end - std::min(end, kLongest / 2);
    while (continues(left)) ++left;
    while (continues(right)) ++right;
    if (end - begin <= kLongest || left >= right) {
      cut.append(text.substr(begin, end - begin));
    } else {
      cut.append(text.substr(begin, left - begin));
      cut += "...(" + std::to_string(right - left) + " more)...";
      cut.append(text.substr(right, end - right));
    }
    begin = end;
  }
  return EscapedText(cut);
}

}  // namespace distir::support
#endif  // DISTIR_SUPPORT_ESCAPED_TEXT_H_
