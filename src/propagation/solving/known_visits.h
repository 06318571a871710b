/*!
 * \file propagation/solving/known_visits.h
 * \brief Caches the changes that visits of links make; equal visits are solved once.
 *
 * A visit depends on the link's rule, on what the link blocks, on how far solving is, and on its
 * tensors. All that counts of a tensor is its *state*: sizes, mesh, what is stated of it, and how
 * it is sharded by now. Tensors that are alike in all of this have the same number. So the key of a
 * visit is the rule and the numbers of its tensors, and what it gives is their numbers afterwards.
 *
 * Worked example: each of 80 layers multiplies x "R", state 3, by a weight "S[1]", state 5. The
 * first visit finds that the columns of the product, state 8, are sharded: that is state 9. The
 * others find (3, 5, 8) in the table, and that the tensor at position 2 becomes 9.
 */
#ifndef DISTIR_PROPAGATION_SOLVING_KNOWN_VISITS_H_
#define DISTIR_PROPAGATION_SOLVING_KNOWN_VISITS_H_

#include <optional>
#include <unordered_map>
#include <vector>

#include "propagation/instances.h"
#include "support/words.h"

namespace distir::propagation {

/*! \brief Numbers of what is known of each slot of a program. */
class SlotStates {
 public:
  explicit SlotStates(const Program* program) : program_(*program) {}

  /*! \brief Numbers all slots as they are now. */
  void NumberAll();
  /*! \brief Numbers a slot whose sharding has changed. */
  void Renumber(int slot);
  int Of(int slot) const { return states_[slot]; }
  /*! \brief The sharding of slots of a state; valid until the next one is numbered. */
  const mesh::Sharding& ShardingOf(int state) const { return shardings_[state]; }
  /*! \brief Notes that a slot has been given the sharding of a state of its kind. */
  void Set(int slot, int state) { states_[slot] = state; }

 private:
  int KindOf(const SlotState& slot);

  const Program& program_;
  std::vector<int> kinds_, states_;        // of slots
  std::vector<mesh::Sharding> shardings_;  // of states
  std::unordered_map<Words, int, HashWords> known_kinds_, known_states_;
  Words key_;
};

/*! \brief The tensor at a position of a link, operands before results, gets another state. */
struct StateChange {
  int position;
  int state;
};

struct VisitOutcome {
  std::vector<StateChange> changes;  // in order
  std::optional<bool> waits;         // whether the link has more to say later; none: as before
};

class KnownVisits {
 public:
  explicit KnownVisits(const SlotStates* states) : states_(*states) {}

  /*! \brief Links of more tensors, as concatenations have, are not looked up: telling which of
   * their tensors are the same slot would take time. */
  static bool Takes(const Link& link) { return link.num_operands + link.num_results <= 8; }
  /*! \brief Outcome of an equal visit, null if this is the first: then Enter has to follow, as soon
   * as the slots may have changed. */
  const VisitOutcome* Find(const Program& program, const Link& link, int stage);
  /*! \brief The entry of the visit that was looked for last. */
  VisitOutcome* Enter() { return &known_[key_]; }
  void Clear() { known_.clear(); }

 private:
  const SlotStates& states_;
  std::unordered_map<Words, VisitOutcome, HashWords> known_;
  Words key_;
};

}  // namespace distir::propagation
#endif  // DISTIR_PROPAGATION_SOLVING_KNOWN_VISITS_H_
