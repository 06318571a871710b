/*!
 * \file rules/operator.h
 * \brief The record of an operator: all that the compiler knows of it, stated in one place.
 *
 * The file of an operator's family (`ops/`) holds its functions and enters its record. Everything
 * else asks the record: propagation the factor rule, DecomposeSharded the decomposition, PadShards
 * what tails must hold, LegalizeRedistribute what commutes with reductions, LowerDistIR how the
 * worker's call differs from the global one, `docs/operators.md` the summary.
 *
 * Worked example:
 *
 *     const Operators kSoftmax("normalization",
 *                              {"others", "", "", "axis: maximum and sum of the shards"},
 *                              {Operator("relax.nn.softmax", Softmax)
 *                                   .Decompose(DecomposeSoftmax)
 *                                   .Pad(Padding::kDecomposed)});
 *
 * An operator that no record describes is replicated, with one warning that names it.
 */
#ifndef DISTIR_RULES_OPERATOR_H_
#define DISTIR_RULES_OPERATOR_H_

#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "mesh/segments.h"
#include "rules/factor/factor_rule.h"

namespace distir {

namespace decompose {
struct DecomposedCall;
class Writer;
}  // namespace decompose

namespace rules {

using RuleFunction = FactorRule (*)(const OpView& view);
/*! \brief Writes a call of which a decomposed factor is sharded as operators on shards; its value,
 * or a tuple where the call has several results (decompose/algorithm.h). */
using Decomposition = ir::Expr (*)(const decompose::DecomposedCall& call,
                                   decompose::Writer* writer);
/*! \brief Makes attributes of a worker's call: `global` is the call on whole tensors, `local` the
 * call on the worker's, its arguments already local. */
using AttrsFunction = ir::Node (*)(const OpView& global, const OpView& local);
using ArgsFunction = ffi::Array<ir::Expr> (*)(const OpView& global, const OpView& local);
using Condition = bool (*)(const OpView& view);
/*! \brief Segments by which a call moves the elements of its operand along one dimension. */
struct Movement {
  int dim;
  std::vector<mesh::Segment> segments;  // all of the result, but what is filled
  std::string fill = {};                // as of a segment exchange; empty where nothing is filled
};
/*! \brief The movement of a call; nullopt where it moves elements along several dimensions, or it
 * is not known which. */
using MovementFunction = std::optional<Movement> (*)(const OpView& view);
/*! \brief The dimension along which a call joins the tensors of a tuple. */
using JoinedDimFunction = int (*)(const OpView& view);
/*! \brief Arithmetic operations of a call on whole tensors, a multiplication and its addition
 * counted as two; 0 where sizes are unknown. */
using OperationsFunction = double (*)(const OpView& view);

/*! \brief Description of a rule's dimensions, in words. */
struct Summary {
  const char* parallel;                // dimensions that every shard computes alone
  const char* reduced = "";            // dimensions whose shards are combined, and how
  const char* needs_replication = "";  // dimensions that every device needs all of
  const char* decomposed = "";  // dimensions that a decomposition keeps sharded, and which; or how
                                // it is distributed where factors do not say it
  const char* replicated = "";  // why nothing is sharded; empty otherwise
};

/*! \brief Along which factors a call may be padded (rules/tails.h). */
enum class Padding {
  kNone,
  kParallel,
  // And decomposed ones: an element follows from its position in the whole, if at all, or is looked
  // up by it; or a tail changes nothing (`decomposed_tail`).
  kPositions,
  kAll,         // parallel ones and reductions
  kDecomposed,  // all of these and decomposed ones: their decomposition takes uneven shards
};

/*! \brief Value of a tail: what stands behind the last element of a padded dimension. */
enum class Tail { kAny, kZero, kOne, kLowest, kHighest, kNotANumber };
/*! \brief Tail of the first operand along a decomposed factor of a call: one that changes nothing
 * of the result. */
using TailFunction = Tail (*)(const OpView& view);

/*! \brief Requirement on the tails of operands that no reduction asks for. */
enum class OperandTails {
  kAny,
  kDivisor,  // ones in the second operand if it is of integers: dividing them by 0 ends the process
  kPositions,  // zeros in all but the first: a position outside would be read, or written to
};

/*! \brief The operands in which an operator commutes with a reduction; no other one is partial. */
enum class In {
  kNone,   // it does not commute
  kAll,    // all of them together
  kOne,    // exactly one, whichever
  kFirst,  // the first one alone
  kAny,    // any of them, one or more
};

/*! \brief Form of accumulation in TVM's kernel of an operator, which `dx.build` computes in float32
 * for smaller floats (`compile/kernels/legalizations/accumulation.py`). */
enum class Accumulation {
  kNone,      // it does not, or no more than a few
  kProducts,  // in the type of the attribute "out_dtype"
  kSums,      // in the type of its operands
  kScans,     // in the type of the attribute "dtype"; a pass before LegalizeOps makes the kernel
};

/*! \brief With which reductions an operator commutes (rules/linearity.h). */
struct Commutation {
  In sum = In::kNone;
  In mean = In::kNone;
  In max = In::kNone;
  In min = In::kNone;
  In prod = In::kNone;
  Condition condition = nullptr;  // null: always

  constexpr Commutation& Sum(In in) { return Set(&sum, in); }
  constexpr Commutation& Mean(In in) { return Set(&mean, in); }
  constexpr Commutation& Max(In in) { return Set(&max, in); }
  constexpr Commutation& Min(In in) { return Set(&min, in); }
  constexpr Commutation& Prod(In in) { return Set(&prod, in); }
  constexpr Commutation& If(Condition holds) { return Set(&condition, holds); }

  bool any() const {
    return sum != In::kNone || mean != In::kNone || max != In::kNone || min != In::kNone ||
           prod != In::kNone;
  }

 private:
  template <typename T>
  constexpr Commutation& Set(T* field, T value) {
    *field = value;
    return *this;
  }
};

/*! \brief Commutation of operators that only move elements. Any value is also the mean, maximum or
 * minimum of equal ones. So under these reductions, an operator that moves several operands to one
 * result may have such values among them. */
inline constexpr Commutation kMoving =
    Commutation().Sum(In::kAll).Mean(In::kAny).Max(In::kAny).Min(In::kAny).Prod(In::kAll);
/*! \brief Commutation of operators that only move elements of their first operand. */
inline constexpr Commutation kMovingFirst =
    Commutation().Sum(In::kFirst).Mean(In::kFirst).Max(In::kFirst).Min(In::kFirst).Prod(In::kFirst);
/*! \brief Commutation of increasing functions, defined everywhere. */
inline constexpr Commutation kIncreasing = Commutation().Max(In::kFirst).Min(In::kFirst);

struct Operator {
  Operator(const char* name, RuleFunction rule) : name(name), rule(rule) {}

  const char* name;  // "relax.matmul"
  /*! \brief Null where the operator is only described: it never has a rule of its own. */
  RuleFunction rule;
  Decomposition decomposition = nullptr;
  Padding padding = Padding::kNone;
  /*! \brief Along the major factors of dimensions too, in whole grains. */
  bool pads_grains = false;
  /*! \brief Null: any tail of a decomposed factor changes nothing. */
  TailFunction decomposed_tail = nullptr;
  /*! \brief Tail along the reduction of an operator that counts elements, which is counted only
   * with all others: of a padded call, the least of the result and the true number is taken. Null:
   * the tail is the neutral element of the reduction. */
  TailFunction counted_tail = nullptr;
  OperandTails tails = OperandTails::kAny;
  /*! \brief Sum operator of a mean, with the same attributes. If a reduced dimension is padded, the
   * mean is written as this sum divided by the true number of elements. */
  const char* sum = nullptr;
  /*! \brief Every element of the result follows from those at its place in the operands. */
  bool is_elementwise = false;
  /*! \brief It only moves elements, so that a tail of zeros stays one. */
  bool keeps_zeros = false;
  /*! \brief The result has the elements of the operand in their order: it can lie where that does.
   */
  bool is_view = false;
  Commutation commutation;
  /*! \brief Index of the argument that states the result's shape and must become the local one; -1:
   * none. */
  int shape_argument = -1;
  /*! \brief The attributes of the worker's call, where those of the global one mean something else
   * on local shapes; null: the same. */
  AttrsFunction local_attrs = nullptr;
  /*! \brief Arguments of the worker's call that are no tensors; null: the same. */
  ArgsFunction local_args = nullptr;
  /*! \brief Null: they follow from the factor rule. */
  OperationsFunction operations = nullptr;
  Accumulation accumulation = Accumulation::kNone;
  /*! \brief True if a call accumulates; null: every call does. */
  Condition accumulates = nullptr;
  /*! \brief Its tensors, or some of them, stand in a tuple. */
  bool takes_tuple = false;
  /*! \brief Null for operators that do not only move elements of one tensor (rules/parts.h). */
  MovementFunction movement = nullptr;
  /*! \brief Null for operators that join no tensors. */
  JoinedDimFunction joined_dim = nullptr;
  const char* family = "";
  Summary summary = {""};

  Operator& Decompose(Decomposition function) { return Set(&decomposition, function); }
  Operator& Pad(Padding along) { return Set(&padding, along); }
  Operator& PadGrains() { return Set(&pads_grains, true); }
  Operator& DecomposedTail(TailFunction needed) { return Set(&decomposed_tail, needed); }
  Operator& CountedTail(TailFunction needed) { return Set(&counted_tail, needed); }
  Operator& Tails(OperandTails needed) { return Set(&tails, needed); }
  Operator& IsMeanOf(const char* sum_operator) { return Set(&sum, sum_operator); }
  Operator& IsElementwise() { return Set(&is_elementwise, true); }
  Operator& KeepsZeros() { return Set(&keeps_zeros, true); }
  Operator& IsView() { return Set(&is_view, true); }
  Operator& Commutes(const Commutation& with) { return Set(&commutation, with); }
  Operator& ShapeArgument(int index) { return Set(&shape_argument, index); }
  Operator& TakesTuple() { return Set(&takes_tuple, true); }
  Operator& Moves(MovementFunction function) { return Set(&movement, function); }
  Operator& Joins(JoinedDimFunction function) { return Set(&joined_dim, function).TakesTuple(); }
  Operator& LocalAttrs(AttrsFunction function) { return Set(&local_attrs, function); }
  Operator& LocalArgs(ArgsFunction function) { return Set(&local_args, function); }
  Operator& Operations(OperationsFunction function) { return Set(&operations, function); }
  Operator& Adds(Accumulation in, Condition condition = nullptr) {
    return Set(&accumulation, in).Set(&accumulates, condition);
  }

 private:
  template <typename T, typename U>
  Operator& Set(T* field, const U& value) {
    *field = value;
    return *this;
  }
};

/*! \brief Enters operators that share a family and a summary when the library is loaded. */
class Operators {
 public:
  Operators(const char* family, const Summary& summary, std::initializer_list<Operator> operators);
};

/*! \brief Operators that need replication, because of `reason`. */
class ReplicatedOperators {
 public:
  ReplicatedOperators(const char* family, const char* reason,
                      std::initializer_list<const char*> names);
};

/*! \brief Operators that no rule decides: they are distributed as `decomposed` says. */
class DescribedOperators {
 public:
  DescribedOperators(const char* family, const char* decomposed,
                     std::initializer_list<const char*> names);
};

/*! \brief The record of an operator that has a rule, or null. */
const Operator* FindOperator(const ir::Expr& op);
/*! \brief All records, ordered by name. */
std::vector<Operator> AllOperators();

}  // namespace rules
}  // namespace distir
#endif  // DISTIR_RULES_OPERATOR_H_
