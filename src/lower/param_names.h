/*!
 * \file lower/param_names.h
 * \brief Finds parameters that attributes name: printing and parsing a module changes names.
 */
#ifndef DISTIR_LOWER_PARAM_NAMES_H_
#define DISTIR_LOWER_PARAM_NAMES_H_

#include <cstdint>
#include <string>
#include <unordered_map>

#include "ir/node.h"

namespace distir::lower {

/*!
 * \brief The function attribute with the names of parameters that are donated: who calls the
 * function gives them up, and results may take their memory. `donate` writes it.
 */
constexpr const char* kDonatedAttr = "distir.donated";

/*! \brief Reads kDonatedAttr; empty without it. */
tvm::ffi::Array<tvm::ffi::Any> DonatedNames(const ir::Function& function);

class ParamNames {
 public:
  explicit ParamNames(const ir::Function& function);

  /*! \brief The name that a parameter has now; empty where there is none. */
  std::string NameNow(const tvm::ffi::Any& stated) const;
  /*! \brief Position of the parameter of this name. */
  int64_t PositionOf(const std::string& name) const { return positions_.at(name); }

 private:
  std::unordered_map<std::string, int64_t> positions_;
};

}  // namespace distir::lower
#endif  // DISTIR_LOWER_PARAM_NAMES_H_
