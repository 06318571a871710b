/*!
 * \file ir/module/call_graph.h
 * \brief Calls between the Relax functions of a module.
 *
 * Function f calls g where a value in f, in a branch or in a local function too, is a call of g's
 * global variable. If g is used otherwise (as an argument, in a tuple, as a result), it is a
 * *value*: whoever gets it may call it. What the module does not define as a Relax function
 * (kernels, packed functions, variables that hold functions) is not in the graph. Example:
 *
 *     def main(x):               main calls layer and apply;
 *         y = layer(x)           twice is a value, and nothing is known to call it
 *         z = apply(twice, y)
 *         return z
 *
 * Functions are numbered in the order of their names, so nothing depends on the hash order of the
 * module. Building the graph, and each walk over it, takes time linear in the program.
 */
#ifndef DISTIR_IR_MODULE_CALL_GRAPH_H_
#define DISTIR_IR_MODULE_CALL_GRAPH_H_

#include <functional>
#include <optional>
#include <unordered_map>
#include <vector>

#include "ir/node.h"

namespace distir::ir {

class CallGraph {
 public:
  struct Entry {
    GlobalVar name;
    std::vector<size_t> callees;  // each once, in the order of its first call
    std::vector<size_t> callers;  // each once, in order
    bool is_value = false;
  };
  /*! \brief Calls its argument with every value that a function binds or gives as a result, those
   * in its branches too. An If may be among them; nothing is read off it. */
  using ForEachValue = std::function<void(const std::function<void(const Expr&)>&)>;

  CallGraph() = default;
  explicit CallGraph(const IRModule& mod);

  /*! \brief Adds a function without its calls: all functions are known before any is read. */
  void Add(const GlobalVar& name);
  /*! \brief Reads the calls of a function, which may have another form than a module has. */
  void Read(size_t function, const ForEachValue& values);

  size_t size() const { return entries_.size(); }
  const Entry& operator[](size_t function) const { return entries_[function]; }
  /*! \brief The number of a function, by its global variable; nullopt where the graph lacks it. */
  std::optional<size_t> Find(const Expr& callee) const;

  /*! \brief Every function once, behind those that it calls. Of functions that call each other in
   * a circle, the one that is reached first comes last. */
  std::vector<size_t> CalleesFirst() const;

  /*! \brief Extends a property of functions to all that call them, directly or not. */
  std::vector<bool> WithCallers(std::vector<bool> of) const;
  /*! \brief Extends a property of functions to all that they call, directly or not. */
  std::vector<bool> WithCallees(std::vector<bool> of) const;
  /*!
   * \brief Lets callers have what their callees have, until nothing changes.
   * \param merge Adds to its first function what its second has; says whether that was new.
   */
  void SpreadToCallers(const std::function<bool(size_t caller, size_t callee)>& merge) const;

 private:
  std::vector<bool> Spread(std::vector<bool> of, std::vector<size_t> Entry::* next) const;

  std::vector<Entry> entries_;
  std::unordered_map<const ffi::Object*, size_t> number_of_;  // by global variable
};

/*! \brief True if callers outside of the module may call a function: it has a global symbol. */
bool IsPublic(const BaseFunc& function);

}  // namespace distir::ir
#endif  // DISTIR_IR_MODULE_CALL_GRAPH_H_
