/*!
 * \file lower/stages/virtual_stages.h
 * \brief Assigns bindings to virtual stages, in functions whose devices have several stages each.
 *
 * The work of devices for one stage must not wait for their work for a later one, so they have a
 * program per *virtual stage*. The function's attribute says in which order values go through its
 * meshes. A value that is sent to a mesh behind its own stays in its virtual stage; one that is
 * sent back is of the next virtual stage there. A virtual stage never decreases along dependencies.
 *
 * Worked example, meshes A and B in this order:
 *
 *     a = f(x)             on A    virtual stage 0
 *     b = g(transfer(a))   on B    virtual stage 0
 *     c = f(transfer(b))   on A    virtual stage 1: sent in 0 and received in 1
 *     d = g(transfer(c))   on B    virtual stage 1
 *
 * A value that depends on weights only, with its transfers, is of the first virtual stage that uses
 * it.
 */
#ifndef DISTIR_LOWER_STAGES_VIRTUAL_STAGES_H_
#define DISTIR_LOWER_STAGES_VIRTUAL_STAGES_H_

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "dialect/mesh_table.h"
#include "ir/node.h"

namespace distir::lower {

namespace ffi = tvm::ffi;

/*! \brief The attribute of functions with several virtual stages: per mesh its smallest device id,
 * in the order of the pipeline. */
constexpr const char* kInterleavedAttr = "distir.interleaved";

class VirtualStages {
 public:
  /*! \throws ValueError for a mesh that the attribute does not have. */
  VirtualStages(const ir::Function& function, const std::string& name, dialect::MeshTable* meshes);

  /*! \brief The virtual stage of a binding of the body, of a transfer's receiving side; nullopt for
   * a variable of a branch. */
  std::optional<int> Of(const ir::Var& var) const;
  /*! \brief The virtual stage in which a transfer, by the variable that it is bound to, is sent. */
  int OfSend(const ir::Var& transfer) const { return of_send_.at(transfer.get()); }
  /*! \brief Position of a device in the order of the pipeline; 0 if there is no pipeline. */
  int PositionOf(int64_t smallest_device) const;

 private:
  std::unordered_map<int64_t, int> positions_;                // of meshes, by smallest device
  std::unordered_map<const ffi::Object*, int> of_, of_send_;  // by variable
};

}  // namespace distir::lower
#endif  // DISTIR_LOWER_STAGES_VIRTUAL_STAGES_H_
