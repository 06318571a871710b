/*!
 * \file optimize/optimization.h
 * \brief Shared parts of the optimisations of collectives: the program they edit, their options,
 * and their reports.
 *
 * Each optimisation is one file with one function of type `Optimization::run`; pass.cc lists them
 * in order.
 */
#ifndef DISTIR_OPTIMIZE_OPTIMIZATION_H_
#define DISTIR_OPTIMIZE_OPTIMIZATION_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dialect/mesh_table.h"
#include "optimize/program/editable_function.h"
#include "optimize/program/resharding.h"
#include "rules/tir/rule.h"

namespace distir::abi {
enum class Collective : uint8_t;
}  // namespace distir::abi

namespace distir::optimize {

/*! \brief Sizes that a user may set. */
struct Options {
  /*! \brief Collectives are combined as long as their arguments together have at most this many
   * bytes on each device. At 100 GB/s and 10 microseconds of latency, figures of current
   * interconnects, 1 MiB is where a ring spends as long waiting as sending. */
  int64_t combine_bytes = int64_t{1} << 20;
  /*! \brief Reductions that send fewer bytes from each device are left as they are by sequence
   * parallelism, which makes two collectives of one. */
  int64_t sequence_bytes = 0;
  /*! \brief Results of gathers that may be in flight before their first use, in bytes per device:
   * what is gathered early takes memory. */
  int64_t prefetch_bytes = int64_t{64} << 20;
  /*! \brief The communication library that the program will run on. */
  std::string ccl = "cpu";
};

/*! \brief Report of an optimisation: how often it applied, and how often not, with the reason. */
struct Tally {
  int matched = 0;
  std::map<std::string, int> skipped;
  void Skip(const char* why) { ++skipped[why]; }
};

/*! \brief True if the library that the program will run on has a builtin that not all have. */
bool IsOffered(const Options& options, abi::Collective collective);

struct NamedFunction {
  ir::GlobalVar name;    // another one of the same name once the function's type has changed
  ir::GlobalVar before;  // in the module as it was
  std::unique_ptr<EditableFunction> editable;
};

/*! \brief The distributed functions of a module, ordered by name. */
struct Program {
  std::vector<NamedFunction> functions;
  dialect::MeshTable* meshes;
  rules::KernelTable* kernels;
  Costs* costs;
  Options options;
};

struct Optimization {
  const char* name;
  void (*run)(Program* program, Tally* tally);
  bool is_on = true;  // unless a user says otherwise
};

/*! \brief All optimisations in the order in which they run. */
const std::vector<Optimization>& AllOptimizations();

void ShareCollectives(Program* program, Tally* tally);
void MoveOnce(Program* program, Tally* tally);
void CancelCollectives(Program* program, Tally* tally);
void DispatchExperts(Program* program, Tally* tally);
void DispatchSlots(Program* program, Tally* tally);
void DispatchWeighted(Program* program, Tally* tally);
void DeferReductions(Program* program, Tally* tally);
void ScatterReductions(Program* program, Tally* tally);
void SequenceParallel(Program* program, Tally* tally);
void FuseAllReduceNorm(Program* program, Tally* tally);
void HoistGathers(Program* program, Tally* tally);
void CombineCollectives(Program* program, Tally* tally);
void ScheduleCollectives(Program* program, Tally* tally);

}  // namespace distir::optimize
#endif  // DISTIR_OPTIMIZE_OPTIMIZATION_H_
