// Finds parameters that attributes name.
#include "lower/param_names.h"

#include <cctype>

namespace distir::lower {

namespace ffi = tvm::ffi;

namespace {

/*! \brief The name of a parameter after printing and parsing. */
std::string Printed(std::string name) {
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
}

}  // namespace

ffi::Array<ffi::Any> DonatedNames(const ir::Function& function) {
  return ir::GetAttr(function.attrs(), kDonatedAttr)
      .as<ffi::Array<ffi::Any>>()
      .value_or(ffi::Array<ffi::Any>());
}

ParamNames::ParamNames(const ir::Function& function) {
  int64_t at = 0;
  for (const ir::Var& param : function.params()) positions_.emplace(param.name(), at++);
}

std::string ParamNames::NameNow(const ffi::Any& stated) const {
  const auto name = stated.as<ffi::String>();
  if (!name.has_value()) return "";
  const std::string given = *name;
  if (positions_.count(given) > 0) return given;
  return positions_.count(Printed(given)) > 0 ? Printed(given) : "";
}

}  // namespace distir::lower
