/*!
 * \file rules/factor/factor_rule.h
 * \brief Sharding semantics of an operator call: an einsum-like map from dimensions to factors.
 *
 * Each dimension of each tensor operand and result is a list of factors, major to minor, whose
 * sizes multiply to the size of the dimension. Tensors that share a factor are sharded alike along
 * it.
 *
 * Worked example: matmul of (8, 16) and (16, 32) has factors i=8, j=32 (parallel) and k=16
 * (reduction sum); operands [i][k], [k][j], result [i][j]. Reshape of (8, 4) to (2, 16) has factors
 * a=2, b=4, c=4; operand [a b][c], result [a][b c].
 */
#ifndef DISTIR_RULES_FACTOR_FACTOR_RULE_H_
#define DISTIR_RULES_FACTOR_FACTOR_RULE_H_

#include <algorithm>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include "ir/node.h"
#include "mesh/sharding.h"
#include "support/small_vector.h"

namespace distir::rules {

namespace ffi = tvm::ffi;

/*! \brief Elements that the shards of a decomposed factor get from each other. */
enum class Exchanged {
  kNothing,     // or partial results only: those of factors that no result has
  kStatistics,  // reduced over all shards
  kMoved,       // elements whose place in the result is on another shard: at most a shard
  kNeighbours,  // elements beyond the ends of a shard
};

/*! \brief Every shard computes its part alone: the rows of a matmul. */
struct ParallelFactor {
  bool operator==(const ParallelFactor&) const { return true; }
};

/*! \brief Sharding it makes the results partial, to be combined: the contracted dimension of a
 * matmul. */
struct ReductionFactor {
  mesh::Reduction reduction;
  bool operator==(const ReductionFactor& other) const { return reduction == other.reduction; }
};

/*! \brief The operator needs all of it on every device: what is sorted. */
struct ReplicatedFactor {
  bool operator==(const ReplicatedFactor&) const { return true; }
};

/*! \brief May be sharded although the operator needs all of it, since the call can be written as
 * operators on shards (decompose/): the dimension that a softmax normalises. The results of these
 * are not partial. */
struct DecomposedFactor {
  Exchanged exchanged = Exchanged::kNothing;
  /*! \brief Fraction of all shards that a shard gets: of the results where elements
   * move, else of the operands. */
  double part = 0;
  /*! \brief Blocked: propagation does not carry a sharding through the call along it. If operand
   * and result both have the sharding for other reasons, the call is computed so. Example: the
   * dimension that a split cuts into queries, keys and values. Other factors are pass-through. */
  bool is_blocked = false;
  /*! \brief It is never padded, such as the kernel of a convolution: zeros behind it would make NaN
   * of infinities. */
  bool must_divide = false;

  bool operator==(const DecomposedFactor& other) const {
    return exchanged == other.exchanged && part == other.part && is_blocked == other.is_blocked &&
           must_divide == other.must_divide;
  }
};

using FactorKind =
    std::variant<ParallelFactor, ReductionFactor, ReplicatedFactor, DecomposedFactor>;

/*! \brief A decomposed factor where the call can be written on shards of it, else one that needs
 * replication. */
inline FactorKind DecomposedIf(bool can_decompose) {
  if (can_decompose) return DecomposedFactor();
  return ReplicatedFactor();
}

struct Factor {
  int64_t size;  // -1: symbolic
  FactorKind kind;
  /*! \brief Its shards need not divide it: its dimensions are padded (rules/tails.h). A factor that
   * needs replication never says so. */
  bool may_be_uneven = false;
  /*! \brief May be uneven although it is only the major part of some dimension, as heads are of
   * (heads * head size): that dimension is cut between its elements, and nowhere else. */
  bool is_grained = false;

  template <typename Kind>
  bool Is() const {
    return std::holds_alternative<Kind>(kind);
  }
  /*! \brief Reduction that combines its shards; kNone for factors of other kinds. */
  mesh::Reduction reduction() const {
    auto reduced = std::get_if<ReductionFactor>(&kind);
    return reduced == nullptr ? mesh::Reduction::kNone : reduced->reduction;
  }
  /*! \brief Null for factors of other kinds. */
  const DecomposedFactor* decomposed() const { return std::get_if<DecomposedFactor>(&kind); }
  bool must_divide() const { return decomposed() != nullptr && decomposed()->must_divide; }
  bool is_blocked() const { return decomposed() != nullptr && decomposed()->is_blocked; }
  /*! \brief True if the dimensions that it makes up may have other extents than its size: elements
   * move between its shards, whatever each of them has. */
  bool moves() const {
    return decomposed() != nullptr && (decomposed()->exchanged == Exchanged::kMoved ||
                                       decomposed()->exchanged == Exchanged::kNeighbours);
  }

  bool operator==(const Factor& other) const {
    return size == other.size && kind == other.kind && may_be_uneven == other.may_be_uneven &&
           is_grained == other.is_grained;
  }
};

/*! \brief Factors of one dimension, by index, major to minor. */
struct FactorList : SmallVector<int, 2> {
  using SmallVector::SmallVector;
  /*! \brief Elements of the dimension, if elements move between dimensions of different extents
   * along its only factor; -1: as its factors say. If it has fewer elements than shards, that of an
   * operand is replicated and a result takes a prefix of the axes; longer ones stay sharded. */
  int64_t extent = -1;

  /*! \brief True if there is an element for each of this many shards, as far as `extent` says. */
  bool HasRoomFor(int64_t shards) const { return extent < 0 || shards <= extent; }
  friend bool operator==(const FactorList& a, const FactorList& b) {
    return a.extent == b.extent && std::equal(a.begin(), a.end(), b.begin(), b.end());
  }
};
using TensorFactors = std::vector<FactorList>;  // one list per dimension

struct FactorRule {
  std::vector<Factor> factors;
  std::vector<TensorFactors> operands;  // the call's tensor operands in order, tuples flattened
  std::vector<TensorFactors> results;   // the result, or the fields of a tuple result
  /*! \brief Every factor is parallel: a rule of first priority in propagation. */
  bool is_pass_through = false;

  /*! \brief True if shards of a factor are combined to the results, which do not have it. */
  bool IsCombined(size_t factor) const;
  /*! \brief True if a dimension of these factors is not computed by shards. */
  bool NeedsReplication(const FactorList& dimension) const {
    return dimension.empty() || factors[dimension[0]].Is<ReplicatedFactor>();
  }
  /*! \brief True if no operand has a factor. */
  bool IsOnlyInResults(size_t factor) const;
  /*! \brief True if dimension `dim` of a result is one factor that no operand has, and that may be
   * sharded: what a call makes of nothing. */
  bool IsMade(size_t result, size_t dim) const;
  bool operator==(const FactorRule& other) const;
};

/*! \brief Keeps one copy of equal rules: most operators of a model have the rule of another. */
class RuleSet {
 public:
  /*! \brief The rule as the set has it; valid as long as the set is. */
  const FactorRule* Add(FactorRule rule) { return &*rules_.insert(std::move(rule)).first; }

 private:
  struct Hash {
    size_t operator()(const FactorRule& rule) const;
  };
  std::unordered_set<FactorRule, Hash> rules_;
};

struct KernelRule;
class KernelTable;

/*! \brief A call as rules see it: tensors only, tuples flattened. */
struct OpView {
  ir::Call call;
  std::vector<ir::TensorType> operands;
  std::vector<ir::TensorType> results;
  /*! \brief Kernel of an R.call_tir; null for other calls and if the module is not known. */
  const KernelRule* kernel = nullptr;
  /*! \brief The function that the call is in, whose user is warned of what a rule does not shard;
   * null: nobody is. Only propagation warns, since all passes ask for rules. */
  const std::string* function = nullptr;
};

/*!
 * \brief The tensors of a call. Types of operands may be Tensor or DTensor (then its tensor type
 * counts).
 * \param result_ty The type of the call's value.
 * \param kernels The kernels of the module, where it is known.
 */
OpView ViewCall(const ir::Call& call, const ir::Type& result_ty, KernelTable* kernels = nullptr);
/*! \brief The tensor types in a type, tuples flattened; DTensor counts as its tensor type. */
void CollectTensorTypes(const ir::Type& type, std::vector<ir::TensorType>* out);

/*! \brief Number of dimensions that carry sharding: 0 where the rank is unknown. */
int ShardableRank(const ir::TensorType& type);
using Sizes = SmallVector<int64_t, 4>;
/*! \brief Sizes of the dimensions, -1 where symbolic or unknown; length ShardableRank. */
Sizes StaticSizes(const ir::TensorType& type);

/*! \brief True if dimension `a_dim` of `a` and `b_dim` of `b` are provably of one size. */
bool SameSize(const ir::TensorType& a, int a_dim, const ir::TensorType& b, int b_dim);

/*! \brief Builds a rule dimension by dimension. */
class RuleBuilder {
 public:
  explicit RuleBuilder(const OpView& view);
  /*! \brief A new factor; returns its index. */
  int Add(Factor factor);
  int Parallel(int64_t size) { return Add({size, ParallelFactor()}); }
  int Reduce(int64_t size, mesh::Reduction reduction) {
    return Add({size, ReductionFactor{reduction}});
  }
  int Decomposed(int64_t size, Exchanged exchanged = Exchanged::kNothing, double part = 0) {
    return Add({size, DecomposedFactor{exchanged, part}});
  }
  int NeedsReplication(int64_t size) { return Add({size, ReplicatedFactor()}); }
  /*! \brief Appends a factor to a dimension; `extent` as FactorList has it. */
  void Operand(size_t tensor, int dim, int factor, int64_t extent = -1) {
    rule_.operands[tensor][dim].push_back(factor);
    rule_.operands[tensor][dim].extent = extent;
  }
  void Result(size_t tensor, int dim, int factor, int64_t extent = -1) {
    rule_.results[tensor][dim].push_back(factor);
    rule_.results[tensor][dim].extent = extent;
  }
  void ForceReplicate(int factor) { rule_.factors[factor].kind = ReplicatedFactor(); }
  FactorRule Finish();

 private:
  FactorRule rule_;
};

/*! \brief The rule of a call whose operands and results all need replication. */
FactorRule ReplicateAll(const OpView& view);
/*! \brief The rule of a value passed on unchanged: one operand, one result, the same factor per
 * dimension. */
FactorRule IdentityRule(const Sizes& sizes);

}  // namespace distir::rules
#endif  // DISTIR_RULES_FACTOR_FACTOR_RULE_H_
