/*!
 * \file autosharding/model.h
 * \brief Writes a program as a problem of autoshard/, which chooses how each call and tensor is
 * sharded.
 *
 * Nodes are calls, whose strategies are the ways to compute them (autosharding/ways.h), and
 * tensors that several calls read, or that come from or go to the outside, whose strategies are
 * shardings. A call costs what its part of the work takes by the roofline, and what its shards
 * exchange. An edge costs the redistribution between what one side has and the other needs, partial
 * results included, as planned (planning/planner.h). A tensor with one reader has no node: its edge
 * joins the two calls.
 *
 * Calls that TVM would fuse (autosharding/fusion.h) are one kernel: each of them costs its share of
 * what bounds the kernel, its operations or the bytes that leave or enter the kernel; the call that
 * stands for the group has the launch. A redistribution within a group also costs what dividing it
 * does: the tensor is written and read.
 *
 * Memory: a time per call, in program order. Weights and inputs are held at all times, other
 * tensors from their call to the last that reads them. While a call makes or reads a tensor, what
 * the call has of it counts in place of what is held otherwise: a gathered weight, a partial
 * result.
 *
 * Worked example: relu(x w1) w2 with x, w1, w2 parameters: three tensors, three calls, edges x-c1,
 * w1-c1, c1-c2, c2-c3, w2-c3.
 *
 * A function of the module that several calls name is one set of nodes, counted once per call: all
 * calls of it are sharded alike.
 */
#ifndef DISTIR_AUTOSHARDING_MODEL_H_
#define DISTIR_AUTOSHARDING_MODEL_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include "autoshard/problem.h"
#include "autosharding/kernels.h"
#include "autosharding/moves.h"
#include "autosharding/ways.h"
#include "autosharding/work.h"
#include "propagation/instances.h"

namespace distir::autosharding {

/*! \brief Costs of the problem per second. */
constexpr double kTicksPerSecond = 1e12;

using propagation::GraphOf;

class Model {
 public:
  /*! \param root The mesh, in the graphs' table. */
  Model(const propagation::FunctionGraph& main, const GraphOf& graph_of, const Works& works,
        const DeviceLimits& limits, Moves* moves, int root);

  /*! \param bytes That a device may hold at any time; until then, memory is not limited. */
  void SetMemoryLimit(int64_t bytes) { problem_.limits.assign(num_times_, bytes); }

  const autoshard::Problem& problem() const { return problem_; }

  /*! \brief The sharding of a tensor under a choice; nothing for constants and what is not used. */
  std::optional<mesh::Sharding> ShardingOf(const propagation::FunctionGraph& graph, int slot,
                                           const autoshard::Choice& choice) const;
  /*! \brief The way in which a node of a graph is computed. */
  const Way& WayOf(const propagation::FunctionGraph& graph, size_t node,
                   const autoshard::Choice& choice) const;
  /*! \brief A bound of the memory that any choice needs, and the call meanwhile. */
  struct LeastMemory {
    int64_t bytes = 0;
    const propagation::FunctionGraph* graph = nullptr;
    size_t node = 0;
  };
  LeastMemory LeastPossible() const;
  /*! \brief By mesh axis, true if any call can be computed in shards along it. */
  std::vector<bool> UsableAxes() const;
  /*! \brief The graphs, callers before callees. */
  const std::vector<const propagation::FunctionGraph*>& graphs() const { return order_; }

 private:
  /*! \brief A call of a graph. */
  struct CallNode {
    int node;
    const NumberedWays* rule;
    Work work;
    int time;
    bool is_needed = false;  // something that is returned depends on it
    bool is_folded = false;  // computed when the program is built, unless it is sharded
  };
  struct Use {
    size_t call;
    size_t operand;
  };
  struct Tensor {
    int node = -1;  // none: its maker's and its only reader's nodes are joined
    const std::vector<int>* shardings = nullptr;  // their numbers
    const propagation::Source* stated = nullptr;
    bool is_kept = false;
    bool is_outside = false;  // comes from, or goes to, a caller or another function
    bool is_stored = true;    // false: lies where another one does
    std::vector<Use> makers;  // operand: the index of the result
    std::vector<Use> readers;
    int last_read = -1;
  };
  struct GraphNodes {
    const propagation::FunctionGraph* graph;
    double count = 0;  // calls of the function
    std::vector<CallNode> calls;
    std::vector<Tensor> tensors;
    std::vector<bool> is_outside;  // by tensor
    std::optional<Kernels> kernels;
    int end = 0;  // the time behind its last call
  };

  void Collect(const propagation::FunctionGraph& graph, const GraphOf& graph_of);
  void CountCalls(const GraphOf& graph_of);
  void NumberTimes(GraphNodes* nodes, const GraphOf& graph_of);
  void AddCalls(GraphNodes* nodes, const Works& works);
  void PriceCalls(GraphNodes* nodes);
  void AddTensors(GraphNodes* nodes);
  void AddEdges(GraphNodes* nodes);
  void AddCallEdges(const GraphNodes& nodes, const GraphOf& graph_of);
  void RequireFinite() const;
  void AddMemory(const GraphNodes& nodes);
  void AddHeld(const GraphNodes& nodes, int slot, int begin, int end);
  const NumberedWays& Ways(const rules::FactorRule* rule);
  void FindKernels(GraphNodes* nodes);
  void FindNeeded(GraphNodes* nodes);
  const std::vector<double>& SecondsBetweenShards(GraphNodes* nodes, size_t index);
  int64_t Ticks(const GraphNodes& nodes, double seconds) const;
  const GraphNodes& Of(const propagation::FunctionGraph& graph) const {
    return *graphs_.at(&graph);
  }
  /*! \brief SecondsBetween for numbers that do not change, each worked out once. */
  const std::vector<double>& SecondsBetween(const propagation::SlotInfo& info,
                                            const std::vector<int>& from,
                                            const std::vector<int>& to);

  const DeviceLimits& limits_;
  Moves& moves_;
  const int root_;
  autoshard::Problem problem_;
  std::map<const propagation::FunctionGraph*, std::unique_ptr<GraphNodes>> graphs_;
  std::vector<const propagation::FunctionGraph*> order_;
  std::unordered_map<const rules::FactorRule*, NumberedWays> ways_;
  std::unordered_map<Words, std::vector<double>, HashWords> between_shards_;
  Kernels::Prices prices_;
  std::set<std::vector<int>> shardings_;  // of tensors, by their numbers
  std::unordered_map<Words, std::vector<double>, HashWords> seconds_;
  int num_times_ = 0;
};

}  // namespace distir::autosharding
#endif  // DISTIR_AUTOSHARDING_MODEL_H_
