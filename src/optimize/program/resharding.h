/*!
 * \file optimize/program/resharding.h
 * \brief Reads collectives of a program as shardings, and writes plans as collectives.
 */
#ifndef DISTIR_OPTIMIZE_PROGRAM_RESHARDING_H_
#define DISTIR_OPTIMIZE_PROGRAM_RESHARDING_H_

#include <optional>
#include <vector>

#include "cost/cluster.h"
#include "dialect/mesh_table.h"
#include "mesh/collective.h"
#include "optimize/program/editable_function.h"
#include "planning/planner.h"

namespace distir::optimize {

/*! \brief A collective on one device set: where from and where to. */
struct Resharding {
  mesh::CollectiveKind kind;
  int root;
  mesh::Sharding source;  // a reduction's source is partial over what it reduces
  mesh::Sharding target;
};

/*! \brief The collective that a value is; nullopt for anything else, for transfers, and for
 * collectives of tuples. */
std::optional<Resharding> ReadResharding(const ir::Expr& value, dialect::MeshTable* meshes);

/*! \brief Cost of communication. */
struct Traffic {
  double seconds = 0;  // by the cost model
  double bytes = 0;    // that a device receives, or sends
  int collectives = 0;
  int slices = 0;  // which only copy

  Traffic operator+(const Traffic& other) const {
    return {seconds + other.seconds, bytes + other.bytes, collectives + other.collectives,
            slices + other.slices};
  }
  /*! \brief True if this takes less time, or as much with fewer collectives or slices, and never
   * more bytes. */
  bool IsBetterThan(const Traffic& other) const;
};

/*! \brief Finds plans and what collectives cost, on one cluster. */
class Costs {
 public:
  explicit Costs(const cost::Cluster& cluster) : cluster_(cluster), planner_(cluster) {}

  Traffic Of(const Resharding& step, const mesh::Mesh& root, const ir::TensorType& type) const;
  /*! \brief The cheapest way; valid as long as this object. */
  const planning::Plan& Plan(const mesh::Mesh& root, const mesh::Sharding& source,
                             const mesh::Sharding& target, const ir::TensorType& type);
  static Traffic Of(const planning::Plan& plan);

 private:
  cost::Cluster cluster_;
  planning::Planner planner_;
};

/*! \brief Bytes of one shard; symbolic dimensions count as in redistribute::SizeOf. */
double LocalBytes(const ir::TensorType& type, const mesh::Sharding& sharding);

/*! \brief Writes a plan in front of a binding; gives the last call unbound, or `value` itself for
 * an empty plan. Its type is `target`'s exactly. */
ir::Expr WritePlan(EditableFunction* editable, EditableBinding* at, const ir::Expr& value, int root,
                   const mesh::Sharding& source, const planning::Plan& plan,
                   const ir::DTensorType& target, dialect::MeshTable* meshes);

}  // namespace distir::optimize
#endif  // DISTIR_OPTIMIZE_PROGRAM_RESHARDING_H_
