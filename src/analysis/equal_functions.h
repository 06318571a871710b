/*!
 * \file analysis/equal_functions.h
 * \brief Finds functions of SPMD programs that differ only in communication partners and names, so
 * that device-independent facts are computed once for all of them.
 *
 * Worked example: of a pipeline of four equal stages on two devices each, the layers of all stages
 * are one function, in place of whose groups "[[0,1]]", "[[2,3]]", .. stands "[0]":
 *
 *     def layer_1(x, w):                                  def function_0(x, w):
 *         y = matmul(x, w)                                    y = matmul(x, w)
 *         return all_reduce(y, "[[2,3]]", "sum")     ->       return all_reduce(y, "[0]", "sum")
 *
 * and "[[2,3]]" is what layer_1 has at place 0. The stages in the middle are one function, too:
 * functions are equal if those that they call are.
 */
#ifndef DISTIR_ANALYSIS_EQUAL_FUNCTIONS_H_
#define DISTIR_ANALYSIS_EQUAL_FUNCTIONS_H_

#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "analysis/structural_index.h"
#include "ir/module/call_graph.h"
#include "ir/node.h"

namespace distir::analysis {

/*! \brief Callee by the key of the functions that it is equal to. */
using Callees = std::map<std::string, std::string>;

/*! \brief A function of a module. */
struct FunctionOnDevices {
  std::string name;
  std::string like;  // the function that it is equal to
  /*! \brief Groups and plans, each once, by the places where they stand. */
  std::vector<std::string> communications;
  /*! \brief Notes of collectives (dialect::kNoteAttr), by the places that stand in their stead. */
  ffi::Array<ffi::Any> notes;
  Callees callees;
  /*! \brief Its parameters and variables in program order. Equal functions have as many. */
  std::vector<std::string> variables;
};

struct FunctionsOnDevices {
  std::vector<FunctionOnDevices> functions;  // callees first
  /*!
   * \brief The functions that no module had before, with the kernels that they call. What they call
   * that was there before is a function of the same type, which calls a packed function.
   */
  ir::IRModule others;
};

/*! \brief Compares the functions of modules that are given one after the other. */
class EqualFunctions {
 public:
  /*!
   * \param mod After LowerCCL.
   * \return Nothing where a function cannot be treated apart from those that call it: it calls
   * itself, calls two functions that are equal, has a branch or a function in it, is a value, or is
   * private, so that TVM may change its parameters, and has one that is a tuple or is not used.
   */
  std::optional<FunctionsOnDevices> Add(const ir::IRModule& mod);

 private:
  class Abstraction;
  /*! \brief Its own, with a number if another kernel has it. */
  ir::GlobalVar NameOfKernel(const ir::GlobalVar& name, const ir::BaseFunc& kernel);
  ir::GlobalVar NewName(const std::string& text);

  StructuralIndex functions_, kernels_;
  std::vector<ir::GlobalVar> names_, kernel_names_;  // by number
  std::unordered_set<std::string> taken_;            // names
};

}  // namespace distir::analysis
#endif  // DISTIR_ANALYSIS_EQUAL_FUNCTIONS_H_
