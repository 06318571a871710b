/*!
 * \file analysis/collective_calls.h
 * \brief Lists the collectives of lowered programs: what each sends, along which mesh axes, and
 * because of which operators. Writes that to the calls as notes, which steps carry.
 *
 * Worked example, on a mesh of dp=2, tp=2:
 *
 *     lv = R.matmul(x, w)                              kind all_reduce, 2 devices, axes (tp),
 *     gv = R.ccl.all_reduce(lv, [[0, 1], [2, 3]])      tensors (lv), operators (relax.matmul)
 *
 * LowerCCL and TVM's passes keep the note of a call, whatever becomes of its variables: it is an
 * attribute of the call, and behind LowerCCL of the packed function that is called.
 */
#ifndef DISTIR_ANALYSIS_COLLECTIVE_CALLS_H_
#define DISTIR_ANALYSIS_COLLECTIVE_CALLS_H_

#include <tvm/ffi/container/map.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "abi/plan_moves.h"
#include "ir/node.h"

namespace distir::analysis {

namespace ffi = tvm::ffi;

/*! \brief Bytes; where sizes are symbolic, `number` times what `unit` says. */
struct Amount {
  double number = 1;
  std::string unit;  // "n", "batch * (n // 4)"; empty where all sizes are known
};

struct CollectiveCall {
  ir::Var variable;  // that it is bound to
  std::string kind;
  /*! \brief Members of a group; of a plan, the devices that take part, 0 where nothing is sent. */
  int64_t devices = 0;
  std::vector<std::string> axes;
  Amount sent;  // by a device; by plan, the one that sends most
  std::vector<std::string> tensors;
  /*! \brief Operators that give what is reduced or sent to other devices; of other kinds those that
   * read the result, "return" among them. */
  std::vector<std::string> operators;
  std::string how;  // groups or plan, as JSON
  Amount priced;    // what CollectiveTimes asks: of the argument for groups, of the result by plan
};

/*! \brief A collective, or the name of a function of the module that is called. */
using CommunicatingCall = std::variant<CollectiveCall, std::string>;

/*! \brief A function of the module that devices run. */
struct ProgramOnDevices {
  std::string name;
  std::vector<int64_t> device_ids;
};

/*! \brief Lists the calls of one module. */
class CollectiveLister {
 public:
  /*! \param mod After LowerDistIR, or after LowerCCL, behind which permutes are transfers.
   * \param programs Entry functions; transfers are counted for devices that run them. */
  CollectiveLister(const ir::IRModule& mod, const std::vector<ProgramOnDevices>& programs,
                   abi::MeshAxes axes);

  /*! \brief The calls of a function in program order, those of branches behind what comes before
   * the If; collectives that send nothing are left out. */
  std::vector<CommunicatingCall> CallsOf(const ir::Function& function) const;

 private:
  class FunctionLister;

  abi::MeshAxes axes_;
  std::unordered_map<const ffi::Object*, std::vector<int64_t>> devices_;  // by function, sorted
};

/*! \brief A collective as data, as `communication/collectives.py` reads it. */
ffi::Map<ffi::String, ffi::Any> ToData(const CollectiveCall& call);

/*! \brief The module with a note, as ToData gives it, at each collective that sends (see
 * dialect/operators/collective_note.h). */
ir::IRModule WithNotes(const ir::IRModule& mod, const CollectiveLister& lister);

}  // namespace distir::analysis
#endif  // DISTIR_ANALYSIS_COLLECTIVE_CALLS_H_
