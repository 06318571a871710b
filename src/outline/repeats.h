/*!
 * \file outline/repeats.h
 * \brief Finds repetitions in a sequence of numbers.
 *
 * Worked example: 9 1 2 3 1 2 3 1 2 3 1 8 has 1 2 3 three times from position 1 on; 2 3 1 from
 * position 2 on is as good.
 */
#ifndef DISTIR_OUTLINE_REPEATS_H_
#define DISTIR_OUTLINE_REPEATS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace distir::outline {

/*! \brief items[i] is items[i + period] for every i from begin to end - period. */
struct Repeats {
  size_t begin = 0;
  size_t end = 0;  // behind the last repeat, and what follows of one more
  size_t period = 0;

  size_t count() const { return period == 0 ? 0 : (end - begin) / period; }
  /*! \brief Items that need not be written when each period is written once. */
  size_t saved() const { return count() < 2 ? 0 : (count() - 1) * period; }
};

/*!
 * \brief The repeats that save most; of equals the shortest period, and the first. None (a period
 * of 0) where nothing of at least `min_period` items follows itself.
 *
 * Periods that are looked at are the commonest distances between an item and the next equal one: an
 * item that stands once in a layer has the layer's length there. Linear in the sequence.
 */
Repeats FindRepeats(const std::vector<uint64_t>& items, size_t min_period);

}  // namespace distir::outline
#endif  // DISTIR_OUTLINE_REPEATS_H_
