/*!
 * \file analysis/program_steps.h
 * \brief Lists the steps of a worker's program, with the memory that is held during each. Input is
 * a module after StaticPlanBlockMemory: kernels write to tensors in planned storages.
 *
 * Memory: a storage, a tensor that is allocated alone, or the result of a packed function or a call
 * is held from where it is made to the last use of anything that lies in it: tensors of a storage,
 * views, tuples. So does the virtual machine, which counts references and forgets variables behind
 * their last use (KillAfterLastUse). A call holds what its function holds at most, besides.
 *
 * Worked example: y = f(x), z = g(y), return z, with 4 bytes each: after f 4 bytes, in g 8, which
 * is the peak, with y and z alive.
 */
#ifndef DISTIR_ANALYSIS_PROGRAM_STEPS_H_
#define DISTIR_ANALYSIS_PROGRAM_STEPS_H_

#include <tvm/ffi/any.h>

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "analysis/kernel_count.h"
#include "analysis/timeline/collective_time.h"
#include "ir/node.h"

namespace distir::analysis {

enum class StepKind { kKernel, kPacked, kCollective, kCall, kBranch };

struct Body;

struct Step {
  StepKind kind;
  std::string name;    // the variable that it gives, as the program names it
  std::string callee;  // kernel, packed function, function of the module; kind of a collective
  /*! \brief Work on the device; of collectives and calls, nothing. */
  KernelCount count;
  std::vector<std::string> reads;  // variables
  /*! \brief Earlier steps of the same body that give what it reads, ascending; first comes
   * kEntry if it reads what comes from outside of the body. */
  std::vector<int> after;
  std::vector<std::string> shapes;          // of the tensors that it reads and writes, as f32[8,16]
  std::string groups, plan;                 // of a collective, as the runtime gets them
  ffi::Any note;                            // of a collective: dialect::kNoteAttr
  double given_bytes = 0, made_bytes = 0;   // of a collective, its argument and its result
  double seconds = 0;                       // of a collective
  double live_bytes = 0;                    // held while it runs, without what a call holds
  std::unique_ptr<Body> on_true, on_false;  // of a branch
};

/*! \brief Index in place of a step, for what a function gets from its caller, or a side of a branch
 * from outside.
 */
constexpr int kEntry = -1;

struct Allocation {
  std::string name;
  double bytes;
};

struct Body {
  std::vector<Step> steps;
  std::vector<int> result_after;  // steps that give the result, as `Step::after`
  double peak_bytes = 0;
  int64_t peak_step = -1;
  /*! \brief At the peak, tensors with their sizes; what a call holds is one entry, and what of
   * storages holds no tensor. */
  std::vector<Allocation> alive;
  /*! \brief Bytes of constants in the function and in those that it calls, each once. */
  double constant_bytes = 0;
  /*! \brief Bytes of every storage and tensor that is allocated, in order. */
  std::vector<double> allocations;
};

struct FunctionSteps {
  std::string name;
  std::string op;  // the operator that it stands for (analysis/operator_calls.h), or empty
  std::vector<Allocation> params;
  Body body;
};

/*! \brief Reads modules one after the other. */
class StepReader {
 public:
  /*! \param times Those of collectives; nothing: they take none. */
  explicit StepReader(std::optional<CollectiveTimes> times = std::nullopt);
  ~StepReader();
  /*!
   * \brief The Relax functions of a module, callees before callers, without those whose name one
   * had that was read before: it is taken for the same function.
   * \throws ValueError where functions call each other in a circle.
   */
  std::vector<FunctionSteps> Read(const ir::IRModule& mod);

 private:
  class Reader;
  std::unique_ptr<Reader> reader_;
};

}  // namespace distir::analysis
#endif  // DISTIR_ANALYSIS_PROGRAM_STEPS_H_
