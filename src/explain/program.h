/*!
 * \file explain/program.h
 * \brief Reads a module of any phase for explanations: shardings of all tensors, links between
 * them, and moves.
 *
 * Nothing is kept while passes run but a few names (`distir.stated`, `distir.made`,
 * `distir.shardings`, attributes of functions); the rest is read off the module when somebody asks:
 * from types, in workers' programs from distir.shardings, and from the rules of the operators. So a
 * module can be explained after any pass, also TVM's and the user's own, and after parsing.
 */
#ifndef DISTIR_EXPLAIN_PROGRAM_H_
#define DISTIR_EXPLAIN_PROGRAM_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "abi/collective.h"
#include "planning/planner.h"
#include "propagation/graph.h"
#include "rules/tir/rule.h"

namespace distir::explain {

namespace ffi = tvm::ffi;
using propagation::SlotList;

inline std::string Quoted(const std::string& name) { return "`" + name + "`"; }
inline std::string NameOf(const ir::Expr& var) { return ir::Var::Cast(var).name(); }

/*! \brief Sharding of one tensor; the index is that of the slot in the function's graph. */
struct Fact {
  /*! \brief True if the module says it; the rest is empty if not. */
  bool is_known = true;
  int root = -1;            // -1: not distributed
  mesh::Sharding sharding;  // `partial` is what its value is partial over, before it is reduced
  std::string placement;    // as TVMScript says it, without what is partial
  bool is_stated = false;
  /*! \brief Stated number of shards per dimension, if propagation may have added others behind
   * them; else empty. */
  std::vector<int64_t> stated_shards = {};
  /*! \brief Dimensions of which an annotation was taken back, and the shards that it stated. */
  std::vector<std::pair<int, int64_t>> taken_back = {};
  /*! \brief True if an annotation states an axis that shards the dimension. */
  bool States(size_t dim, const mesh::AxisRef& axis) const;
  /*! \brief Cause of a partial value: a node of the function, and a dimension of one of its
   * operands; or, without a dimension, the operand that is partial already. */
  struct Cause {
    int node = -1;
    int operand = -1;
    int dim = -1;
  } cause;
};

/*! \brief A redistribution, or a collective. */
struct Move {
  std::string kind;  // "redistribute", or the name of the collective
  std::optional<abi::Collective> collective;
  /*! \brief True if the move only changes the sharding of a tensor. */
  bool changes_sharding = true;
  ir::Expr source;  // a variable, or null for what another device set sends
  bool is_reduction = false;
  mesh::AxisList reduced;  // over what, if the call says so
};

struct Bound {
  ir::Var var;
  ir::Expr value;                        // null: a match_cast
  std::optional<Move> move;              // that changes the sharding
  std::optional<Move> other_collective;  // as of segments, of tokens, or fused with operators
};

/*! \brief Pass that made a variable, and the call that it computed. */
struct Origin {
  std::string pass, op, variable;
};

struct FunctionView {
  std::string name;
  ir::Function function;
  propagation::FunctionGraph graph;
  std::vector<Fact> facts;
  std::vector<Bound> bound;                               // in program order, branches included
  std::unordered_map<const ffi::Object*, int> index;      // in bound, by variable
  std::map<std::string, std::vector<ir::Var>> variables;  // by name, which passes may have doubled
  std::vector<ir::Var> order;                             // parameters, then bound ones
  std::vector<std::vector<int>> nodes_of_slot;            // nodes of the graph
  std::unordered_map<const ffi::Object*, std::vector<int>> users;  // in bound, by variable
  std::unordered_map<std::string, Origin> made;                    // by variable
  bool is_explicit = false;  // partial values are reduced by collectives of the program
  bool is_local = false;     // a worker's program: sizes are those of shards
  /*! \brief A worker's program of which other passes have dropped variables, so that names may be
   * those of other variables than before. */
  bool is_changed = false;

  const SlotList& SlotsOf(const ir::Expr& var) const;
  const Bound* Find(const ir::Expr& var) const;
  /*! \brief The variable that a chain of moves begins with. */
  ir::Expr OriginOf(ir::Expr var) const;
};

/*! \brief One tensor of one function. */
struct TensorOf {
  const FunctionView* view;
  int slot;
  bool operator<(const TensorOf& other) const {
    return view != other.view ? view < other.view : slot < other.slot;
  }
};

/*! \brief One tensor on the other side of a call. */
struct AcrossCall {
  TensorOf tensor;
  bool is_upstream;  // its value is given to the call, or by it
};

class Program {
 public:
  explicit Program(const ir::IRModule& mod);

  /*! \brief The view of a Relax function of the module; null if it has none of that name. */
  const FunctionView* Function(const std::string& name);
  std::vector<std::string> FunctionNames() const;

  /*! \brief The tensors that are the same one across calls: of arguments the parameters, of results
   * what calls give, and the other way. */
  const std::vector<AcrossCall>& AcrossCalls(const TensorOf& tensor);

  /*! \brief True if PropagateSharding has noted what was stated; else the user wrote all of it. */
  bool IsPropagated() const { return is_propagated_; }
  /*! \brief True if no other pass has changed the functions since this package's passes. */
  bool IsUnchanged();
  /*! \brief Variables that an annotation or a type stated, and that no function has any more. */
  const std::vector<std::string>& LostVariables();

  std::string Text(int root, const mesh::Sharding& sharding) const {
    return meshes_.Text(root, sharding);
  }
  /*! \brief The sharding, and its mesh if the module has several. */
  std::string TextAmongMeshes(int root, const mesh::Sharding& sharding) const {
    return meshes_.TextAmongMeshes(root, sharding);
  }
  /*! \brief The placement of a type as TVM writes it, where it is on another view of the devices
   * than the texts are; or empty. */
  std::string ViewText(const ir::Type& type);
  const mesh::Mesh& Root(int root) const { return meshes_.Root(root); }
  const cost::Cluster& cluster() const { return cluster_; }

  /*! \brief The best way of a slot's tensor from one sharding to another; null where its size is
   * not known. */
  const planning::Plan* PlanOf(const FunctionView& view, int slot, const mesh::Sharding& source,
                               const mesh::Sharding& target);

 private:
  FunctionView Read(const std::string& name, const ir::Function& function);
  void ReadFacts(FunctionView* view);
  /*! \brief The placements that the types of variables state. */
  /*! \brief Reads the borders of manual regions, which state their manual axes. */
  void ReadBorders(FunctionView* view);
  static void ReadPlacements(FunctionView* view);
  void ReadLocalFacts(FunctionView* view);
  void ReadStated(FunctionView* view);
  /*! \brief The tensor and the rest of each entry of an attribute, "x: 2 1". */
  static void ReadNotes(FunctionView* view, const char* attr,
                        const std::function<void(Fact*, std::istringstream&)>& read);
  void ReadOpen(FunctionView* view);
  void ReadCalls();
  /*! \brief True if LowerDistIR has left a function as it was. */
  bool IsApart(const std::string& function) const;
  void ReadPartial(FunctionView* view);
  std::optional<Move> MoveOf(const FunctionView& view, const ir::Var& var, const ir::Call& call);
  mesh::AxisList ReducedAxes(const FunctionView& view, const ir::Var& var, const ir::Call& call);

  ir::IRModule mod_;
  dialect::MeshTable meshes_;
  rules::KernelTable kernels_;
  const cost::Cluster cluster_;
  planning::Planner planner_;
  std::map<std::string, ir::Function> functions_;
  std::map<std::string, std::unique_ptr<FunctionView>> views_;
  bool is_lowered_ = false;     // LowerDistIR has written the functions
  bool is_propagated_ = false;  // PropagateSharding has noted what was stated
  bool has_calls_ = false;      // across_calls_ is filled
  bool is_unchanged_ = true;
  std::vector<std::string> lost_variables_;
  std::map<TensorOf, std::vector<AcrossCall>> across_calls_;
};

}  // namespace distir::explain
#endif  // DISTIR_EXPLAIN_PROGRAM_H_
