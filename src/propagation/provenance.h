/*!
 * \file propagation/provenance.h
 * \brief Remembers why every tensor is sharded as it is, for the functions that PropagateSharding
 * made.
 *
 * Kept beside the program, not in it: printed modules stay clean. Entries live as long as their
 * function does. A run only keeps what it has at hand; texts are made when somebody asks.
 */
#ifndef DISTIR_PROPAGATION_PROVENANCE_H_
#define DISTIR_PROPAGATION_PROVENANCE_H_

#include <memory>
#include <string>
#include <vector>

#include "propagation/instances.h"

namespace distir {
namespace propagation {

/*! \brief What propagation did to one program: independent of the program itself, which need not
 * stay alive. */
struct ProgramRecord {
  struct Slot {
    int function;  // in functions
    int root;
    ffi::String variable;
    bool is_constant;
  };
  std::vector<Slot> slots;
  std::vector<std::string> functions;
  std::vector<ffi::String> links;  // operator names
  std::vector<Step> steps;
  std::vector<mesh::Mesh> roots;
};

std::shared_ptr<const ProgramRecord> MakeRecord(const Program& program, std::vector<Step> steps,
                                                const op::MeshTable& meshes);

/*! \brief A redistribution that emission inserted: who had what, who wanted what. */
struct Disagreement {
  ffi::String variable;
  ir::Type have;
  ir::DTensorType wanted;
  ffi::String reader;  // what is computed from it
};

/*! \brief Remembers a function that was emitted from an instance of the program. */
void Remember(const ir::Function& function, std::shared_ptr<const ProgramRecord> record,
              const Instance& instance, std::vector<Disagreement> disagreements);

}  // namespace propagation
}  // namespace distir
#endif  // DISTIR_PROPAGATION_PROVENANCE_H_
