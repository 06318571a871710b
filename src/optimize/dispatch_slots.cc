// dispatch_slots: tokens that a mask assigns to slots of experts are sent row by row, instead of
// summing all slots over all devices. The products of GShard and Switch Transformers, with a mask
// (tokens, experts, slots) that is nearly all zeros:
//
//     p = R.einsum((x, mask), "td,tec->ecd")       p = R.dist.dispatch_slots(x, mask', ..)
//     h = R.dist.reduce_scatter(p, ..)        ->   h = R.reshape(p, ..)
//
//     all = R.dist.all_gather(h, ..)               y = R.dist.combine_slots(h', mask', ..)
//     y = R.einsum((all, mask), "ecd,tec->td")
//
// The rows to send are found in the mask at run time, so whatever it drops is dropped, and a mask
// of another form costs no more rows than the collective. Einsums and matmuls of any order of
// dimensions are read by their factor rule.
#include <algorithm>
#include <optional>
#include <vector>

#include "abi/collective.h"
#include "dialect/operators/collective.h"
#include "dialect/operators/slot_exchange.h"
#include "dialect/placement.h"
#include "ir/build.h"
#include "ir/make_operators.h"
#include "ir/operator_attrs.h"
#include "ir/symbolic.h"
#include "optimize/experts/types.h"
#include "optimize/optimization.h"
#include "optimize/program/slot_mask.h"
#include "rules/factor/axes.h"
#include "rules/factor/factor_rule.h"
#include "rules/registry.h"
#include "support/contains.h"

namespace distir::optimize {

namespace {

/*! \brief A product of two tensors, each dimension of which is one factor. */
struct Contraction {
  ir::Expr mask, other;
  int64_t choices = 0;
  std::vector<int> of_mask, of_other, of_result;  // factors by dimension
  std::vector<int> contracted, of_mask_only, of_other_only;
  /*! \brief The dimension of `other`, or of the result, that is longer where it is sharded. */
  int padded = -1;
  int uses = 1;  // of what is gathered
};

int Find(const std::vector<int>& list, int value) {
  return static_cast<int>(std::find(list.begin(), list.end(), value) - list.begin());
}
std::vector<int> Joined(std::vector<int> a, const std::vector<int>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/*! \brief Brings the one factor that is sharded to the front; false if several are. */
bool PutFirst(const std::vector<int>& sharded, std::vector<int>* factors) {
  int found = -1;
  for (int factor : sharded) {
    if (!Has(*factors, factor)) continue;
    if (found >= 0 && found != factor) return false;
    found = factor;
  }
  auto place = std::find(factors->begin(), factors->end(), found);
  if (place != factors->end()) std::rotate(factors->begin(), place, place + 1);
  return true;
}

class DispatchMasks {
 public:
  DispatchMasks(EditableFunction* editable, const Program& program, Tally* tally)
      : editable_(*editable),
        masks_(*editable),
        is_offered_(IsOffered(program.options, abi::Collective::kDispatchSlots)),
        tally_(*tally) {}

  void Run() {
    const std::vector<EditableBinding*> bindings = editable_.Bindings();
    if (!SlotMasks::MayBeIn(bindings)) return;
    for (EditableBinding* binding : bindings) {
      if (binding->dropped || binding->block == nullptr || binding->cast.defined()) continue;
      auto call = ir::Call::Cast(binding->value);
      auto product = call.defined() ? ReadContraction(call) : std::nullopt;
      if (!product) continue;
      if (const ir::Expr slots = GatheredFrom(product->other, &*product); slots.defined()) {
        VisitGathered(binding, slots, &*product);
      } else {
        VisitPartial(binding, &*product);
      }
    }
  }

 private:
  // ---- reading

  std::optional<Contraction> ReadContraction(const ir::Call& call) {
    if (!ir::IsOp(call.op(), "relax.einsum") && !ir::IsOp(call.op(), "relax.matmul"))
      return std::nullopt;
    auto tuple = ir::Tuple::Cast(call.args()[0]);
    const ffi::Array<ir::Expr> args = tuple.defined() ? tuple.fields() : call.args();
    const rules::FactorRule rule = rules::RuleOf(rules::ViewCall(call, call.ty()));
    if (args.size() != 2 || rule.operands.size() != 2 || rule.results.size() != 1)
      return std::nullopt;
    for (const ir::Expr& arg : args)
      if (!TypeOf(arg).defined() || !ir::Var::Is(arg)) return std::nullopt;
    for (int mask : {0, 1}) {
      Contraction product;
      product.mask = args[mask];
      product.other = args[1 - mask];
      product.choices = masks_.Choices(args[mask]);
      if (product.choices == 0) continue;
      if (!ReadFactors(rule.operands[mask], &product.of_mask) ||
          !ReadFactors(rule.operands[1 - mask], &product.of_other) ||
          !ReadFactors(rule.results[0], &product.of_result))
        return std::nullopt;
      for (int factor : product.of_mask) {
        if (factor < 0) continue;
        const bool in_other = Has(product.of_other, factor), made = Has(product.of_result, factor);
        if (in_other == made) return std::nullopt;  // a batch, or a sum of the mask alone
        (in_other ? product.contracted : product.of_mask_only).push_back(factor);
      }
      for (int factor : product.of_other) {
        if (factor < 0 || Has(product.of_mask, factor)) continue;
        if (!Has(product.of_result, factor)) return std::nullopt;
        product.of_other_only.push_back(factor);
      }
      if (!product.contracted.empty() && !product.of_mask_only.empty() &&
          !product.of_other_only.empty())
        return product;
    }
    return std::nullopt;
  }

  /*! \brief The factor of each dimension; -1 of dimensions of one element, which have none. */
  static bool ReadFactors(const rules::TensorFactors& dims, std::vector<int>* factors) {
    for (const rules::FactorList& dim : dims) {
      if (dim.size() > 1 || (dim.size() == 1 && Has(*factors, dim[0]))) return false;
      factors->push_back(dim.size() == 1 ? dim[0] : -1);
    }
    return true;
  }

  /*! \brief Operand of an all-gather, or of a slice of one that removes padding; null for other
   * values. */
  ir::Expr GatheredFrom(ir::Expr value, Contraction* p) const {
    EditableBinding* definition = editable_.DefinitionOf(value);
    auto call = definition == nullptr ? ir::Call() : ir::Call::Cast(definition->value);
    if (call.defined() && ir::IsOp(call.op(), "relax.strided_slice") && CutsBehind(call)) {
      p->padded = Differing(TypeOf(call), TypeOf(call.args()[0]));
      value = call.args()[0];
      definition = editable_.DefinitionOf(value);
      call = definition == nullptr ? ir::Call() : ir::Call::Cast(definition->value);
    }
    const bool is_gather =
        call.defined() && TypeOf(call).defined() &&
        dialect::DTensorCollective(call.op()) == mesh::CollectiveKind::kAllGather;
    if (!is_gather || !TypeOf(call.args()[0]).defined()) return ir::Expr();
    p->uses = std::max(editable_.NumUses(value), editable_.NumUses(p->other));
    return call.args()[0];
  }

  /*! \brief True if a slice takes the first elements of one dimension. */
  static bool CutsBehind(const ir::Call& call) {
    const auto is_one = [&call](size_t arg, int64_t value) {
      auto stated = rules::IntegersOf(call.args()[arg]);
      return stated && stated->size() == 1 && (*stated)[0] == value;
    };
    auto axes = rules::IntegersOf(call.args()[1]);
    return axes && axes->size() == 1 && is_one(2, 0) && (call.args().size() <= 4 || is_one(4, 1)) &&
           TypeOf(call).defined();
  }

  /*! \brief True if zeros are put behind one dimension. */
  static bool PadsBehind(const ir::Call& call) {
    if (!ir::IsOp(call.op(), "relax.nn.pad") || !TypeOf(call).defined()) return false;
    const auto widths = ir::attrs::kPadPadWidth(call.attrs()).cast<ffi::Array<int64_t>>();
    int padded = 0;
    for (size_t i = 0; i < widths.size(); ++i) {
      if (widths[i] == 0) continue;
      if (i % 2 == 0 || widths[i] < 0) return false;
      ++padded;
    }
    return padded == 1 && ir::attrs::kPadPadMode.Text(call.attrs()) == "constant" &&
           ir::attrs::kPadPadValue(call.attrs()).cast<double>() == 0;
  }

  /*! \brief The first dimension of which two types have different sizes, or -1. */
  static int Differing(const ir::DTensorType& a, const ir::DTensorType& b) {
    const auto &left = ir::ShapeOf(a.tensor_ty()), &right = ir::ShapeOf(b.tensor_ty());
    for (size_t d = 0; d < left.size() && d < right.size(); ++d)
      if (!ir::SameDim(left[d], right[d])) return static_cast<int>(d);
    return -1;
  }

  /*! \brief The factor that each mesh axis shards, -1 for none. */
  static std::vector<int> Sharded(const ir::DTensorType& type, const std::vector<int>& factors) {
    std::vector<int> found;
    for (int dim : DimsOf(type)) found.push_back(dim < 0 ? -1 : factors[dim]);
    return found;
  }

  /*! \brief The axes over which one dimension of `whole` is sharded in `parts`, all others being
   * alike; none if there is another difference. */
  static std::vector<int> Added(const ir::DTensorType& whole, const ir::DTensorType& parts) {
    const std::vector<int> a = DimsOf(whole), b = DimsOf(parts);
    std::vector<int> axes;
    for (size_t axis = 0; axis < a.size(); ++axis) {
      if (a[axis] == b[axis]) continue;
      if (a[axis] >= 0 || (!axes.empty() && b[axes[0]] != b[axis])) return {};
      axes.push_back(static_cast<int>(axis));
    }
    return axes;
  }

  bool OnOneMesh(const std::vector<ir::Expr>& values) const {
    for (const ir::Expr& value : values) {
      if (!ir::StructurallyEqual(TypeOf(value).device_mesh(), TypeOf(values[0]).device_mesh()))
        return false;
    }
    return true;
  }

  const char* Refusal(const EditableBinding* at, const ir::Expr& result, const Contraction& p,
                      const ir::Expr& rows) {
    for (const ir::Expr& value : {p.mask, rows, result}) {
      if (!ir::HasKnownShape(TypeOf(value).tensor_ty())) return "sizes are not known";
    }
    for (const ir::Expr& size : ir::ShapeOf(TypeOf(p.mask).tensor_ty()))
      if (ir::StaticDim(size) < 0) return "the number of tokens or slots is symbolic";
    const DLDataType dtype = TypeOf(p.mask).tensor_ty().dtype();
    for (const ir::Expr& value : {p.mask, rows, result}) {
      const DLDataType other = TypeOf(value).tensor_ty().dtype();
      if ((other.code != kDLFloat && other.code != kDLBfloat) || other.lanes != 1)
        return "not floats";
      if (other.code != dtype.code || other.bits != dtype.bits)
        return "products have another type than their operands";
    }
    if (!OnOneMesh({p.mask, rows, result})) return "tokens and slots name different meshes";
    for (const ir::Expr& value : {p.mask, rows}) {
      if (!editable_.IsVisible(value, at)) return "tokens or the mask are not visible";
    }
    if (!is_offered_) return "the runtime does not dispatch slots";
    return nullptr;
  }

  // ---- from tokens to slots

  void VisitPartial(EditableBinding* product, Contraction* p) {
    // However the planner sums it up and cuts it.
    EditableBinding* last = product;
    std::vector<int> reduced;
    while (EditableBinding* next = editable_.OnlyUserOf(last->var)) {
      auto call = ir::Call::Cast(next->value);
      if (call.defined() && next->block == product->block && p->padded < 0 && PadsBehind(call)) {
        p->padded = Differing(TypeOf(last->var), TypeOf(call));
        last = next;
        continue;
      }
      auto kind = call.defined() ? dialect::DTensorCollective(call.op()) : std::nullopt;
      if (next->block != product->block || !kind || !TypeOf(call).defined()) break;
      if (*kind == mesh::CollectiveKind::kAllReduce ||
          *kind == mesh::CollectiveKind::kReduceScatter) {
        if (dialect::ReductionOf(call) != mesh::Reduction::kSum) break;
        reduced = Joined(reduced, dialect::ReduceAxes(call));
      } else if (*kind != mesh::CollectiveKind::kSlice) {
        break;
      }
      last = next;
    }
    if (reduced.empty()) return;
    std::sort(reduced.begin(), reduced.end());
    const char* why = Refusal(last, last->var, *p, p->other);
    if (why == nullptr) why = Dispatch(last, TypeOf(product->var), reduced, p);
    why == nullptr ? void(++tally_.matched) : tally_.Skip(why);
  }

  /*! \param reduced The axes over which the product is partial, summed up before `at`. */
  const char* Dispatch(EditableBinding* at, const ir::DTensorType& product,
                       const std::vector<int>& reduced, Contraction* p) {
    const ir::DTensorType of_slots = TypeOf(at->var);
    const std::vector<int> axes = Added(product, of_slots);
    const char* elsewhere = "tokens are not sharded where experts are";
    if (axes.empty()) return elsewhere;
    const std::vector<int> of_mask = Sharded(TypeOf(p->mask), p->of_mask);
    const std::vector<int> of_other = Sharded(TypeOf(p->other), p->of_other);
    const std::vector<int> of_result = Sharded(of_slots, p->of_result);
    if (!Has(p->of_mask_only, of_result[axes[0]])) return "the width of tokens is scattered";
    if (!PutFirst(of_mask, &p->contracted) || !PutFirst(of_result, &p->of_mask_only) ||
        !PutFirst(of_result, &p->of_other_only))
      return "several dimensions are sharded";
    std::vector<int> rest;
    for (int axis = 0; axis < static_cast<int>(of_mask.size()); ++axis) {
      const bool is_of_tokens = of_mask[axis] == p->contracted[0];
      if ((of_mask[axis] >= 0 && !is_of_tokens) || is_of_tokens != Has(reduced, axis) ||
          is_of_tokens != (of_other[axis] == p->contracted[0]) ||
          (Has(axes, axis) && !is_of_tokens))
        return elsewhere;
      if (is_of_tokens && !Has(axes, axis)) rest.push_back(axis);
    }
    const ir::Expr whole = PaddedMask(at, *p, p->of_result, TypeOf(at->var));
    const ir::Expr mask = Matrix(at, whole, p->of_mask, p->contracted, p->of_mask_only, of_mask);
    const ir::Expr x = Matrix(at, p->other, p->of_other, p->contracted, p->of_other_only, of_other);
    ir::Expr made = editable_.InsertBefore(at, at->var.name(),
                                           dialect::MakeDispatchSlots(x, mask, axes, p->choices));
    if (!rest.empty()) {
      made = editable_.InsertBefore(
          at, at->var.name(),
          dialect::MakeCollective(mesh::CollectiveKind::kAllReduce, made, TypeOf(made), rest,
                                  mesh::Reduction::kSum));
    }
    Bind(at, made, Joined(p->of_mask_only, p->of_other_only), p->of_result);
    return nullptr;
  }

  // ---- from slots to tokens

  void VisitGathered(EditableBinding* at, const ir::Expr& slots, Contraction* p) {
    const char* why = Refusal(at, at->var, *p, slots);
    if (why == nullptr && p->uses != 1) why = "slots of all devices are used elsewhere, too";
    if (why == nullptr) why = Combine(at, slots, p);
    why == nullptr ? void(++tally_.matched) : tally_.Skip(why);
  }

  const char* Combine(EditableBinding* at, const ir::Expr& slots, Contraction* p) {
    const std::vector<int> axes = Added(TypeOf(p->other), TypeOf(slots));
    const char* elsewhere = "tokens are not sharded where experts are";
    if (axes.empty()) return elsewhere;
    const std::vector<int> of_mask = Sharded(TypeOf(p->mask), p->of_mask);
    const std::vector<int> of_slots = Sharded(TypeOf(slots), p->of_other);
    const std::vector<int> of_result = Sharded(TypeOf(at->var), p->of_result);
    if (!Has(p->contracted, of_slots[axes[0]])) return "the width of slots is gathered";
    if (!PutFirst(of_mask, &p->of_mask_only) || !PutFirst(of_slots, &p->contracted) ||
        !PutFirst(of_slots, &p->of_other_only))
      return "several dimensions are sharded";
    for (size_t axis = 0; axis < of_mask.size(); ++axis) {
      const bool is_of_tokens = of_mask[axis] == p->of_mask_only[0];
      const bool is_of_slots = Has(axes, static_cast<int>(axis));
      if ((of_mask[axis] >= 0 && !is_of_tokens) || (is_of_slots && !is_of_tokens)) return elsewhere;
      if (!is_of_slots && Has(p->contracted, of_slots[axis])) return "slots are partial";
      if (is_of_tokens != (of_result[axis] == p->of_mask_only[0])) return elsewhere;
      if (!is_of_slots && of_slots[axis] >= 0 && of_slots[axis] != of_result[axis])
        return "the width of slots is gathered";
    }
    const ir::Expr whole = PaddedMask(at, *p, p->of_other, TypeOf(slots));
    const ir::Expr mask = Matrix(at, whole, p->of_mask, p->of_mask_only, p->contracted, of_mask);
    const ir::Expr y = Matrix(at, slots, p->of_other, p->contracted, p->of_other_only, of_slots);
    const ir::Expr made = editable_.InsertBefore(
        at, at->var.name(), dialect::MakeCombineSlots(y, mask, axes, p->choices));
    Bind(at, made, Joined(p->of_mask_only, p->of_other_only), p->of_result);
    return nullptr;
  }

  // ---- writing

  /*! \brief The mask with as many slots as where they are sharded, of which none is in the last
   * ones. \param factors, type Of the slots. */
  ir::Expr PaddedMask(EditableBinding* at, const Contraction& p, const std::vector<int>& factors,
                      const ir::DTensorType& type) {
    if (p.padded < 0) return p.mask;
    const int dim = Find(p.of_mask, factors[p.padded]);
    const ir::DTensorType before = TypeOf(p.mask);
    ffi::Array<ir::Expr> shape = ir::ShapeOf(before.tensor_ty());
    ffi::Array<int64_t> widths;
    for (int d = 0; d < static_cast<int>(shape.size()); ++d) {
      const int64_t missing =
          ir::StaticDim(ir::ShapeOf(type.tensor_ty())[p.padded]) - ir::StaticDim(shape[dim]);
      widths.push_back(0);
      widths.push_back(d == dim ? missing : 0);
    }
    shape.Set(dim, ir::ShapeOf(type.tensor_ty())[p.padded]);
    ir::Call call = ir::make::kNnPad(p.mask, widths, ffi::String("constant"), 0.0).cast<ir::Call>();
    ir::SetType(call, ir::MakeDTensorType(ir::MakeTensorType(shape, before.tensor_ty()),
                                          before.device_mesh(), before.placement()));
    return editable_.InsertBefore(at, ir::Var::Cast(p.mask).name(), call);
  }

  /*! \brief A value as a matrix of the factors `rows` by `columns`; of each the first may be
   * sharded. */
  ir::Expr Matrix(EditableBinding* at, const ir::Expr& value, const std::vector<int>& factors,
                  const std::vector<int>& rows, const std::vector<int>& columns,
                  const std::vector<int>& sharded) {
    const std::string name = ir::Var::Cast(value).name();
    const ir::DTensorType type = TypeOf(value);
    const ir::NodeArray<ir::Expr>& shape = ir::ShapeOf(type.tensor_ty());
    const std::vector<int> order = Joined(rows, columns), kept = Named(factors);
    ffi::Array<ir::Expr> narrow;
    for (int factor : kept) narrow.push_back(shape[Find(factors, factor)]);
    std::vector<int> placed = DimsOf(type);
    for (int& dim : placed) dim = dim < 0 ? -1 : Find(kept, factors[dim]);
    const ir::Expr result =
        Permuted(at, Reshaped(at, value, narrow, placed, name), kept, order, name);
    if (order.size() == 2) return result;
    const auto product = [&](const std::vector<int>& of) {
      std::vector<ir::Expr> sizes;
      for (int factor : of) sizes.push_back(shape[Find(factors, factor)]);
      return ir::Product(sizes);
    };
    std::vector<int> dims;
    for (int factor : sharded)
      dims.push_back(factor == rows[0] ? 0 : factor == columns[0] && factor >= 0 ? 1 : -1);
    return Reshaped(at, result, {product(rows), product(columns)}, dims, name);
  }

  /*! \brief Binds the factors of a result, in their order. \param made Their matrix. */
  void Bind(EditableBinding* at, const ir::Expr& made, const std::vector<int>& order,
            const std::vector<int>& factors) {
    const ir::DTensorType type = TypeOf(at->var);
    const ir::NodeArray<ir::Expr>& shape = ir::ShapeOf(type.tensor_ty());
    ffi::Array<ir::Expr> apart;
    for (int factor : order) apart.push_back(shape[Find(factors, factor)]);
    std::vector<int> dims = DimsOf(type);
    for (int& dim : dims) dim = dim < 0 ? -1 : Find(order, factors[dim]);
    const ir::Expr wide = Reshaped(at, made, apart, dims, at->var.name());
    const ir::Expr result = Permuted(at, wide, order, Named(factors), at->var.name());
    std::vector<ir::Expr> used;
    VisitVarsOf(at->value, [&used](const ir::Expr& var) { used.push_back(var); });
    editable_.Alias(at, Reshaped(at, result, shape, DimsOf(type), at->var.name()));
    for (const ir::Expr& old : used) {
      EditableBinding* definition = editable_.DefinitionOf(old);
      if (definition != nullptr && definition->block != nullptr) editable_.DropUnused(definition);
    }
  }

  /*! \brief Without the dimensions that have no factor. */
  static std::vector<int> Named(const std::vector<int>& factors) {
    std::vector<int> named;
    for (int factor : factors)
      if (factor >= 0) named.push_back(factor);
    return named;
  }

  ir::Expr Reshaped(EditableBinding* at, const ir::Expr& value,
                    const ir::NodeArray<ir::Expr>& shape, const std::vector<int>& dims,
                    const std::string& name) {
    const ir::DTensorType type = TypeOf(value);
    if (shape.size() == static_cast<size_t>(type.tensor_ty().ndim())) return value;
    return editable_.InsertBefore(at, name, optimize::Reshaped(value, shape, dims));
  }

  /*! \brief A value of dimensions `from` with those in the order `to`. */
  ir::Expr Permuted(EditableBinding* at, const ir::Expr& value, const std::vector<int>& from,
                    const std::vector<int>& to, const std::string& name) {
    if (from == to) return value;
    const ir::DTensorType type = TypeOf(value);
    const ir::NodeArray<ir::Expr>& old = ir::ShapeOf(type.tensor_ty());
    ffi::Array<ir::Expr> shape;
    ffi::Array<int64_t> axes;
    for (int factor : to) {
      axes.push_back(Find(from, factor));
      shape.push_back(old[Find(from, factor)]);
    }
    std::vector<int> dims = DimsOf(type);
    for (int& dim : dims) dim = dim < 0 ? -1 : Find(to, from[dim]);
    ir::Call call = ir::make::kPermuteDims(value, axes).cast<ir::Call>();
    ir::SetType(call, ir::MakeDTensorType(ir::MakeTensorType(shape, type.tensor_ty()),
                                          type.device_mesh(), ir::MakePlacement(dims)));
    return editable_.InsertBefore(at, name, call);
  }

  EditableFunction& editable_;
  SlotMasks masks_;
  const bool is_offered_;
  Tally& tally_;
};

}  // namespace

void DispatchSlots(Program* program, Tally* tally) {
  for (NamedFunction& function : program->functions)
    DispatchMasks(function.editable.get(), *program, tally).Run();
}

}  // namespace distir::optimize
