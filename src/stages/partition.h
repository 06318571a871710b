/*!
 * \file stages/partition.h
 * \brief Cuts a list of items into contiguous stages of equal time, with the least transfer between
 * them. Pure numbers, no IR; linear in the items for a number of stages.
 *
 * The time of the slowest stage decides how fast a pipeline runs, so it comes first: B is the least
 * that any cut reaches. Among the cuts whose stages all take at most (1 + slack) B, one with the
 * least sum of transfers is taken; of several, one whose slowest stage is fastest.
 *
 * Worked example: work 4 4 4 4 on two stages, transfers of 9 before each item but 1 before the
 * fourth. B = 8. With slack 0 the cut is before the third item; with slack 0.5 (12 at most) before
 * the fourth.
 */
#ifndef DISTIR_STAGES_PARTITION_H_
#define DISTIR_STAGES_PARTITION_H_

#include <cstddef>
#include <vector>

namespace distir::stages {

struct PartitionProblem {
  /*! \brief Per item, what it takes on one device, in seconds. */
  std::vector<double> work;
  /*! \brief Per item, whether it is an operator: every stage has at least one. */
  std::vector<bool> is_operator;
  /*! \brief Per stage, the devices that share its work. */
  std::vector<double> devices;
  /*! \brief Per stage and item, seconds of the transfers into the stage if it begins with the item;
   * that of stage 0 is not used. */
  std::vector<std::vector<double>> transfer;
  double slack = 0;
};

/*! \brief The first item of each stage. \throws ValueError when there are fewer operators than
 * stages. */
std::vector<size_t> Partition(const PartitionProblem& problem);

}  // namespace distir::stages
#endif  // DISTIR_STAGES_PARTITION_H_
