/*!
 * \file propagation/solving/links_of_slots.h
 * \brief Lists for each tensor (slot) of a program the rules (links) that relate it to others.
 */
#ifndef DISTIR_PROPAGATION_SOLVING_LINKS_OF_SLOTS_H_
#define DISTIR_PROPAGATION_SOLVING_LINKS_OF_SLOTS_H_

#include <numeric>
#include <utility>
#include <vector>

#include "propagation/instances.h"

namespace distir::propagation {

/*! \brief The links that touch each slot, in program order, each link once. */
class LinksOfSlots {
 public:
  explicit LinksOfSlots(const Program& program) : begin_(program.slots.size() + 1, 0) {
    ForEachUse(program, [this](int slot, int) { ++begin_[slot + 1]; });
    std::partial_sum(begin_.begin(), begin_.end(), begin_.begin());
    links_.resize(begin_.back());
    std::vector<int> next(begin_.begin(), begin_.end() - 1);
    ForEachUse(program, [&](int slot, int link) { links_[next[slot]++] = link; });
  }

  IntRange operator[](int slot) const {
    return {links_.data() + begin_[slot], links_.data() + begin_[slot + 1]};
  }

 private:
  /*! \brief Calls `visit` once for each slot of each link. */
  template <typename Visit>
  static void ForEachUse(const Program& program, const Visit& visit) {
    std::vector<int> last(program.slots.size(), -1);
    for (size_t l = 0; l < program.links.size(); ++l) {
      const Link& link = program.links[l];
      for (IntRange slots : {program.Operands(link), program.Results(link)}) {
        for (int slot : slots) {
          if (std::exchange(last[slot], static_cast<int>(l)) != static_cast<int>(l))
            visit(slot, static_cast<int>(l));
        }
      }
    }
  }

  std::vector<int> begin_;  // per slot, where its links begin
  std::vector<int> links_;
};

}  // namespace distir::propagation
#endif  // DISTIR_PROPAGATION_SOLVING_LINKS_OF_SLOTS_H_
