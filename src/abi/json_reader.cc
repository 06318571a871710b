// Parses the JSON arguments of runtime builtins. Errors name the place in the text.
#include "abi/json_reader.h"

#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/json.h>

namespace distir::abi {

namespace ffi = tvm::ffi;

namespace {

// Plans nest a few levels. The parser calls itself for each, so a text of nothing but brackets
// would use up the stack.
constexpr int kMostLevels = 64;

bool IsNestedTooDeep(const std::string& text) {
  int level = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++level > kMostLevels) return true;
    } else if (c == ']' || c == '}') {
      --level;
    }
  }
  return false;
}

}  // namespace

JsonReader JsonReader::Parse(const std::string& what, const std::string& text) {
  if (IsNestedTooDeep(text)) {
    TVM_FFI_THROW(ValueError) << what << ": is nested more than " << kMostLevels << " levels deep";
  }
  ffi::String error;
  ffi::Any value = ffi::json::Parse(text, &error);
  if (!error.empty()) {
    TVM_FFI_THROW(ValueError) << what << ": not JSON: " << error.c_str();
  }
  return JsonReader(what, std::move(value));
}

void JsonReader::Fail(const std::string& why) const {
  TVM_FFI_THROW(ValueError) << path_ << ": " << why;
  TVM_FFI_UNREACHABLE();
}

int64_t JsonReader::Size() const {
  auto list = value_.as<ffi::json::Array>();
  if (!list.has_value()) Fail("is not a list");
  return static_cast<int64_t>(list->size());
}

JsonReader JsonReader::At(int64_t index) const {
  auto list = value_.as<ffi::json::Array>();
  if (!list.has_value()) Fail("is not a list");
  JsonReader entry(path_ + "[" + std::to_string(index) + "]", ffi::Any());
  if (index < 0 || index >= static_cast<int64_t>(list->size())) {
    entry.Fail("the list has " + std::to_string(list->size()) + " entries");
  }
  entry.value_ = (*list)[index];
  return entry;
}

bool JsonReader::Has(const std::string& key) const {
  auto object = value_.as<ffi::json::Object>();
  if (!object.has_value()) Fail("is not an object");
  return object->count(ffi::String(key)) != 0;
}

JsonReader JsonReader::Key(const std::string& key) const {
  if (!Has(key)) Fail("has no key \"" + key + "\"");
  return JsonReader(path_ + "." + key, value_.as<ffi::json::Object>()->at(ffi::String(key)));
}

int64_t JsonReader::Natural(int64_t most) const {
  const int64_t value = Integer();
  if (value < 0 || value > most) Fail("is not a number from 0 to " + std::to_string(most));
  return value;
}

int64_t JsonReader::Integer() const {
  auto integer = value_.as<int64_t>();
  if (!integer.has_value()) Fail("is not an integer");
  return *integer;
}

std::vector<int64_t> JsonReader::Integers() const {
  std::vector<int64_t> values;
  for (int64_t i = 0, n = Size(); i < n; ++i) values.push_back(At(i).Integer());
  return values;
}

std::string JsonReader::Text() const {
  auto text = value_.as<ffi::String>();
  if (!text.has_value()) Fail("is not text");
  return *text;
}

}  // namespace distir::abi
