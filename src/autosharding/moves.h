/*!
 * \file autosharding/moves.h
 * \brief Computes the times of redistributions of tensors on one mesh, each planned once.
 * Redistributions that only exchange axes of equal size and speed share a plan; a slice, which
 * sends nothing, takes a kernel.
 *
 * Worked example: 80 layers have an activation of the same size, and 25 shardings of it lead to 16:
 * 400 plans for all of them.
 */
#ifndef DISTIR_AUTOSHARDING_MOVES_H_
#define DISTIR_AUTOSHARDING_MOVES_H_

#include <deque>
#include <unordered_map>
#include <utility>
#include <vector>

#include "autosharding/work.h"
#include "mesh/sharding.h"
#include "planning/planner.h"
#include "rules/call/call_cost.h"
#include "support/words.h"

namespace distir::autosharding {

class Moves {
 public:
  Moves(planning::Planner* planner, mesh::Mesh mesh, const DeviceLimits& limits);

  /*! \brief The number of a sharding, the same for equal ones. */
  int Number(const mesh::Sharding& sharding);
  const mesh::Sharding& Sharding(int number) const { return shardings_[number]; }

  /*! \brief Seconds from each of some shardings, which may be partial, to each of others, by their
   * numbers; row-major. */
  std::vector<double> SecondsBetween(const rules::Sizes& sizes, double bytes,
                                     const std::vector<int>& from, const std::vector<int>& to);
  /*! \brief Seconds that shards of a call exchange, for decomposed factors. */
  double SecondsBetweenShards(const rules::FactorRule& rule, rules::PricedTensors operands,
                              rules::PricedTensors results, const rules::FactorShardings& factors);

  const mesh::Mesh& mesh() const { return mesh_; }

 private:
  /*! \brief Tensors of one size, with the seconds by the numbers of both shardings. */
  struct Known {
    planning::TensorSize size;
    rules::Sizes sizes;
    std::unordered_map<int64_t, double> seconds;
  };
  double Find(Known* known, int from, int to);
  /*! \brief Of the pairs that differ from this one by exchanged axes, the least. */
  std::pair<int, int> Representative(int from, int to);
  int Exchanged(int sharding, size_t exchange);

  planning::Planner& planner_;
  const mesh::Mesh mesh_;
  const DeviceLimits& limits_;
  std::unordered_map<Words, int, HashWords> numbers_;
  std::deque<mesh::Sharding> shardings_;
  std::unordered_map<Words, Known, HashWords> known_;
  /*! \brief The axis that takes the place of each, for all exchanges of axes that are alike: of
   * one size on a uniform cluster. */
  std::vector<std::vector<int>> exchanges_;
  std::vector<std::vector<int>> exchanged_;  // by exchange and number of a sharding; -1: not known
};

/*! \brief Bytes of a tensor that a device has; of uneven dimensions, the padding too. */
double LocalBytes(const rules::Sizes& sizes, double bytes, const mesh::Sharding& sharding);

}  // namespace distir::autosharding
#endif  // DISTIR_AUTOSHARDING_MOVES_H_
