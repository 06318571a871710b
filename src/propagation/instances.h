/*!
 * \file propagation/instances.h
 * \brief Unfolds a program along its calls: one instance of a function's graph per call path,
 * solved together.
 *
 * An instance gives a callee its own slots, so that information flows both ways through each call
 * separately and a callee reached with different shardings or on different meshes ends with
 * different signatures. A recursive call joins the instance of its function that is open on the
 * call path, and past kMaxUnfoldedSlots calls share one instance per callee, so that unfolding
 * always ends and stays linear in practice.
 */
#ifndef DISTIR_PROPAGATION_INSTANCES_H_
#define DISTIR_PROPAGATION_INSTANCES_H_

#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "planning/planner.h"
#include "propagation/graph.h"

namespace distir::propagation {

constexpr int kNoRoot = -1;

/*! \brief One tensor of one instance. */
struct SlotState {
  const SlotInfo* info;
  int root = kNoRoot;
  const Source* stated = nullptr;  // what an annotation or a type says of it
  mesh::Sharding sharding;
  mesh::AxisList withheld = {};  // axes that it must not take now
  /*! \brief The slot of a stated value that is the only reader of this one, a call's result; -1:
   * none. The call is priced with what is stated. */
  int read_as = -1;
};

/*! \brief A graph node with slots of the whole program, which Program::Operands and Results give.
 */
struct Link {
  const rules::FactorRule* rule;
  const ffi::String* name;
  int first;  // of its slots in Program::link_slots
  int num_operands;
  int num_results;
  dialect::Blocked blocked = {};
  const Crossing* crossing = nullptr;
  bool is_identity = false;
};

/*! \brief Numbers that lie one behind the other. */
struct IntRange {
  const int* first;
  const int* last;
  const int* begin() const { return first; }
  const int* end() const { return last; }
  size_t size() const { return last - first; }
  int operator[](size_t i) const { return first[i]; }
};

struct Instance {
  const FunctionGraph* graph;
  int slot_offset;
  std::unordered_map<const ffi::Object*, int> callee_of_call;  // instance by call
  bool is_recursive = false;

  int Slot(int local) const { return slot_offset + local; }
};

struct Program {
  std::vector<Instance> instances;
  std::vector<SlotState> slots;
  std::vector<Link> links;        // in program order, callees unfolded at their calls
  std::vector<int> link_slots;    // of all links, operands before results
  rules::RuleSet identity_rules;  // of call boundaries

  IntRange Operands(const Link& link) const {
    const int* slots = link_slots.data() + link.first;
    return {slots, slots + link.num_operands};
  }
  IntRange Results(const Link& link) const {
    const int* slots = link_slots.data() + link.first + link.num_operands;
    return {slots, slots + link.num_results};
  }
};

/*! \brief Looks up the graph of a function by its global variable. */
using GraphOf = std::function<const FunctionGraph&(const ir::GlobalVar&)>;

/*! \brief Unfolds the program that starts at `root`; the root is instance 0. */
Program Unfold(const FunctionGraph& root, const GraphOf& graph_of);

/*!
 * \brief Assigns every slot a mesh and a sharding. Deterministic, and linear in the program for a
 * given mesh:
 *
 * 1. Meshes go forward along the program (a call on values of several meshes runs on the last of
 * them in the module's order), then backward to values that have none; the first stated mesh serves
 * what is left. Only what is computed from values of a manual region is in it.
 * 2. Axes are propagated between slots on one mesh, along factors, both ways, first through
 * operators whose factors are all parallel, then through all; only where the tensors of a link
 * agree (one has a prefix of the other's axes). First along parallel factors, which results have,
 * and not from tensors that are broadcast; then along all.
 * 3. The same once more with conflicts resolved: a factor takes the axes of its largest tensor (the
 * first of equals); where tensors disagree, the cheapest way of the call decides
 * (rules/call/ways.h).
 *
 * A reduced factor never keeps an axis from a result: what is partial can be scattered.
 *
 * Then axes of an operand that a call cannot use, since it needs all of a dimension or can only be
 * sharded along a major part of it, serve another dimension of the call's results, if nobody states
 * these and all links whose tensors change so take less time (propagation/solving/link_cost.h).
 *
 * In the end, a call whose result is read only where its sharding is stated is priced with what is
 * stated, and the result stays as it is computed then.
 *
 * Stated slots never change, but for dimensions that are open, which take axes behind those that
 * are stated. A statement with a priority above 0 is withheld from its tensor, and its dimension is
 * closed, until all before it has spread; 2 and 3 are done once per priority. A dimension takes
 * only axes that its tensor does not use elsewhere, and that divide it, unless the call can be
 * padded along it (rules/tails.h).
 */
void Solve(Program* program, const dialect::MeshTable& meshes, planning::Planner* planner);

}  // namespace distir::propagation
#endif  // DISTIR_PROPAGATION_INSTANCES_H_
