/*!
 * \file abi/json_writer.h
 * \brief Writes the JSON that the compiled program carries for the runtime.
 *
 * Example: JsonObject({{"dim", "1"}, {"sizes", JsonIntegers(sizes)}}) is {"dim":1,"sizes":[2,4]}.
 */
#ifndef DISTIR_ABI_JSON_WRITER_H_
#define DISTIR_ABI_JSON_WRITER_H_

#include <string>
#include <utility>
#include <vector>

namespace distir::abi {

std::string JsonString(const std::string& text);
/*! \brief Joins members that are JSON already. */
std::string JsonArray(const std::vector<std::string>& items);
std::string JsonObject(const std::vector<std::pair<std::string, std::string>>& members);
template <typename Integers>
std::string JsonIntegers(const Integers& values) {
  std::vector<std::string> items;
  for (auto value : values) items.push_back(std::to_string(value));
  return JsonArray(items);
}

}  // namespace distir::abi
#endif  // DISTIR_ABI_JSON_WRITER_H_
