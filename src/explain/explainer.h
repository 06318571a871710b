/*!
 * \file explain/explainer.h
 * \brief Explains one variable: its origin, its sharding with the cause, its redistributions.
 */
#ifndef DISTIR_EXPLAIN_EXPLAINER_H_
#define DISTIR_EXPLAIN_EXPLAINER_H_

#include <string>
#include <vector>

#include "explain/chain.h"
#include "explain/program.h"

namespace distir::explain {

class Explainer {
 public:
  Explainer(Program* program, const FunctionView& view, const ir::Var& var)
      : program_(*program), view_(view), var_(var) {}

  /*! \brief All that is known of the variable. */
  std::vector<std::string> Run();
  /*! \brief Explains the sharding of its one tensor where it differs from `other`, with chains to
   * annotations. */
  std::vector<std::string> ShardingUnlike(const mesh::Sharding& other);

 private:
  std::string PlaceText(const Place& at) const;

  // ---- what made it

  void ExplainOrigin();
  /*! \brief Says that a pass has written the variable's operator as several. */
  void ExplainSteps();

  // ---- how it is sharded

  void ExplainTensor(int slot);
  void ExplainTakenBack(const Fact& fact);
  std::string UnknownText() const;
  bool ExplainPartial(const std::string& head, const Fact& fact);
  /*! \brief The chains of a dimension's axes back to what states them; equal ones are one. */
  void ExplainDim(const std::string& head, int slot, int dim);
  std::vector<std::string> ChainOf(const Place& from, const mesh::AxisRef& axis);
  std::string NoChainText();

  // ---- where it goes

  /*! \brief The redistribution that made the variable, and those of it. */
  void ExplainMoves();
  /*! \brief Collects the last moves from a variable, whose results something else reads. */
  void CollectEnds(const ir::Expr& var, std::vector<ir::Var>* ends) const;

  Program& program_;
  const FunctionView& view_;
  const ir::Var var_;
  std::string name_;
  std::vector<std::string> lines_;
};

}  // namespace distir::explain
#endif  // DISTIR_EXPLAIN_EXPLAINER_H_
