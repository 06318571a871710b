/*!
 * \file propagation/provenance.h
 * \brief Remembers why every tensor is sharded as it is, for the functions that PropagateSharding
 * made.
 *
 * Kept beside the program, not in it: printed modules stay clean. Entries live as long as their
 * function does.
 */
#ifndef DISTIR_PROPAGATION_PROVENANCE_H_
#define DISTIR_PROPAGATION_PROVENANCE_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "propagation/instances.h"

namespace distir {
namespace propagation {

/*! \brief What propagation did to one program: independent of the program itself, which need not
 * stay alive. */
struct ProgramRecord {
  struct Slot {
    std::string function;
    std::string variable;
    int root;
  };
  std::vector<Slot> slots;
  std::vector<std::string> links;  // operator names
  std::vector<Step> steps;
  std::vector<mesh::Mesh> roots;
};

std::shared_ptr<const ProgramRecord> MakeRecord(const Program& program, std::vector<Step> steps,
                                                const op::MeshTable& meshes);

/*! \brief A redistribution that emission inserted: who had what, who wanted what. */
struct Disagreement {
  std::string variable;
  std::string text;
};

/*! \brief Remembers an emitted function. `variables` are its variables with their slots in the
 * program. */
void Remember(const ir::Function& function, std::shared_ptr<const ProgramRecord> record,
              std::vector<std::pair<std::string, int>> variables,
              std::vector<Disagreement> disagreements);

}  // namespace propagation
}  // namespace distir
#endif  // DISTIR_PROPAGATION_PROVENANCE_H_
