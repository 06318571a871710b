/*!
 * \file autosharding/statements.h
 * \brief Finds the annotations from which propagation derives a chosen plan.
 *
 * All parameters are stated. Where propagation then does not give a value its chosen sharding, that
 * value is stated, too, beginning with the first ones, until nothing differs.
 *
 * Worked example: of a transformer in Megatron's plan, the weights say all but the hidden states.
 */
#ifndef DISTIR_AUTOSHARDING_STATEMENTS_H_
#define DISTIR_AUTOSHARDING_STATEMENTS_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "autosharding/model.h"
#include "planning/planner.h"

namespace distir::autosharding {

/*! \brief A tensor of a variable, which can be stated. */
struct Place {
  int slot;
  std::string name;
  std::vector<int64_t> path;  // to the field of a tuple
  bool is_param;
};

/*! \brief Tensors but for constants, each by the first variable that has it: parameters, then
 * variables in program order. */
std::vector<Place> PlacesOf(const propagation::FunctionGraph& graph);

/*! \brief A tensor with its stated sharding. */
struct Statement {
  const propagation::FunctionGraph* graph;
  Place place;
  mesh::Sharding sharding;
};

/*!
 * \param graphs The program's graphs; their sources change meanwhile.
 * \param chosen The sharding of a slot, or nothing.
 */
std::vector<Statement> FindStatements(
    const std::vector<propagation::FunctionGraph*>& graphs, const GraphOf& graph_of,
    const std::function<std::optional<mesh::Sharding>(const propagation::FunctionGraph&, int)>&
        chosen,
    const dialect::MeshTable& meshes, int root, planning::Planner* planner);

}  // namespace distir::autosharding
#endif  // DISTIR_AUTOSHARDING_STATEMENTS_H_
