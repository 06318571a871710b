// Recognises softmax, norms, lookups, losses and windows in the statements of a kernel.
#include "unfuse/operator_kernels.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "ir/make_operators.h"
#include "ir/symbolic.h"
#include "ir/tvm/legalize.h"
#include "support/dtypes.h"
#include "unfuse/moved_elements.h"
#include "unfuse/statements.h"
#include "unfuse/values.h"
#include "unfuse/windows.h"

namespace distir::unfuse {

namespace {

// ---- what a window of statements looks like

enum class Reduced { kMaximum, kSum, kSeveral };

/*! \brief A reduction: what it reads, along which of its dimensions, and how. */
struct Reduction {
  ir::Var source;
  std::vector<bool> along;
  Reduced kind;
};

std::optional<Reduction> ReadReduction(const ir::Stmt& stmt) {
  const ir::SBlock block = BlockOf(stmt);
  if (!block.defined() || !block.init().defined() || block.reads().empty()) return std::nullopt;
  Reduction found{block.reads()[0].source(), {}, Reduced::kSeveral};
  if (auto store = ir::BufferStore::Cast(block.body()); store.defined()) {
    const ir::BinaryExpr update = ir::BinaryExpr::Cast(store.value());
    if (!update.defined()) return std::nullopt;
    if (update.kind() != ir::BinaryKind::kMax && update.kind() != ir::BinaryKind::kAdd)
      return std::nullopt;
    found.kind = update.kind() == ir::BinaryKind::kMax ? Reduced::kMaximum : Reduced::kSum;
    // Products are read from two tensors.
    const bool is_of_one =
        std::all_of(block.reads().begin(), block.reads().end(), [&](const ir::TensorRegion& read) {
          return read.source().same_as(found.source) || read.source().same_as(store.buffer());
        });
    if (!is_of_one) return std::nullopt;
  }
  bool any = false;
  for (const ir::Range& range : block.reads()[0].region()) {
    const bool is_along = std::any_of(block.iter_vars().begin(), block.iter_vars().end(),
                                      [&](const ir::IterVar& iterator) {
                                        return iterator.kind() == ir::IteratorKind::kReduction &&
                                               iterator.var().same_as(range.min());
                                      });
    found.along.push_back(is_along);
    any = any || is_along;
  }
  return any ? std::optional(std::move(found)) : std::nullopt;
}

/*! \brief Adds the numbers that are added to something in a value. */
void CollectAddends(const ir::Expr& value, std::set<double>* addends) {
  if (auto sum = ir::BinaryExpr::Cast(value);
      sum.defined() && sum.kind() == ir::BinaryKind::kAdd && ir::FloatImm::Is(sum.b()))
    addends->insert(ir::FloatImm::Cast(sum.b()).value());
  ir::VisitOperands(value, [addends](const ir::Expr& each) { CollectAddends(each, addends); });
}

/*! \brief Input, first reduction and addends of the statements that candidates are made from. */
struct Window {
  ir::Var x;
  Reduction first;           // of x, or of a tensor made from it
  std::set<double> addends;  // one may be an epsilon
};

// ---- the operators

DLDataType DtypeOf(const Window& window) {
  return ir::BufferType::Cast(window.x.ty()).element_type();
}

ir::TensorType TypeLike(const Window& window, const ir::NodeArray<ir::Expr>& shape) {
  return ir::MakeTensorType(shape, DtypeOf(window));
}

ffi::Array<int64_t> Axes(const std::vector<bool>& along) {
  ffi::Array<int64_t> axes;
  for (size_t d = 0; d < along.size(); ++d) {
    if (along[d]) axes.push_back(static_cast<int64_t>(d));
  }
  return axes;
}

Candidates Softmaxes(const Window& window) {
  const ffi::Array<int64_t> axes = Axes(window.first.along);
  if (axes.size() != 1) return {};
  Candidates found;
  for (const ir::GlobalFunction* make : {&ir::make::kNnSoftmax, &ir::make::kNnLogSoftmax}) {
    found.push_back({{TensorTypeOf(window.x)},
                     [make, axis = axes[0]](const auto& x) { return (*make)(x[0], axis); }});
  }
  return found;
}

/*! \brief The types of x and of weights of some of its dimensions. */
std::vector<ir::TensorType> WithWeights(const Window& window, const std::vector<bool>& dims,
                                        size_t num_weights) {
  const ir::NodeArray<ir::Expr>& all = ShapeOf(window.x);
  ffi::Array<ir::Expr> some;
  for (size_t d = 0; d < all.size(); ++d) {
    if (dims[d]) some.push_back(all[d]);
  }
  std::vector<ir::TensorType> types(1 + num_weights, TypeLike(window, some));
  types[0] = TensorTypeOf(window.x);
  return types;
}

Candidates LayerNorms(const Window& window) {
  Candidates found;
  for (double epsilon : window.addends) {
    found.push_back({WithWeights(window, window.first.along, 2),
                     [axes = Axes(window.first.along), epsilon](const auto& x) {
                       return ir::make::kNnLayerNorm(x[0], x[1], x[2], axes, epsilon, true, true);
                     }});
  }
  return found;
}

Candidates RmsNorms(const Window& window) {
  Candidates found;
  if (window.first.along.size() != ShapeOf(window.x).size()) return found;
  for (double epsilon : window.addends) {
    found.push_back({WithWeights(window, window.first.along, 1),
                     [axes = Axes(window.first.along), epsilon](const auto& x) {
                       return ir::make::kNnRmsNorm(x[0], x[1], axes, epsilon);
                     }});
  }
  return found;
}

/*! \brief The mask of one of some dimensions. */
std::vector<bool> Only(size_t dim, size_t num_dims) {
  std::vector<bool> mask(num_dims, false);
  mask[dim] = true;
  return mask;
}

Candidates InstanceNorms(const Window& window) {
  Candidates found;
  const std::vector<bool>& along = window.first.along;
  for (size_t channel = 0; channel < along.size(); ++channel) {
    if (along[channel]) continue;
    for (double epsilon : window.addends) {
      found.push_back(
          {WithWeights(window, Only(channel, along.size()), 2),
           [axes = Axes(along), channel = static_cast<int64_t>(channel), epsilon](const auto& x) {
             return ir::make::kNnInstanceNorm(x[0], x[1], x[2], channel, axes, epsilon, true, true);
           }});
    }
  }
  return found;
}

// The reduction is of x with its channels in two dimensions, groups and channels of one.
Candidates GroupNorms(const Window& window) {
  Candidates found;
  const ir::NodeArray<ir::Expr>&whole = ShapeOf(window.x), &apart = ShapeOf(window.first.source);
  if (apart.size() != whole.size() + 1) return found;
  for (size_t channel = 0; channel < whole.size(); ++channel) {
    const int64_t groups = ir::StaticDim(apart[channel]);
    std::vector<bool> along = window.first.along;
    if (groups < 1 || along[channel] || !along[channel + 1]) continue;
    along.erase(along.begin() + static_cast<std::ptrdiff_t>(channel) + 1);
    for (double epsilon : window.addends) {
      found.push_back({WithWeights(window, Only(channel, whole.size()), 2),
                       [groups, channel = static_cast<int64_t>(channel), axes = Axes(along),
                        epsilon](const auto& x) {
                         return ir::make::kNnGroupNorm(x[0], x[1], x[2], groups, channel, axes,
                                                       epsilon, true, true);
                       }});
    }
  }
  return found;
}

Candidates Variances(const Window& window) {
  Candidates found;
  for (const ir::GlobalFunction* make : {&ir::make::kStd, &ir::make::kVariance}) {
    for (bool keepdims : {false, true}) {
      found.push_back({{TensorTypeOf(window.x)},
                       [make, axes = Axes(window.first.along), keepdims](const auto& x) {
                         return (*make)(x[0], axes, keepdims);
                       }});
    }
  }
  return found;
}

Candidates PositionsOfExtremes(const Window& window) {
  const ffi::Array<int64_t> axes = Axes(window.first.along);
  if (axes.size() != 1) return {};
  Candidates found;
  for (const ir::GlobalFunction* make : {&ir::make::kArgmax, &ir::make::kArgmin}) {
    for (bool keepdims : {false, true}) {
      found.push_back({{TensorTypeOf(window.x)},
                       [make, axis = ffi::Optional<int64_t>(axes[0]), keepdims](const auto& x) {
                         return (*make)(x[0], axis, keepdims);
                       }});
    }
  }
  return found;
}

/*! \brief Adds the integers in a value. */
void CollectIntegers(const ir::Expr& value, std::set<int64_t>* integers) {
  if (auto number = ir::IntImm::Cast(value); number.defined()) integers->insert(number.value());
  ir::VisitOperands(value, [integers](const ir::Expr& each) { CollectIntegers(each, integers); });
}

// loss[i] = -x[i, target[i]] * weight[target[i]] if target[i] != ignored else 0. Without weights a
// statement in front of it makes a vector of ones.
Candidates NllLosses(const ir::PrimFunc& kernel, const std::vector<ir::Stmt>& statements,
                     size_t begin) {
  Candidates found;
  const ir::SBlock first = BlockOf(statements[begin]);
  const bool has_weights = !first.defined() || !first.reads().empty();
  const size_t at = has_weights ? begin : begin + 1;
  const ir::SBlock block = at < statements.size() ? BlockOf(statements[at]) : ir::SBlock();
  auto store = block.defined() ? ir::BufferStore::Cast(block.body()) : ir::BufferStore();
  if (!store.defined() || block.reads().size() != 3) return found;
  const ir::Var targets = block.reads()[0].source(), x = block.reads()[1].source(),
                weights = block.reads()[2].source();
  if (!Contains(kernel.params(), targets) || !Contains(kernel.params(), x) ||
      ShapeOf(x).size() != ShapeOf(targets).size() + 1)
    return found;
  std::vector<ir::TensorType> types{TensorTypeOf(x), TensorTypeOf(targets)};
  if (has_weights) types.push_back(TensorTypeOf(weights));
  std::set<int64_t> integers;
  CollectIntegers(store.value(), &integers);
  for (int64_t ignored : integers) {
    for (const char* reduction : {"mean", "sum", "none"}) {
      found.push_back({types, [=, reduction = ffi::String(reduction)](const auto& all) {
                         return ir::make::kNnNllLoss(
                             all[0], all[1], has_weights ? ffi::Any(all[2]) : ffi::Any(nullptr),
                             reduction, ignored);
                       }});
    }
  }
  return found;
}

/*! \brief First statements of an operator's kernel, and the candidates for it. */
struct Form {
  size_t before;  // statements in front of the first reduction
  Reduced first;
  Candidates (*candidates)(const Window& window);
  bool takes_integers = false;
};
constexpr Form kForms[] = {
    {0, Reduced::kMaximum, Softmaxes},
    {0, Reduced::kSum, LayerNorms},
    {2, Reduced::kSum, RmsNorms},  // a cast and the square
    {0, Reduced::kSum, Variances},
    {1, Reduced::kSeveral, GroupNorms},  // a reshape
    {2, Reduced::kSeveral, GroupNorms},  // a reshape and a cast
    {0, Reduced::kSeveral, InstanceNorms},
    {0, Reduced::kSeveral, PositionsOfExtremes, /*takes_integers=*/true},
};

std::optional<Window> ReadWindow(const Form& form, const std::vector<ir::Stmt>& statements,
                                 size_t begin) {
  const size_t first = begin + form.before;
  if (first + 1 >= statements.size()) return std::nullopt;  // something follows the reduction
  auto reduction = ReadReduction(statements[first]);
  if (!reduction || reduction->kind != form.first) return std::nullopt;
  const ir::SBlock block = BlockOf(statements[begin]);
  if (!block.defined() || block.reads().empty()) return std::nullopt;
  Window window{block.reads()[0].source(), std::move(*reduction), {}};
  if (!form.takes_integers && !IsFloat(DtypeOf(window))) return std::nullopt;
  for (size_t i = first; i < statements.size(); ++i) {
    const ir::SBlock each = BlockOf(statements[i]);
    auto store = each.defined() ? ir::BufferStore::Cast(each.body()) : ir::BufferStore();
    if (store.defined()) CollectAddends(store.value(), &window.addends);
  }
  return window;
}

// ---- comparison

Buffers BuffersWrittenBy(const ir::Stmt& stmt) {
  Buffers written;
  const ir::SBlock block = BlockOf(stmt);
  if (!block.defined()) return written;
  for (const ir::TensorRegion& region : block.writes()) written.push_back(region.source());
  return written;
}

/*! \brief Some statements of a kernel as a kernel of their own: parameters are, in the order of
 * their first use, what the statements read and others write, and behind them their result. */
struct Extract {
  Buffers takes;
  ir::Var gives;
  ir::PrimFunc kernel;
};

/*! \brief Statements `begin` to `end`; nullopt where they have several results. */
std::optional<Extract> ExtractOf(const ir::PrimFunc& kernel, const std::vector<ir::Stmt>& all,
                                 size_t begin, size_t end) {
  Section section, others;
  Extract extract;
  Buffers written;
  for (size_t i = 0; i < all.size(); ++i) (begin <= i && i < end ? section : others).Add(all[i]);
  for (const ir::Stmt& stmt : section.statements) {
    for (const ir::Var& used : ir::UsedVars(stmt)) {
      if (ir::BufferType::Is(used.ty()) && !Contains(written, used) &&
          !Contains(extract.takes, used) && !Contains(BuffersWrittenBy(stmt), used))
        extract.takes.push_back(used);
    }
    for (const ir::Var& each : BuffersWrittenBy(stmt)) {
      if (Contains(extract.takes, each)) return std::nullopt;  // in place
      if (!Contains(written, each)) written.push_back(each);
    }
  }
  ffi::Array<ir::Var> inside;
  for (const ir::Var& each : written) {
    if (!Contains(kernel.params(), each) && !others.Uses(each)) {
      inside.push_back(each);
    } else if (extract.gives.defined()) {
      return std::nullopt;
    } else {
      extract.gives = each;
    }
  }
  if (!extract.gives.defined()) return std::nullopt;
  ffi::Array<ir::Var> of_extract(extract.takes.begin(), extract.takes.end());
  of_extract.push_back(extract.gives);
  if (!StatesSizes(of_extract, section, kernel)) return std::nullopt;
  extract.kernel = MakeKernel(kernel, of_extract, inside, section);
  return extract;
}

/*! \brief The kernel that TVM makes of a candidate; null where it has none for these types. */
ir::PrimFunc KernelOf(const Candidate& candidate, const ffi::Array<ir::Expr>& operands) {
  try {
    return ir::LegalizedKernel(Typed(candidate.make(operands)));
  } catch (const ffi::Error&) {
    return ir::PrimFunc();
  }
}

/*! \brief The statements from `begin` on as a candidate, where they are what TVM makes of it. */
std::optional<KernelOperator> Match(const Candidate& candidate, const ir::PrimFunc& kernel,
                                    const std::vector<ir::Stmt>& statements, size_t begin) {
  ffi::Array<ir::Expr> operands;
  for (const ir::TensorType& type : candidate.operands)
    operands.push_back(ir::MakeVar("x", type, /*dataflow=*/false));
  const ir::PrimFunc legalized = KernelOf(candidate, operands);
  if (!legalized.defined()) return std::nullopt;
  const std::vector<ir::Stmt> wanted = StatementsOf(legalized);
  const size_t end = begin + wanted.size();
  if (wanted.empty() || end > statements.size()) return std::nullopt;
  const auto theirs = ExtractOf(legalized, wanted, 0, wanted.size());
  const auto ours = ExtractOf(kernel, statements, begin, end);
  if (!theirs || !ours || theirs->takes.size() != operands.size() ||
      ours->takes.size() != operands.size() || !ir::StructurallyEqual(ours->kernel, theirs->kernel))
    return std::nullopt;
  KernelOperator found{wanted.size(), Buffers(operands.size()), ours->gives, candidate.make};
  const auto& params = legalized.params();
  for (size_t i = 0; i < operands.size(); ++i) {
    const auto operand = std::find_if(params.begin(), params.end(), [&](const ir::Var& param) {
      return param.same_as(theirs->takes[i]);
    });
    found.takes[operand - params.begin()] = ours->takes[i];
  }
  return found;
}

}  // namespace

std::optional<KernelOperator> OperatorAt(const ir::PrimFunc& kernel,
                                         const std::vector<ir::Stmt>& statements, size_t begin) {
  const auto match = [&](const Candidates& candidates) -> std::optional<KernelOperator> {
    for (const Candidate& candidate : candidates) {
      if (auto found = Match(candidate, kernel, statements, begin)) return found;
    }
    return std::nullopt;
  };
  for (const Form& form : kForms) {
    const std::optional<Window> window = ReadWindow(form, statements, begin);
    if (!window) continue;
    if (auto found = match(form.candidates(*window))) return found;
  }
  if (auto found = match(NllLosses(kernel, statements, begin))) return found;
  if (auto found = match(Windows(statements, begin))) return found;
  return match(MovesOfElements(kernel, statements[begin]));
}

}  // namespace distir::unfuse
