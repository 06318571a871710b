// Test hooks: folds lists of similar names into short entries, and back (src/support/name_set.h);
// writes sizes as signatures have them (src/ir/size_text.h).
#include "arguments.h"
#include "ir/size_text.h"
#include "support/name_set.h"

namespace distir::test {

namespace {

ffi::Array<ffi::String> FromNames(const std::vector<std::string>& names) {
  ffi::Array<ffi::String> array;
  for (const std::string& name : names) array.push_back(name);
  return array;
}

std::vector<std::string> ToNames(const ffi::Array<ffi::String>& array) {
  std::vector<std::string> names;
  for (const ffi::String& name : array) names.push_back(name);
  return names;
}

const bool kNames = Register({
    {"FoldNames",
     [](Arguments& in) -> Any {
       const std::vector<std::string> names = ToNames(in.Next<ffi::Array<ffi::String>>());
       ffi::Array<Any> folded;
       for (const support::FoldedNames& entry : support::FoldNames(names))
         folded.push_back(FromNames(entry));
       return folded;
     }},
    {"UnfoldNames",
     [](Arguments& in) -> Any {
       std::vector<std::string> names;
       for (const ffi::Array<ffi::String>& entry : in.Next<ffi::Array<ffi::Array<ffi::String>>>())
         support::UnfoldNames(ToNames(entry), &names);
       return FromNames(names);
     }},
    {"SizeText",
     [](Arguments& in) -> Any { return ffi::String(ir::SizeText(in.Next<ir::Expr>())); }},
});

}  // namespace

}  // namespace distir::test
