// Writes calls on separate dimensions, and proves by factor rules that they compute the same.
#include "propagation/separated_call.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "ir/build.h"
#include "ir/make_operators.h"
#include "ir/symbolic.h"
#include "propagation/separated_rule.h"
#include "rules/call/infer_type.h"
#include "rules/factor/axes.h"
#include "rules/operator.h"
#include "rules/registry.h"

namespace distir::propagation {

namespace ffi = tvm::ffi;

namespace {

using rules::Factor;
using rules::FactorList;
using rules::FactorRule;
using rules::TensorFactors;

/*! \brief The dimensions of one tensor, those of merged factors apart; nullopt where such a factor
 * is only a part of one. */
std::optional<Separated> Apart(const ir::TensorType& type, const TensorFactors& factors,
                               const Parts& parts) {
  Separated apart;
  const ir::NodeArray<ir::Expr>& shape = ir::ShapeOf(type);
  for (size_t d = 0; d < factors.size(); ++d) {
    const bool is_merged = std::any_of(factors[d].begin(), factors[d].end(),
                                       [&parts](int f) { return parts[f] != nullptr; });
    if (is_merged && factors[d].size() != 1) return std::nullopt;
    apart.push_back(is_merged ? *parts[factors[d][0]] : Dims{shape[d]});
  }
  return apart;
}

/*! \brief Gives an operand that an elementwise call broadcasts along a merged dimension as many
 * dimensions of size 1 as the dimension is separated into. */
void Broadcast(const Separated& result, Separated* operand) {
  for (size_t d = 0; d < operand->size(); ++d) {
    const size_t along = result.size() - operand->size() + d;
    if ((*operand)[d].size() == 1 && ir::StaticDim((*operand)[d][0]) == 1)
      (*operand)[d].resize(result[along].size(), (*operand)[d][0]);
  }
}

/*! \brief The separate dimensions that these dimensions are; null where there are no such ones. */
std::optional<ffi::Array<int64_t>> NumbersOf(const std::vector<int>& axes,
                                             const Separated& separated) {
  std::vector<int64_t> first = {0};  // of each dimension, its first one apart
  for (const Dims& dims : separated)
    first.push_back(first.back() + static_cast<int64_t>(dims.size()));
  ffi::Array<int64_t> apart;
  for (int axis : axes) {
    if (axis < 0 || axis >= static_cast<int>(separated.size())) return std::nullopt;
    for (int64_t d = first[axis]; d < first[axis + 1]; ++d) apart.push_back(d);
  }
  return apart;
}

/*! \brief The call of a slice, which has its axes among its arguments, with dimensions numbered as
 * in `separated`; null where one of them is merged. Other calls as they are. */
ir::Call Renumbered(const ir::Call& call, const Separated& separated) {
  if (!ir::IsOp(call.op(), "relax.strided_slice")) return call;
  const ir::Tuple axes = ir::Tuple::Cast(call.args()[1]);
  if (!axes.defined()) return ir::Call();
  ffi::Array<ir::Expr> apart;
  for (const ir::Expr& each : axes.fields()) {
    if (!ir::IntImm::Is(each)) return ir::Call();
    const int rank = static_cast<int>(separated.size());
    const int axis = static_cast<int>(ir::IntImm::Cast(each).value());
    const auto numbers = NumbersOf({axis < 0 ? axis + rank : axis}, separated);
    if (!numbers || numbers->size() != 1) return ir::Call();
    apart.push_back(ir::MakeInt((*numbers)[0]));
  }
  ffi::Array<ir::Expr> args = call.args();
  args.Set(1, ir::MakeTuple(apart));
  return ir::MakeCall(call.ty(), call.op(), args, call.attrs(), call.ty_args(), call.span());
}

/*! \brief The attributes with dimensions numbered as in `separated`; null where one names a merged
 * dimension and needs a single one. */
std::optional<ir::Node> Renumbered(const ir::Node& attrs, const Separated& separated) {
  if (!attrs.defined()) return attrs;
  const int rank = static_cast<int>(separated.size());
  ir::Node renumbered = attrs;
  const std::vector<ffi::Any> fields = ir::ListFields(attrs);
  for (size_t i = 0; i < fields.size(); i += 2) {
    const auto name = fields[i].cast<ffi::String>();
    const ffi::Any& value = fields[i + 1];
    const auto axes = name == "axis" || name == "axes" ? rules::ReadAxes(value, rank)
                                                       : std::optional<std::vector<int>>();
    if (!axes) continue;
    const auto apart = NumbersOf(*axes, separated);
    const bool is_single = value.as<int64_t>().has_value();
    if (!apart || (is_single && apart->size() != 1)) return std::nullopt;
    renumbered = ir::WithField(renumbered, name.c_str(),
                               is_single ? ffi::Any((*apart)[0]) : ffi::Any(*apart));
  }
  return renumbered;
}

/*!
 * \brief Order of the separate dimensions in which a call takes its first operand; empty: as they
 * are. The classes of a loss stand behind the first dimension, whatever others there are: (4 * 8,
 * classes) becomes (4, classes, 8).
 */
std::vector<int64_t> OrderOfFirst(const ir::Call& call, const Separated& apart) {
  std::vector<int64_t> order;
  if (!ir::IsOp(call.op(), "relax.nn.nll_loss") || apart.size() != 2) return order;
  const int64_t rank = static_cast<int64_t>(apart[0].size()) + 1;
  if (rank == 2) return order;
  for (int64_t d : {int64_t{0}, rank - 1}) order.push_back(d);
  for (int64_t d = 1; d < rank - 1; ++d) order.push_back(d);
  return order;
}

/*! \brief The dimensions that the factors of a call are separated into; nullopt where one of them
 * cannot be, or operands disagree. */
std::optional<Parts> PartsOf(const FactorRule& rule,
                             const std::vector<const Separated*>& operands) {
  Parts parts(rule.factors.size(), nullptr);
  for (size_t t = 0; t < operands.size(); ++t) {
    for (size_t d = 0; operands[t] != nullptr && d < operands[t]->size(); ++d) {
      const Dims& dims = (*operands[t])[d];
      if (dims.size() < 2) continue;
      const FactorList& list = rule.operands[t][d];
      if (list.size() != 1) return std::nullopt;
      if (!rule.factors[list[0]].Is<rules::ParallelFactor>() && !rule.IsCombined(list[0]))
        return std::nullopt;
      const Dims*& known = parts[list[0]];
      if (known != nullptr && !SameDims(*known, dims)) return std::nullopt;
      known = &dims;
    }
  }
  return parts;
}

/*! \brief The call with other attributes and operands, typed; null if it cannot be typed. */
ir::Call Typed(const ir::Call& call, const ir::Node& attrs, const std::vector<Dims>& operands,
               const std::vector<ir::TensorType>& types) {
  std::vector<ir::Expr> tensors;
  for (size_t t = 0; t < operands.size(); ++t) {
    const ffi::Array<ir::Expr> shape(operands[t].begin(), operands[t].end());
    tensors.push_back(ir::MakeVar("operand", ir::MakeTensorType(shape, types[t]), false));
  }
  auto with = [&](const ir::Type& type) {
    return ir::MakeCall(type, call.op(), WithTensors(call, tensors), attrs, call.ty_args());
  };
  try {
    return with(rules::InferGlobalType(with(ir::Type())));
  } catch (const ffi::Error&) {
    return ir::Call();  // the operator takes no tensors of so many dimensions
  }
}

/*! \brief True if a call that is typed gives what another one gives, in these shapes. */
bool Gives(const ir::Call& written, const std::vector<ir::TensorType>& results,
           const std::vector<Separated>& shapes) {
  std::vector<ir::TensorType> types;
  rules::CollectTensorTypes(written.ty(), &types);
  if (types.size() != shapes.size()) return false;
  for (size_t r = 0; r < types.size(); ++r) {
    if (!ir::HasKnownShape(types[r]) || types[r].dtype().code != results[r].dtype().code ||
        types[r].dtype().bits != results[r].dtype().bits)
      return false;
    const ir::NodeArray<ir::Expr>& dims = ir::ShapeOf(types[r]);
    if (!SameDims(Dims(dims.begin(), dims.end()), Flat(shapes[r]))) return false;
  }
  return true;
}

/*! \brief The subscripts of a product of these factors, those of merged dimensions apart; nullopt
 * where it is no sum of products. */
std::optional<std::string> SubscriptsOf(const FactorRule& rule, const Parts& parts) {
  std::map<std::pair<int, size_t>, char> letters;
  std::string text;
  auto add = [&](const TensorFactors& tensor) {
    for (const FactorList& dim : tensor) {
      if (dim.size() != 1) return false;
      const Factor& factor = rule.factors[dim[0]];
      if (!factor.Is<rules::ParallelFactor>() && factor.reduction() != mesh::Reduction::kSum)
        return false;
      const size_t count = parts[dim[0]] == nullptr ? 1 : parts[dim[0]]->size();
      for (size_t k = 0; k < count; ++k) {
        const char next = static_cast<char>('a' + letters.size());
        text += letters.try_emplace({dim[0], k}, next).first->second;
      }
    }
    return letters.size() <= 26;
  };
  for (const TensorFactors& operand : rule.operands) {
    if (!text.empty()) text += ",";
    if (!add(operand)) return std::nullopt;
  }
  text += "->";
  if (!add(rule.results[0])) return std::nullopt;
  return text;
}

/*! \brief An einsum, typed; null if it cannot be. */
ir::Call Einsum(const std::string& subscripts, const std::vector<Dims>& operands,
                const std::vector<ir::TensorType>& types) {
  ffi::Array<ir::Expr> tensors;
  for (size_t t = 0; t < operands.size(); ++t) {
    const ffi::Array<ir::Expr> shape(operands[t].begin(), operands[t].end());
    tensors.push_back(ir::MakeVar("operand", ir::MakeTensorType(shape, types[t]), false));
  }
  try {
    const auto made =
        ir::make::kEinsum(ir::MakeTuple(tensors), ffi::String(subscripts)).cast<ir::Call>();
    return ir::MakeCall(rules::InferGlobalType(made), made.op(), made.args(), made.attrs());
  } catch (const ffi::Error&) {
    return ir::Call();
  }
}

}  // namespace

bool SameDims(const Dims& a, const Dims& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), ir::SameDim);
}

bool HasDims(const std::vector<Dims>& all, const Dims& dims) {
  return std::any_of(all.begin(), all.end(),
                     [&dims](const Dims& each) { return SameDims(each, dims); });
}

std::optional<Dims> KnownShape(const ir::Expr& value) {
  const ir::TensorType type = ir::TensorType::Cast(value.ty());
  if (!type.defined() || !ir::HasKnownShape(type)) return std::nullopt;
  const ir::NodeArray<ir::Expr>& dims = ir::ShapeOf(type);
  return Dims(dims.begin(), dims.end());
}

Dims Flat(const Separated& separated) {
  Dims all;
  for (const Dims& dims : separated) all.insert(all.end(), dims.begin(), dims.end());
  return all;
}

ffi::Array<ir::Expr> WithTensors(const ir::Call& call, const std::vector<ir::Expr>& tensors) {
  auto next = tensors.begin();
  ffi::Array<ir::Expr> args;
  for (const ir::Expr& arg : call.args()) {
    if (ir::TensorType::Is(arg.ty())) {
      args.push_back(*next++);
    } else if (auto tuple = ir::Tuple::Cast(arg); tuple.defined()) {
      ffi::Array<ir::Expr> fields;
      for (const ir::Expr& field : tuple.fields())
        fields.push_back(ir::TensorType::Is(field.ty()) ? *next++ : field);
      args.push_back(ir::MakeTuple(fields));
    } else {
      args.push_back(arg);
    }
  }
  return args;
}

std::optional<SeparatedCall> Separate(const ir::Call& call, const ir::Type& type,
                                      const std::vector<const Separated*>& operands) {
  const rules::Operator* record = rules::FindOperator(call.op());
  if (record == nullptr || record->shape_argument >= 0 || !rules::HasRule(call))
    return std::nullopt;
  const rules::OpView view = rules::ViewCall(call, type);
  const auto fields = ir::TupleType::Cast(type);
  const bool has_tensors = fields.defined() ? fields.fields().size() == view.results.size()
                                            : view.results.size() == 1 && ir::TensorType::Is(type);
  if (!has_tensors || view.results.empty()) return std::nullopt;
  for (const ir::Expr& arg : call.args()) {
    if (ir::TupleType::Is(arg.ty()) && !ir::Tuple::Is(arg)) return std::nullopt;
  }
  for (const auto* tensors : {&view.operands, &view.results}) {
    if (!std::all_of(tensors->begin(), tensors->end(), ir::HasKnownShape)) return std::nullopt;
  }
  const FactorRule rule = rules::RuleOf(view);
  const std::optional<Parts> parts = PartsOf(rule, operands);
  if (!parts) return std::nullopt;

  std::vector<Separated> apart;
  for (size_t t = 0; t < view.operands.size(); ++t) {
    std::optional<Separated> operand = Apart(view.operands[t], rule.operands[t], *parts);
    if (!operand) return std::nullopt;
    apart.push_back(std::move(*operand));
  }
  SeparatedCall separated{call, {}, {}, OrderOfFirst(call, apart.front()), {}};
  for (size_t r = 0; r < view.results.size(); ++r) {
    std::optional<Separated> result = Apart(view.results[r], rule.results[r], *parts);
    if (!result) return std::nullopt;
    separated.results.push_back(std::move(*result));
  }
  for (Separated& operand : apart) {
    if (record->is_elementwise) Broadcast(separated.results[0], &operand);
    separated.operands.push_back(Flat(operand));
  }

  // Some attributes number the dimensions of the first operand, others those of the result.
  for (const Separated& numbered : {apart.front(), separated.results[0]}) {
    const std::optional<ir::Node> attrs = Renumbered(call.attrs(), numbered);
    const ir::Call slice = Renumbered(call, numbered);
    if (!attrs || !slice.defined()) continue;
    std::vector<Dims> shapes = separated.operands;
    shapes[0] = InOrderOf(separated.first_order, shapes[0]);
    const ir::Call written = Typed(slice, *attrs, shapes, view.operands);
    if (!written.defined() || !Gives(written, view.results, separated.results)) continue;
    const FactorRule separate_rule = rules::RuleOf(rules::ViewCall(written, written.ty()));
    if (!IsSameApart(rule, separate_rule, *parts, separated.first_order)) continue;
    separated.attrs = *attrs;
    separated.call = slice;
    return separated;
  }
  const bool is_product =
      record->accumulation == rules::Accumulation::kProducts || ir::IsOp(call.op(), "relax.einsum");
  if (!is_product || view.results.size() != 1) return std::nullopt;
  const std::optional<std::string> subscripts = SubscriptsOf(rule, *parts);
  if (!subscripts) return std::nullopt;
  const ir::Call written = Einsum(*subscripts, separated.operands, view.operands);
  if (!written.defined() || !Gives(written, view.results, separated.results)) return std::nullopt;
  const FactorRule einsum_rule = rules::RuleOf(rules::ViewCall(written, written.ty()));
  if (!IsSameApart(rule, einsum_rule, *parts, {})) return std::nullopt;
  separated.attrs = written.attrs();
  separated.is_einsum = true;
  return separated;
}

}  // namespace distir::propagation
