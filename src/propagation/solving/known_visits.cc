// Caches how applying a rule changes the shardings of its tensors, for equal rules and shardings.
#include "propagation/solving/known_visits.h"

namespace distir::propagation {

namespace {

void AddAxes(const mesh::AxisList& axes, Words* key) {
  key->push_back(static_cast<int64_t>(axes.size()));
  for (const mesh::AxisRef& ref : axes) {
    for (int64_t part : {static_cast<int64_t>(ref.axis), ref.pre_size, ref.size})
      key->push_back(part);
  }
}

template <typename List>
void AddAll(const List& list, Words* key) {
  key->push_back(static_cast<int64_t>(list.size()));
  for (const auto& each : list) key->push_back(static_cast<int64_t>(each));
}

/*! \brief The number of a key; the next one where it is new. */
int NumberOf(const Words& key, std::unordered_map<Words, int, HashWords>* known) {
  return known->try_emplace(key, static_cast<int>(known->size())).first->second;
}

}  // namespace

void SlotStates::NumberAll() {
  kinds_.resize(program_.slots.size());
  states_.resize(program_.slots.size());
  for (size_t i = 0; i < program_.slots.size(); ++i) {
    kinds_[i] = KindOf(program_.slots[i]);
    Renumber(static_cast<int>(i));
  }
}

void SlotStates::Renumber(int slot) {
  const mesh::Sharding& sharding = program_.slots[slot].sharding;
  key_ = {kinds_[slot]};
  for (const mesh::AxisList& axes : sharding.dims) AddAxes(axes, &key_);
  states_[slot] = NumberOf(key_, &known_states_);
  if (static_cast<size_t>(states_[slot]) == shardings_.size()) shardings_.push_back(sharding);
}

/*! \brief Numbers all of a slot but its sharding. */
int SlotStates::KindOf(const SlotState& slot) {
  const SlotInfo& info = *slot.info;
  key_ = {slot.root, info.is_constant, Bits(info.elements), Bits(info.bytes())};
  AddAll(info.sizes, &key_);
  AddAxes(slot.withheld, &key_);
  if (slot.stated != nullptr) {
    AddAll(slot.stated->open, &key_);
    AddAll(slot.stated->priorities, &key_);
  }
  return NumberOf(key_, &known_kinds_);
}

const VisitOutcome* KnownVisits::Find(const Program& program, const Link& link, int stage) {
  key_ = {Address(link.rule), stage << 2 | link.blocked.forward << 1 | link.blocked.backward};
  const IntRange slots = program.Operands(link);  // and the results, which follow
  for (int i = 0; i < link.num_operands + link.num_results; ++i) {
    int first = 0;  // of the positions of this slot
    while (slots[first] != slots[i]) ++first;
    key_.push_back(int64_t{states_.Of(slots[i])} << 8 | first);
  }
  auto found = known_.find(key_);
  return found == known_.end() ? nullptr : &found->second;
}

}  // namespace distir::propagation
