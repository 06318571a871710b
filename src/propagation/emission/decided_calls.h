/*!
 * \file propagation/emission/decided_calls.h
 * \brief Caches decisions on how operator calls are computed and placed, for equal calls.
 *
 * The layers of a model repeat their calls, and deciding one takes longer than writing it. All that
 * a decision depends on is the key: the rule, the mesh, what the tensors have and should have, and
 * how large they are. Nothing of a single call is kept. The rules and the shardings of operands are
 * told apart by their addresses, so both must outlive the object; it serves one function.
 *
 * Worked example: each layer multiplies x "R" by a weight "S[1]" of the same size. The first layer
 * decides that the columns of the product are sharded; the others find that.
 */
#ifndef DISTIR_PROPAGATION_EMISSION_DECIDED_CALLS_H_
#define DISTIR_PROPAGATION_EMISSION_DECIDED_CALLS_H_

#include <optional>
#include <unordered_map>
#include <vector>

#include "dialect/mesh_table.h"
#include "planning/planner.h"
#include "propagation/graph.h"
#include "rules/call/call_sharding.h"
#include "support/words.h"

namespace distir::propagation {

/*! \brief The tensors of a call, tuples flattened. */
struct CallTensors {
  int root = -1;
  /*! \brief Shardings of operands, of the mesh table; null for one placed anywhere. */
  std::vector<const mesh::Sharding*> operands;
  std::vector<const mesh::Sharding*> results;  // what results should have
  std::vector<const SlotInfo*> operand_infos, result_infos;

  void Clear() {
    root = -1;
    operands.clear();
    results.clear();
    operand_infos.clear();
    result_infos.clear();
  }
};

/*! \brief A tensor as it was decided. */
struct DecidedTensor {
  mesh::Sharding sharding;
  ir::Placement placement;  // on the view; null where the view cannot name the sharding
};

/*! \brief Reading of a placed call from its types. */
struct ReadCall {
  ir::DeviceMesh device_mesh;
  std::vector<ir::Placement> results;  // on device_mesh
  bool is_as_decided;
  /*! \brief True if the single result is placed as it should be. */
  bool has_layout;
};

struct DecidedCall {
  rules::CallSharding sharding;
  ir::DeviceMesh view;  // on which all of its tensors can be named
  std::vector<DecidedTensor> operands;
  std::optional<ReadCall> read;  // once it has been read
};

class DecidedCalls {
 public:
  DecidedCalls(dialect::MeshTable* meshes, planning::Planner* planner)
      : meshes_(*meshes), planner_(*planner) {}

  /*! \brief The entry of calls like this one; valid as long as this object. */
  DecidedCall* Find(const rules::FactorRule& rule, const CallTensors& tensors);

 private:
  /*! \brief Fills key_. */
  void MakeKey(const rules::FactorRule& rule, const CallTensors& tensors);
  DecidedCall Decide(const rules::FactorRule& rule, const CallTensors& tensors);
  ir::DeviceMesh ViewFor(int root, const rules::CallSharding& sharding);

  dialect::MeshTable& meshes_;
  planning::Planner& planner_;
  std::unordered_map<Words, DecidedCall, HashWords> decided_;
  Words key_;  // of the call asked for
};

}  // namespace distir::propagation
#endif  // DISTIR_PROPAGATION_EMISSION_DECIDED_CALLS_H_
