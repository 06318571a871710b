/*!
 * \file abi/json_reader.h
 * \brief Reads the JSON arguments of the runtime's builtins; errors name the place in the text.
 *
 * Example: `JsonReader::Parse("groups", "[[0,1],[2,3]]").At(1).Integers()` is {2, 3}; `.At(2)` of
 * the same throws `groups[2]: the list has 2 entries`.
 */
#ifndef DISTIR_ABI_JSON_READER_H_
#define DISTIR_ABI_JSON_READER_H_

#include <tvm/ffi/any.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace distir::abi {

class JsonReader {
 public:
  /*! \brief Parses `text`. \throws ValueError that names `what`. */
  static JsonReader Parse(const std::string& what, const std::string& text);

  /*! \brief Number of entries of a list. */
  int64_t Size() const;
  /*! \brief An entry of a list. */
  JsonReader At(int64_t index) const;
  /*! \brief True if an object has a key. */
  bool Has(const std::string& key) const;
  /*! \brief The value of a key of an object. */
  JsonReader Key(const std::string& key) const;
  int64_t Integer() const;
  /*! \brief An integer from 0 to `most`. */
  int64_t Natural(int64_t most) const;
  std::vector<int64_t> Integers() const;
  std::string Text() const;

  /*! \brief Throws a ValueError: the place in the text, then `why`. */
  [[noreturn]] void Fail(const std::string& why) const;

 private:
  JsonReader(std::string path, tvm::ffi::Any value)
      : path_(std::move(path)), value_(std::move(value)) {}

  std::string path_;
  tvm::ffi::Any value_;
};

}  // namespace distir::abi

#endif  // DISTIR_ABI_JSON_READER_H_
