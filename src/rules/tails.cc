#include "rules/tails.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <unordered_map>
#include <vector>

namespace distir {
namespace rules {

namespace {

const ir::AttrField kTakeMode("relax.attrs.TakeAttrs", "mode");

/*! \brief Along which factors the operators of a family, or one operator, may be padded. */
enum class Padding {
  kNone,
  kParallel,
  // And special ones: an element follows from its position in the whole, if at all, or is looked up
  // by it.
  kPositions,
  kAll,       // parallel ones and reductions
  kExpanded,  // all of these and special ones: their algorithm takes uneven shards
};

struct PaddingOf {
  const char* name;
  Padding padding;
};

constexpr PaddingOf kFamilies[] = {
    {"attention", Padding::kParallel},
    {"broadcast", Padding::kParallel},
    {"contraction", Padding::kAll},
    {"convolution", Padding::kExpanded},
    {"create", Padding::kParallel},
    {"elementwise", Padding::kParallel},
    {"elementwise binary", Padding::kParallel},
    {"elementwise ternary", Padding::kParallel},
    {"elementwise unary", Padding::kParallel},
    {"gather", Padding::kPositions},
    {"identity", Padding::kParallel},
    {"normalization", Padding::kExpanded},
    {"pooling", Padding::kParallel},
    {"quantization", Padding::kParallel},
    {"reduction", Padding::kAll},
    {"scatter", Padding::kParallel},
    {"shape", Padding::kAll},
};

// These come before their families.
constexpr PaddingOf kOperators[] = {
    {"relax.arange", Padding::kPositions},
    {"relax.concat", Padding::kExpanded},
    {"relax.cumprod", Padding::kPositions},
    {"relax.cumsum", Padding::kPositions},
    {"relax.eye", Padding::kPositions},
    {"relax.eye_like", Padding::kPositions},
    {"relax.flip", Padding::kExpanded},
    {"relax.hamming_window", Padding::kNone},    // its values follow from its size
    {"relax.layout_transform", Padding::kNone},  // may split what is padded
    {"relax.median", Padding::kNone},            // sorts: a tail may be no number
    {"relax.mean", Padding::kExpanded},
    {"relax.nn.avg_pool1d", Padding::kExpanded},
    {"relax.nn.avg_pool2d", Padding::kExpanded},
    {"relax.nn.avg_pool3d", Padding::kExpanded},
    {"relax.nn.max_pool1d", Padding::kExpanded},
    {"relax.nn.max_pool2d", Padding::kExpanded},
    {"relax.nn.max_pool3d", Padding::kExpanded},
    {"relax.nn.pad", Padding::kExpanded},
    {"relax.one_hot", Padding::kPositions},
    {"relax.shape_of", Padding::kParallel},
    {"relax.slice_scatter", Padding::kParallel},
    {"relax.split", Padding::kExpanded},
    {"relax.std", Padding::kExpanded},
    {"relax.strided_slice", Padding::kExpanded},
    {"relax.take", Padding::kPositions},
    {"relax.tile", Padding::kExpanded},
    {"relax.tril", Padding::kPositions},
    {"relax.triu", Padding::kPositions},
    {"relax.variance", Padding::kExpanded},
};

// Division of integers by zero ends the process.
constexpr const char* kDivisions[] = {"relax.divide", "relax.floor_divide", "relax.floor_mod",
                                      "relax.mod"};

// Their second operand, or all behind the first, are positions or lengths.
constexpr const char* kAtPositions[] = {"relax.gather_elements",
                                        "relax.gather_nd",
                                        "relax.index_tensor",
                                        "relax.multinomial_from_uniform",
                                        "relax.reverse_sequence",
                                        "relax.scatter_elements",
                                        "relax.take"};

constexpr const char* kMoves[] = {"relax.expand_dims", "relax.permute_dims", "relax.reshape",
                                  "relax.squeeze", "relax.builtin.stop_lift_params"};

template <size_t n>
Padding Find(const PaddingOf (&table)[n], const char* name, Padding otherwise) {
  for (const PaddingOf& row : table) {
    if (std::strcmp(row.name, name) == 0) return row.padding;
  }
  return otherwise;
}

bool MayReduce(const Factor& factor, const FactorRule& rule) {
  switch (factor.reduction) {
    case mesh::Reduction::kSum:
    case mesh::Reduction::kProd:
    case mesh::Reduction::kMax:
    case mesh::Reduction::kMin:
      return true;
    case mesh::Reduction::kMean:
      // The mean of what is there is its sum over their number.
      for (const Factor& other : rule.factors) {
        if (other.kind == FactorKind::kReduction && other.size < 0) return false;
      }
      return true;
    default:
      return false;
  }
}

/*! \brief Whether operators padded so may be padded along a factor. */
bool Covers(Padding padding, const Factor& factor, const FactorRule& rule) {
  const bool is_expanded = padding == Padding::kExpanded;
  switch (factor.kind) {
    case FactorKind::kParallel:
      return padding != Padding::kNone;
    case FactorKind::kReduction:
      return (is_expanded || padding == Padding::kAll) && MayReduce(factor, rule);
    case FactorKind::kSpecial:
      return is_expanded || padding == Padding::kPositions;
    case FactorKind::kReplicate:
      return false;
  }
  return false;
}

Padding PaddingFor(const RuleEntry& entry) {
  // Entries are unique objects, never freed.
  static thread_local std::unordered_map<const RuleEntry*, Padding> cache;
  auto it = cache.find(&entry);
  if (it == cache.end()) {
    Padding padding = Find(kOperators, entry.op, Find(kFamilies, entry.family, Padding::kNone));
    it = cache.emplace(&entry, padding).first;
  }
  return it->second;
}

template <size_t n>
bool IsOneOf(const ir::Expr& op, const char* const (&names)[n]) {
  if (!ir::Op::Is(op)) return false;
  const ffi::String name = ir::Op::Cast(op).name();
  for (const char* each : names) {
    if (name == each) return true;
  }
  return false;
}

bool IsInteger(const ir::TensorType& type) {
  if (!type.dtype().defined()) return false;
  uint8_t code = type.dtype().dtype().code;
  return code == kDLInt || code == kDLUInt;
}

/*! \brief Whether a call depends on the size of the dimension that it looks up. */
bool BringsWithin(const OpView& view) {
  if (!ir::IsOp(view.call.op(), "relax.take")) return false;
  const std::string mode = kTakeMode.Text(view.call.attrs());
  return mode == "clip" || mode == "wrap";
}

/*! \brief Whether the neutral elements of reductions can be written in the type of a tensor. */
bool HasNeutralElements(const ir::TensorType& type) {
  if (!type.dtype().defined()) return false;
  DLDataType dtype = type.dtype().dtype();
  if (dtype.lanes != 1 || dtype.bits < 8) return false;
  return dtype.code == kDLInt || dtype.code == kDLUInt || dtype.code == kDLFloat ||
         dtype.code == kDLBfloat || dtype.code == kDLBool;
}

}  // namespace

void MarkUneven(const RuleEntry& entry, const OpView& view, FactorRule* rule) {
  Padding padding = PaddingFor(entry);
  if (padding == Padding::kNone) return;
  for (Factor& factor : rule->factors) {
    factor.may_be_uneven = factor.size > 1 && Covers(padding, factor, *rule) &&
                           (factor.kind != FactorKind::kSpecial || !BringsWithin(view));
  }
  RequireWholeDims(view, rule);
}

void RequireWholeDims(const OpView& view, FactorRule* rule) {
  const bool any = std::any_of(rule->factors.begin(), rule->factors.end(),
                               [](const Factor& factor) { return factor.may_be_uneven; });
  if (!any) return;
  auto exclude = [rule](const std::vector<TensorFactors>& tensors,
                        const std::vector<ir::TensorType>& types) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      Sizes sizes = StaticSizes(types[i]);
      for (size_t d = 0; d < tensors[i].size(); ++d) {
        for (int f : tensors[i][d]) {
          Factor& factor = rule->factors[f];
          if (!factor.may_be_uneven) continue;
          bool is_whole = tensors[i][d].size() == 1 && (factor.moves() || sizes[d] == factor.size);
          bool is_writable = factor.kind != FactorKind::kReduction || HasNeutralElements(types[i]);
          factor.may_be_uneven = is_whole && is_writable;
        }
      }
    }
  };
  exclude(rule->operands, view.operands);
  exclude(rule->results, view.results);
}

Tail NeededTail(const OpView& view, const FactorRule& rule, size_t operand, int factor) {
  switch (rule.factors[factor].reduction) {
    case mesh::Reduction::kSum:
    case mesh::Reduction::kMean:
      return Tail::kZero;
    case mesh::Reduction::kProd:
      return Tail::kOne;
    case mesh::Reduction::kMax:
      return Tail::kLowest;
    case mesh::Reduction::kMin:
      return Tail::kHighest;
    default:
      break;
  }
  if (operand == 1 && IsOneOf(view.call.op(), kDivisions) && IsInteger(view.operands[1]))
    return Tail::kOne;
  // A position outside of the table would be read, or written to.
  if (operand > 0 && IsOneOf(view.call.op(), kAtPositions)) return Tail::kZero;
  return Tail::kAny;
}

bool IsExpandedUneven(const ir::Expr& op) {
  const RuleEntry* entry = FindRule(op);
  return entry != nullptr && PaddingFor(*entry) == Padding::kExpanded;
}

bool MovesTails(const ir::Expr& op) { return IsOneOf(op, kMoves); }

}  // namespace rules
}  // namespace distir
