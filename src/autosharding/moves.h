/*!
 * \file autosharding/moves.h
 * \brief Times of redistributions of tensors on one mesh, each planned once.
 *
 * Worked example: 80 layers have an activation of the same size, and 25 shardings of it lead to 16:
 * 400 plans for all of them.
 */
#ifndef DISTIR_AUTOSHARDING_MOVES_H_
#define DISTIR_AUTOSHARDING_MOVES_H_

#include <unordered_map>
#include <utility>

#include "mesh/sharding.h"
#include "planning/planner.h"
#include "rules/call/call_cost.h"
#include "support/words.h"

namespace distir::autosharding {

class Moves {
 public:
  Moves(planning::Planner* planner, mesh::Mesh mesh)
      : planner_(*planner), mesh_(std::move(mesh)) {}

  /*! \brief Seconds from one sharding, which may be partial, to another. */
  double Seconds(const rules::Sizes& sizes, double bytes, const mesh::Sharding& from,
                 const mesh::Sharding& to);

  /*! \brief Seconds that shards of a call exchange, for decomposed factors. */
  double SecondsBetweenShards(const rules::FactorRule& rule, rules::PricedTensors operands,
                              rules::PricedTensors results,
                              const rules::FactorShardings& factors);

  const mesh::Mesh& mesh() const { return mesh_; }

 private:
  planning::Planner& planner_;
  const mesh::Mesh mesh_;
  std::unordered_map<Words, double, HashWords> known_;
  Words key_;
};

/*! \brief Bytes of a tensor that a device has; of uneven dimensions, the padding too. */
double LocalBytes(const rules::Sizes& sizes, double bytes, const mesh::Sharding& sharding);

}  // namespace distir::autosharding
#endif  // DISTIR_AUTOSHARDING_MOVES_H_
