// Writes strings, lists and objects as the JSON that compiled programs carry.
#include "abi/json_writer.h"

#include <cstdio>

namespace distir::abi {

std::string JsonString(const std::string& text) {
  std::string quoted = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof(escaped), "\\u%04x", c);
      quoted += escaped;
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

std::string JsonArray(const std::vector<std::string>& items) {
  std::string text = "[";
  for (size_t i = 0; i < items.size(); ++i) text += (i == 0 ? "" : ",") + items[i];
  return text + "]";
}

std::string JsonObject(const std::vector<std::pair<std::string, std::string>>& members) {
  std::string text = "{";
  for (size_t i = 0; i < members.size(); ++i) {
    text += (i == 0 ? "" : ",") + JsonString(members[i].first) + ":" + members[i].second;
  }
  return text + "}";
}

}  // namespace distir::abi
