/*!
 * \file ir/module/names.h
 * \brief Makes new names for variables of a function and for functions of a module.
 *
 * TVM's printer numbers variables of equal names, so names that passes leave equal are others in
 * the text, and others again after the next pass. With names that are different from the start, a
 * variable is called the same in every module, in its text, and when that is parsed.
 *
 * Worked example: a function with x and lv. Fresh("x") is x_1, Fresh("x_1") is x_2, Fresh("y") is
 * y.
 */
#ifndef DISTIR_IR_MODULE_NAMES_H_
#define DISTIR_IR_MODULE_NAMES_H_

#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "ir/node.h"

namespace distir::ir {

/*! \brief A name as a variable has it when its function is printed and parsed: layers_0_up for
 * layers.0.up. */
std::string PrintedName(std::string name);

class Names {
 public:
  Names() = default;
  /*! \brief Names of a function's parameters and bindings. They are read at the first request,
   * since many passes make none. */
  explicit Names(Function function) : function_(std::move(function)) {}

  /*! \brief A name that the function does not have, and that was not given before, made from one.
   */
  ffi::String Fresh(const ffi::String& like);

 private:
  void Read();
  /*! \brief A name without the number that Fresh has given to it. */
  std::string BaseOf(const std::string& name) const;

  Function function_;
  bool is_read_ = false;
  /*! \brief Next number to try for each name. Keys are texts of the function's variables, or of
   * given_. */
  std::unordered_map<std::string_view, int> known_;
  std::deque<std::string> given_;
};

/*!
 * \brief Names for further functions of a module. Worked example: with main and f, Fresh("f") is
 * f_1 and then f_2, Fresh("g") is g.
 */
class FunctionNames {
 public:
  void Add(const std::string& name) { known_.insert(name); }
  /*! \brief A name that no function has, and that was not given before, made from one. */
  std::string Fresh(const std::string& like);

 private:
  std::unordered_set<std::string> known_;
  std::unordered_map<std::string, int> last_suffix_;
};

}  // namespace distir::ir
#endif  // DISTIR_IR_MODULE_NAMES_H_
