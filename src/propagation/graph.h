/*!
 * \file propagation/graph.h
 * \brief Propagation graph of a function: tensors (slots) and the rules that link them.
 *
 * A slot is one tensor value: a parameter, a constant, a result; tuples have a slot per tensor in
 * them. Variables that rename a value (tuples, tuple elements, `lv1 = lv0`) share its slots. A node
 * links slots by a factor rule; an identity node links two slots that hold the same tensor but may
 * be placed differently (an annotation and its argument, a result of a function and its value). The
 * values of a sharding group share one slot, to which each of them is linked by such a node. A
 * value that enters or leaves a manual region is linked, by a crossing, to a slot on the other
 * mesh, which an identity node links to the operand. The graph of a function is built once, however
 * often the function is specialised.
 */
#ifndef DISTIR_PROPAGATION_GRAPH_H_
#define DISTIR_PROPAGATION_GRAPH_H_

#include <algorithm>
#include <deque>
#include <functional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "dialect/mesh_table.h"
#include "dialect/operators/annotation.h"
#include "ir/node.h"
#include "ir/symbolic.h"
#include "rules/factor/factor_rule.h"

namespace distir::propagation {

namespace ffi = tvm::ffi;

/*! \brief Source of a stated sharding: an annotation or a DTensor type. */
struct Source {
  int slot;
  int root;
  mesh::Sharding sharding;
  std::vector<bool> open = {};       // by dimension: whether it may be sharded further; none: no
  std::vector<int> priorities = {};  // by dimension; none: 0
  mesh::AxisList replicated = {};    // axes that must not shard it
  bool annotates_param = false;      // an annotation of a parameter, not a type or another value
  /*! \brief Dimensions that are open since their heads are copied (propagation/copied_heads.h), and
   * the shards that were stated of them. */
  std::vector<std::pair<int, int64_t>> taken_back = {};

  bool HasOpen() const { return std::find(open.begin(), open.end(), true) != open.end(); }
  bool IsOpen(size_t dim) const { return dim < open.size() && open[dim]; }
  int Priority(size_t dim) const { return dim < priorities.size() ? priorities[dim] : 0; }
};

/*! \brief Slots of the graph; most values are one tensor. */
using SlotList = SmallVector<int, 2>;

struct SlotInfo {
  ir::TensorType type;
  ffi::String name;    // of the variable, for explanations
  rules::Sizes sizes;  // of the dimensions, as StaticSizes
  double elements;     // as NumElements
  double bytes() const { return elements * ir::BytesPerElement(type); }
  bool is_constant = false;  // every device has all of it, so it says nothing of shardings
};

/*! \brief A value that enters or leaves a manual region (dialect/operators/manual.h). */
struct Crossing {
  const dialect::ManualRegion* region;
  std::vector<mesh::AxisList> manual;  // by dimension: the axes that cut it outside
  bool enters;
};

struct Node {
  const rules::FactorRule* rule;  // in the graph's rules
  SlotList operands;
  SlotList results;
  ffi::String name;  // of the operator, for explanations
  dialect::Blocked blocked = {};
  const Crossing* crossing = nullptr;  // in the graph's crossings
  bool is_identity = false;            // its slots hold the same tensor
};

/*! \brief A call of another function of the module. */
struct CallSite {
  const ffi::Object* call;  // ir::Call
  ir::GlobalVar callee;
  SlotList arguments;  // slots of all arguments, flattened
  SlotList results;
  size_t position;  // number of nodes before it, for program order
};

struct FunctionGraph {
  ir::Function function;
  std::string name;
  std::vector<SlotInfo> slots;
  std::vector<Node> nodes;
  std::vector<CallSite> calls;
  std::vector<Source> sources;
  SlotList params;   // slots of all parameters, flattened
  SlotList results;  // of the returned value, flattened: separate from those of its expression
  rules::RuleSet rules;
  std::deque<Crossing> crossings;
  /*! \brief Slots of each variable; a variable without tensors has none. */
  std::unordered_map<const ffi::Object*, SlotList> var_slots;
  /*! \brief Slots of each constant and of each If, by the expression. */
  std::unordered_map<const ffi::Object*, SlotList> expr_slots;
  /*! \brief The node of a call of an operator, by the call. */
  std::unordered_map<const ffi::Object*, int> node_of_call;
};

/*!
 * \param kernels The kernels of the module.
 * \param is_relax_function True if a global variable names a Relax function of the module.
 * \param warns True if the user is told what has no rule.
 * \throws ValueError naming what propagation cannot look into (a local closure).
 */
FunctionGraph BuildGraph(const std::string& name, const ir::Function& function,
                         dialect::MeshTable* meshes, rules::KernelTable* kernels,
                         const std::function<bool(const ir::GlobalVar&)>& is_relax_function,
                         bool warns = true);

}  // namespace distir::propagation
#endif  // DISTIR_PROPAGATION_GRAPH_H_
