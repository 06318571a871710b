// Rewrites one function with padded extents; fills the padding (tails) where operators read it.
#include "padding/pad_function.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <map>
#include <unordered_set>

#include "dialect/operators/collective.h"
#include "dialect/operators/segment_exchange.h"
#include "ir/build.h"
#include "ir/report.h"
#include "ir/size_arithmetic.h"
#include "ir/size_text.h"
#include "ir/symbolic.h"
#include "padding/callee_sizes.h"
#include "padding/cast_sizes.h"
#include "padding/padded_call.h"
#include "padding/size.h"
#include "padding/tail_writer.h"
#include "rules/call/infer_type.h"
#include "rules/call/stated_sizes.h"
#include "rules/operator.h"
#include "rules/registry.h"
#include "support/error.h"

namespace distir::padding {

namespace {

using rules::ReductionFactor;
using rules::Tail;

class Padder : public TailWriter {
 public:
  Padder(const ir::GlobalVar& name, bool is_called, const PaddedModule& module)
      : function_name_(name),
        is_called_(is_called),
        meshes_(*module.meshes),
        grains_(*module.grains),
        kernels_(*module.kernels),
        padded_kernels_(*module.padded_kernels),
        functions_(*module.functions) {}

  ir::Function Run(const ir::Function& function) {
    function_ = function;
    cast_sizes_ = CastSizes(function);
    const ir::Function padded = RewriteFunction(function);
    const PaddedFunction& stated = functions_.at(function_name_.get());
    if (stated.sizes.empty()) return padded;
    ffi::Array<ir::Var> params = padded.params();
    params.push_back(ir::MakeVar(FreshName("sizes"), ir::MakeShapeType(stated.sizes), false));
    return ir::MakeFunction(params, padded.body(), padded.ret_ty(), padded.is_pure(),
                            ir::WithAttr(padded.attrs(), kTakesSizesAttr, true));
  }

 private:
  // ---- functions

  ir::Var RewriteParam(const ir::Var& param) override {
    const ir::Type type = WithExtents(param.ty(), grains_.Of(param));
    const ir::Var padded =
        type.same_as(param.ty()) ? param : ir::MakeVar(param.name(), type, false);
    has_zero_tail_.insert(padded.get());
    return padded;
  }

  ir::Expr RewriteSeqValue(const ir::Expr& value, const ir::Var& branch_of) override {
    // Results of the program are cropped, whatever their tail.
    const ir::Expr tailed =
        branch_of.defined() || !is_called_ ? Rewrite(value) : WithZeroTails(value);
    if (branch_of.defined()) return Recut(tailed, value, grains_.Of(branch_of));
    return InSizesOfParams(Recut(tailed, value, grains_.OfResult(function_name_)));
  }

  /*! \brief A result, its type in sizes that the caller knows. */
  ir::Expr InSizesOfParams(const ir::Expr& result) {
    const ir::Type type =
        ir::MapDims(result.ty(), [this](const ir::Expr& dim) { return cast_sizes_.InParams(dim); });
    if (type.same_as(result.ty())) return result;
    const ir::Var made = ir::MakeVar(FreshName("result"), type, false);
    writer().Add(ir::MakeMatchCast(made, result, type));
    return made;
  }

  ir::Node RewriteAttrs(const ir::Node& attrs) override {
    ffi::Array<ffi::Any> all, grained;
    bool any = false, any_grained = false;
    symbolic_is_padded_ = false;
    auto add = [&](const ir::Type& type, const ValueExtents& padded) {
      const ValueExtents least = PaddedTypes(&meshes_).ExtentsOfAll(type);
      std::vector<ir::DTensorType> tensors;
      dialect::CollectDTensorTypes(type, &tensors);
      any = any || IsPadded(type, padded);
      for (size_t i = 0; i < padded.size(); ++i) {
        all.push_back(TrueExtents(tensors[i], padded[i]));
        const ffi::Array<int64_t> of_grains = GrainedExtents(tensors[i], padded[i], least[i]);
        for (int64_t extent : of_grains) any_grained = any_grained || extent >= 0;
        grained.push_back(of_grains);
      }
    };
    for (const ir::Var& param : function_.params()) add(param.ty(), grains_.Of(param));
    add(function_.body().body().ty(), grains_.OfResult(function_name_));
    if (!any) return attrs;
    ir::Node with_extents = ir::WithAttr(attrs, kTrueExtentsAttr, all);
    if (any_grained) with_extents = ir::WithAttr(with_extents, kGrainedExtentsAttr, grained);
    if (!symbolic_is_padded_ && !HasParamsThatLookAlike()) return with_extents;
    ffi::Array<ffi::String> names;
    for (const ir::Var& param : function_.params()) names.push_back(param.name());
    return ir::WithAttr(with_extents, kPaddedParamsAttr, names);
  }

  /*! \brief True if two parameters of different extents are padded to the same type. */
  bool HasParamsThatLookAlike() {
    std::map<std::string, Extents> by_type;
    for (const ir::Var& param : function_.params()) {
      auto type = ir::DTensorType::Cast(param.ty());
      if (!type.defined()) continue;
      const ir::Type padded = WithExtents(param.ty(), grains_.Of(param));
      const Extents extents = ExtentsOf(type.tensor_ty());
      const auto [found, is_new] = by_type.emplace(ir::Print(padded), extents);
      if (!is_new && found->second != extents) return true;
    }
    return false;
  }

  /*! \brief Per dimension its true extent, -1 where it is not padded; text of a symbolic one. */
  ffi::Array<ffi::Any> TrueExtents(const ir::DTensorType& type, const Extents& padded) {
    if (!type.defined()) return {};
    const ir::NodeArray<ir::Expr>& sizes = ir::ShapeOf(type.tensor_ty());
    std::vector<ffi::Any> extents(sizes.size(), ffi::Any(int64_t{-1}));
    for (int d : PaddedDims(type, padded)) {
      const int64_t size = ir::StaticDim(sizes[d]);
      symbolic_is_padded_ = symbolic_is_padded_ || size < 0;
      extents[d] = size < 0 ? ffi::Any(ffi::String(ir::SizeText(cast_sizes_.InParams(sizes[d]))))
                            : ffi::Any(size);
    }
    return {extents.begin(), extents.end()};
  }

  /*! \brief Per dimension its padded extent, 0 for a symbolic one, -1 where that is the least
   * possible. */
  static ffi::Array<int64_t> GrainedExtents(const ir::DTensorType& type, const Extents& padded,
                                            const Extents& least) {
    std::vector<int64_t> extents(padded.size(), -1);
    for (int d : PaddedDims(type, padded)) {
      if (!ir::SameDim(padded[d], least[d])) extents[d] = NumberOf(padded[d]);
    }
    return {extents.begin(), extents.end()};
  }

  /*! \brief A size as a number, 0 if it is symbolic. */
  static int64_t NumberOf(const ir::Expr& size) {
    return std::max<int64_t>(ir::StaticDim(size), 0);
  }

  // ---- bindings

  // A size that the cast states anew is that of the value before it is padded, so that is cast
  // first; the padded value, which is cut to the padding of such a size, is cast to that then.
  void RewriteMatchCast(const ir::Var& var, const ir::MatchCast& cast) override {
    std::vector<ir::DTensorType> from, to;
    dialect::CollectDTensorTypes(cast.value().ty(), &from);
    dialect::CollectDTensorTypes(cast.ty(), &to);
    const ValueExtents extents = grains_.Of(var);
    ValueExtents wanted = grains_.Of(cast.value());
    for (size_t i = 0; i < to.size(); ++i) {
      if (!to[i].defined()) continue;
      if (i >= from.size() || !from[i].defined() || !ir::HasKnownShape(from[i].tensor_ty())) {
        for (int d : PaddedDims(to[i], extents[i])) RefuseUneven(var, "match_cast", to[i], d);
        continue;
      }
      bool is_new = false;
      const Extents before = ExtentsOf(from[i].tensor_ty()), after = ExtentsOf(to[i].tensor_ty());
      for (size_t d = 0; d < std::min(before.size(), after.size()); ++d) {
        const int64_t shards = mesh::NumShards(meshes_.ShardingOf(to[i]).dims[d]);
        const bool is_same = ir::SameDim(before[d], after[d]);
        const bool must_divide =
            ir::SameDim(after[d], extents[i][d]) && !ir::AlwaysDivides(after[d], shards);
        is_new = is_new || (!is_same && shards > 1);
        wanted[i][d] = is_same       ? extents[i][d]
                       : must_divide ? before[d]
                                     : Size(before[d]).Even(shards);
      }
      if (is_new) CastToSizes(var, before, after);
    }
    const ir::Type type = WithExtents(cast.ty(), extents);
    const ir::Expr value = Recut(Rewrite(cast.value()), cast.value(), wanted);
    const ir::Var made = ir::MakeVar(NameFor(var), type, ir::DataflowVar::Is(var));
    writer().Add(ir::MakeMatchCast(made, value, type));
    Replace(var, made);
  }

  void CastToSizes(const ir::Var& var, const Extents& before, const Extents& after) {
    const ir::Type sizes = ir::MakeShapeType({after.begin(), after.end()});
    const ir::Var checked = ir::MakeVar(FreshName(var.name()), sizes, ir::DataflowVar::Is(var));
    writer().Add(ir::MakeMatchCast(checked, ir::MakeShape({before.begin(), before.end()}), sizes));
  }

  void RewriteVarBinding(const ir::Var& var, const ir::Expr& value) override {
    auto call = ir::Call::Cast(value);
    if (!call.defined()) return Rename(var, value);
    if (const rules::Operator* record = rules::FindOperator(call.op());
        record != nullptr && StatesSizes(*record))
      sized_calls_.emplace(var.get(), call);
    bool is_padded = IsPadded(var.ty(), grains_.Of(var));
    for (const ir::Expr& arg : call.args())
      is_padded = is_padded || IsPadded(arg.ty(), grains_.Of(arg));
    if (!is_padded && !grains_.IsRecutFor(var, call))
      return FunctionRewriter::RewriteVarBinding(var, value);
    Credit("PadShards", ir::CalleeName(call), var);
    if (ir::IsOp(call.op(), "relax.dist.redistribute")) return Redistribute(var, call);
    if (dialect::IsSegmentExchange(call.op())) return Exchange(var, call);
    if (ir::IsOp(call.op(), "relax.shape_of")) {
      Bind(var, ir::DTensorType::Cast(call.args()[0].ty()).tensor_ty().shape());
      return;
    }
    if (ir::GlobalVar::Is(call.op())) return CallFunction(var, call);
    CallOperator(var, call);
  }

  void Rename(const ir::Var& var, const ir::Expr& value) {
    FunctionRewriter::RewriteVarBinding(var, value);
    if (!ir::If::Is(value) && HasZeroTail(Rewrite(value)))
      has_zero_tail_.insert(Rewrite(var).get());
  }

  /*! \brief Binds `var` to the value, placed as in its padded type. */
  void BindPlaced(const ir::Var& var, const ir::Expr& value, const ir::DTensorType& type) {
    if (ir::StructurallyEqual(value.ty(), type)) {
      Alias(var, value);
    } else {
      Bind(var, dialect::MakeRedistribute(value, type), type);
    }
  }

  void CallFunction(const ir::Var& var, const ir::Call& call) {
    ffi::Array<ir::Expr> args;
    const ValueExtents& taken = *grains_.TakenBy(var);
    size_t next = 0;
    const PaddedFunction& padded = functions_.at(call.op().get());
    for (const ir::Expr& arg : call.args()) {
      const size_t size = grains_.Of(arg).size();
      args.push_back(
          Recut(WithZeroTails(arg), arg, {taken.begin() + next, taken.begin() + next + size}));
      next += size;
    }
    if (!padded.sizes.empty()) args.push_back(SizesFor(padded, call));
    ir::Type type = WithExtents(var.ty(), grains_.Of(var));
    ir::Var result =
        Bind(var, ir::MakeCall(type, padded.name, args, call.attrs(), {}, call.span()));
    has_zero_tail_.insert(result.get());
  }

  /*! \brief The sizes that a function takes, as the arguments of a call have them. */
  static ir::Expr SizesFor(const PaddedFunction& callee, const ir::Call& call) {
    const CalleeSizes known(callee.function, call);
    ffi::Array<ir::Expr> sizes;
    for (const ir::Expr& size : callee.sizes) {
      const ir::Expr given = known.Find(size);
      DISTIR_REQUIRE(given.defined(), ValueError)
          << "the call of `" << callee.name.name() << "` passes a tensor whose shape is not known "
          << "for a dimension `" << ir::Var::Cast(size).name()
          << "`; state its shape by R.match_cast";
      sizes.push_back(given);
    }
    return ir::MakeShape(sizes);
  }

  // ---- redistributions

  // Between two paddings a dimension has the extent of both, or another that both divide.
  void Redistribute(const ir::Var& var, const ir::Call& call) {
    auto target = ir::DTensorType::Cast(call.ty());
    const Extents want = grains_.Of(var)[0];
    const ir::DTensorType padded = WithExtents(target, want);
    if (ir::Var made = MadeLonger(call.args()[0], want); made.defined())
      return void(Bind(var, dialect::MakeRedistribute(made, padded), padded));
    auto source = ir::DTensorType::Cast(call.args()[0].ty());
    ir::Expr value = Rewrite(call.args()[0]);
    bool is_zero = true;
    if (!source.defined()) {
      // A Tensor that every device has made alike.
      std::vector<int> replica(target.device_mesh().shape().size(), -1);
      source =
          ir::MakeDTensorType(target.tensor_ty(), target.device_mesh(), ir::MakePlacement(replica));
      value = Emit(var.name(), dialect::MakeRedistribute(value, source));
    } else if (IsPadded(source, grains_.Of(call.args()[0]))) {
      is_zero = HasZeroTail(value);
    }
    const Extents common = CommonExtents(ExtentsOf(value), meshes_.ShardingOf(source), want,
                                         meshes_.ShardingOf(target));
    value = Resized(var.name(), value, source, common);
    if (Differ(common, want)) {
      const ir::DTensorType moved = WithExtents(target, common);
      if (!ir::StructurallyEqual(value.ty(), moved))
        value = Emit(var.name(), dialect::MakeRedistribute(value, moved));
      value = Resized(var.name(), value, target, want);
    }
    BindPlaced(var, value, padded);
    if (is_zero) has_zero_tail_.insert(Rewrite(var).get());
  }

  /*! \brief A value with more elements along dimensions that its call makes of nothing, as R.zeros
   * does; null where there is none to add, or the call cannot be written so. */
  ir::Var MadeLonger(const ir::Expr& value, const Extents& want) {
    auto found = sized_calls_.find(value.get());
    if (found == sized_calls_.end()) return ir::Var();
    const ir::Call& call = found->second;
    auto like = ir::DTensorType::Cast(call.ty());
    rules::OpView view = rules::ViewCall(call, call.ty());
    const Extents have = like.defined() ? grains_.Of(value)[0] : ExtentsOf(view.results[0]);
    if (view.results.size() != 1 || have == want) return ir::Var();
    rules::FactorRule rule = rules::RuleOf(view);
    ffi::Array<ir::Expr> shape = ir::ShapeOf(view.results[0]);
    for (size_t d = 0; d < want.size(); ++d) {
      if (ir::SameDim(have[d], want[d])) continue;
      if (!rule.IsMade(0, d) || !rule.factors[rule.results[0][d][0]].may_be_uneven)
        return ir::Var();
      shape.Set(d, want[d]);
    }
    ir::Type type = like.defined() ? ir::Type(WithExtents(like, want))
                                   : ir::Type(ir::MakeTensorType(shape, view.results[0]));
    return Emit(ir::Var::Cast(value).name(),
                rules::ResizedCall(call, type, RewriteAll(call.args())));
  }

  /*! \brief The tensors of a value, which stands for `original`, with other extents, placed as
   * they were. */
  ir::Expr Recut(const ir::Expr& value, const ir::Expr& original, const ValueExtents& want) {
    const ValueExtents have = grains_.Of(original);
    if (!Differ(have, want)) return value;
    size_t next = 0;
    return MapTensors(value, original.ty(),
                      [&](const ir::Expr& tensor, const ir::DTensorType& type) {
                        const size_t i = next++;
                        if (!Differ(have[i], want[i])) return tensor;
                        return RecutTensor(tensor, type, want[i]);
                      });
  }

  ir::Expr RecutTensor(const ir::Expr& tensor, const ir::DTensorType& type, const Extents& want) {
    const ir::Var value = ir::Var::Cast(AsVar(tensor));
    const ir::Expr resized = Resized(value.name(), value, type, want);
    const ir::Var result =
        Emit(value.name(), dialect::MakeRedistribute(resized, WithExtents(type, want)));
    if (HasZeroTail(tensor)) has_zero_tail_.insert(result.get());
    return result;
  }

  using TailWriter::Resized;

  /*! \brief A padded value of another padding. Elements move between shards of a dimension where
   * both extents divide into them; else it is replicated along the dimension. `source` is its type
   * before it was padded. */
  ir::Expr Resized(const ffi::String& name, ir::Expr value, const ir::DTensorType& source,
                   const Extents& want) {
    const Extents before = ExtentsOf(source.tensor_ty());
    const Extents have = ExtentsOf(value);
    if (!Differ(have, want)) return value;
    mesh::Sharding sharding = meshes_.ShardingOf(source);
    bool moves = false;
    for (size_t d = 0; d < have.size(); ++d) {
      if (ir::SameDim(have[d], want[d]) || sharding.dims[d].empty()) continue;
      const int64_t shards = mesh::NumShards(sharding.dims[d]);
      const int64_t from = ir::StaticDim(have[d]), to = ir::StaticDim(want[d]);
      if (from >= 0 && to >= 0 && from % shards == 0 && to % shards == 0) {
        value = Shifted(name, value, static_cast<int>(d), ir::StaticDim(before[d]), to);
        continue;
      }
      sharding.dims[d].clear();
      moves = true;
    }
    if (moves) {
      const ir::TensorType tensor = ir::DTensorType::Cast(value.ty()).tensor_ty();
      value = Emit(name, dialect::MakeRedistribute(
                             value, meshes_.TypeOf(tensor, meshes_.RootOf(source), sharding)));
    }
    return Resized(value, before, want);
  }

  /*! \brief The first `count` elements of a sharded dimension, zeros behind them up to `size`. */
  ir::Expr Shifted(const ffi::String& name, const ir::Expr& value, int dim, int64_t count,
                   int64_t size) {
    Extents extents = ExtentsOf(value);
    const int64_t have = ir::StaticDim(extents[dim]);
    extents[dim] = ir::MakeInt(size);
    const ir::DTensorType type = WithExtents(ir::DTensorType::Cast(value.ty()), extents);
    const dialect::SegmentMove move{{dim, have, size}, {{0, 0, 1, count}}, "0"};
    return Emit(name, dialect::MakeSegmentExchange(value, type, move));
  }

  // ---- segment exchanges

  // Padding is behind all elements, so segments lead from and to the places that they did.
  void Exchange(const ir::Var& var, const ir::Call& call) {
    dialect::SegmentMove move = dialect::MoveOf(call);
    const int dim = move.moved.dim;
    auto source = ir::DTensorType::Cast(call.args()[0].ty());
    auto target = ir::DTensorType::Cast(var.ty());
    const bool gives_all =
        move.fill == dialect::kAnyFill ||
        (move.segments.size() == 1 && move.segments[0].count == move.moved.target_size);
    const Extents have = grains_.Of(call.args()[0])[0], want = grains_.Of(var)[0];
    const ir::DTensorType padded = WithExtents(target, want);
    move.moved.source_size = ir::StaticDim(have[dim]);
    move.moved.target_size = ir::StaticDim(want[dim]);
    ir::Expr value = Rewrite(call.args()[0]);
    if (gives_all && StaysInPlace(move)) return BindPlaced(var, value, padded);
    ir::Var result = Bind(var, dialect::MakeSegmentExchange(value, padded, move));
    const std::vector<int> uneven = PaddedDims(source, have);
    const bool others_are_zero =
        HasZeroTail(value) ||
        std::all_of(uneven.begin(), uneven.end(), [dim](int d) { return d == dim; });
    if (move.fill == "0" && others_are_zero) has_zero_tail_.insert(result.get());
  }

  /*! \brief True if every element has the place in the result that it had. */
  static bool StaysInPlace(const dialect::SegmentMove& move) {
    if (move.segments.size() != 1 || move.moved.source_size != move.moved.target_size) return false;
    const mesh::Segment& segment = move.segments[0];
    return segment.source == 0 && segment.target == 0 && segment.step == 1;
  }

  // ---- operators

  void CallOperator(const ir::Var& var, const ir::Call& call) {
    rules::OpView view = rules::ViewCall(call, rules::StripDistribution(var.ty()), &kernels_);
    rules::FactorRule rule = rules::RuleOf(view);
    std::vector<ir::DTensorType> operands, results;
    for (const ir::Expr& arg : call.args()) dialect::CollectDTensorTypes(arg.ty(), &operands);
    dialect::CollectDTensorTypes(var.ty(), &results);
    const ValueExtents& taken = *grains_.TakenBy(var);
    const ValueExtents given = grains_.Of(var);
    const rules::FactorExtents extents = PaddedExtents(
        rule, operands, results, taken, given, [&](const ir::DTensorType& type, int dim) {
          RefuseUneven(var, ir::CalleeName(call), type, dim);
        });

    size_t next = 0;
    bool all_zero = true;
    ffi::Array<ir::Expr> args;
    for (const ir::Expr& arg : call.args()) {
      const ValueExtents wanted{taken.begin() + next,
                                taken.begin() + next + grains_.Of(arg).size()};
      args.push_back(MapTensors(Recut(Rewrite(arg), arg, wanted), arg.ty(),
                                [&](const ir::Expr& value, const ir::DTensorType& type) {
                                  all_zero = all_zero && HasZeroTail(value);
                                  const std::vector<int> dims = PaddedDims(type, taken[next]);
                                  return WithNeededTails(value, type, dims, view, rule, next++);
                                }));
    }
    const ir::Type type = WithExtents(var.ty(), given);
    ir::Call padded = rules::KernelTable::IsKernelCall(call.op())
                          ? PaddedKernelCall(call, *view.kernel, type, args, extents)
                          : rules::ResizedCall(call, type, args);
    const rules::Operator* record = rules::FindOperator(call.op());
    const bool is_corrected =
        record != nullptr && (record->sum != nullptr || record->counted_tail != nullptr);
    for (size_t i = 0; is_corrected && i < operands.size(); ++i) {
      if (!operands[i].defined() || !IsReducedUneven(rule, i, PaddedDims(operands[i], taken[i])))
        continue;
      const ir::Expr number = NumReduced(rule, i, operands[i]);
      if (record->sum != nullptr) return BindMean(var, padded, record->sum, number);
      return BindCount(var, padded, number);
    }
    ir::Var result = Bind(var, padded);
    if (all_zero && rules::MovesTails(call.op())) has_zero_tail_.insert(result.get());
  }

  [[noreturn]] void RefuseUneven(const ir::Var& var, const std::string& what,
                                 const ir::DTensorType& type, int dim) {
    TVM_FFI_THROW(ValueError) << "`" << var.name() << "` in `" << function_name_.name()
                              << "`: " << what << " cannot be padded along dimension " << dim
                              << " of " << ir::Print(type)
                              << ", which does not divide into its shards; redistribute it first";
  }

  ir::Expr WithNeededTails(const ir::Expr& value, const ir::DTensorType& type,
                           const std::vector<int>& padded_dims, const rules::OpView& view,
                           const rules::FactorRule& rule, size_t operand) {
    ir::Expr filled = value;
    for (Tail tail : {Tail::kZero, Tail::kOne, Tail::kLowest, Tail::kHighest, Tail::kNotANumber}) {
      if (tail == Tail::kZero && HasZeroTail(value)) continue;
      std::vector<int> dims;
      for (int d : padded_dims) {
        if (rules::NeededTail(view, rule, operand, rule.operands[operand][d][0]) == tail)
          dims.push_back(d);
      }
      if (dims.empty()) continue;
      ir::Count("masks");
      filled = Filled(filled, type, dims, tail);
    }
    return filled;
  }

  ir::Call PaddedKernelCall(const ir::Call& call, const rules::KernelRule& kernel,
                            const ir::Type& type, ffi::Array<ir::Expr> args,
                            const rules::FactorExtents& extents) {
    args.Set(0, padded_kernels_.Resized(ir::GlobalVar::Cast(args[0]), kernel, extents));
    // The types of what it writes are its type argument, too.
    return ir::MakeCall(type, call.op(), args, call.attrs(), {type}, call.span());
  }

  static bool IsReducedUneven(const rules::FactorRule& rule, size_t operand,
                              const std::vector<int>& padded_dims) {
    for (int d : padded_dims) {
      const rules::FactorList& factors = rule.operands[operand][d];
      if (!factors.empty() && rule.factors[factors[0]].Is<ReductionFactor>()) return true;
    }
    return false;
  }

  /*! \brief Number of elements of an operand that one element of the result is made from. */
  static ir::Expr NumReduced(const rules::FactorRule& rule, size_t operand,
                             const ir::DTensorType& type) {
    std::vector<ir::Expr> reduced;
    const ir::NodeArray<ir::Expr>& shape = ir::ShapeOf(type.tensor_ty());
    for (size_t d = 0; d < shape.size(); ++d) {
      const rules::FactorList& factors = rule.operands[operand][d];
      if (!factors.empty() && rule.factors[factors[0]].Is<ReductionFactor>())
        reduced.push_back(shape[d]);
    }
    return ir::Product(reduced);
  }

  void BindMean(const ir::Var& var, const ir::Call& mean, const char* sum_op,
                const ir::Expr& count) {
    ir::Expr sum = Emit(var.name(), ir::MakeCall(mean.ty(), ir::GetOp(sum_op), mean.args(),
                                                 mean.attrs(), {}, mean.span()));
    ir::Expr number = Number(count, ir::DTensorType::Cast(mean.ty()));
    Bind(var, ir::MakeCall(mean.ty(), ir::GetOp("relax.divide"), {sum, number}));
  }

  /*! \brief A count that has no more than the true number of elements. */
  void BindCount(const ir::Var& var, const ir::Call& padded, const ir::Expr& count) {
    const ir::Expr counted = Emit(var.name(), padded);
    const ir::Expr number = Number(count, ir::DTensorType::Cast(padded.ty()));
    Bind(var, ir::MakeCall(padded.ty(), ir::GetOp("relax.minimum"), {counted, number}));
  }

  // ---- tails

  /*! \brief An original expression, rewritten, with zeros in all tails. */
  ir::Expr WithZeroTails(const ir::Expr& expr) {
    ir::Expr value = Rewrite(expr);
    const ValueExtents extents = grains_.Of(expr);
    if (!IsPadded(expr.ty(), extents)) return value;
    size_t next = 0;
    return MapTensors(value, expr.ty(), [&](const ir::Expr& tensor, const ir::DTensorType& type) {
      std::vector<int> dims = PaddedDims(type, extents[next++]);
      bool is_zero = dims.empty() || HasZeroTail(tensor);
      return is_zero ? tensor : Filled(tensor, type, dims, Tail::kZero);
    });
  }

  bool HasZeroTail(const ir::Expr& value) const {
    if (auto item = ir::TupleGetItem::Cast(value); item.defined()) return HasZeroTail(item.tuple());
    if (auto tuple = ir::Tuple::Cast(value); tuple.defined()) {
      for (const ir::Expr& field : tuple.fields()) {
        if (!HasZeroTail(field)) return false;
      }
      return true;
    }
    return has_zero_tail_.count(value.get()) > 0;
  }

  const ir::GlobalVar function_name_;
  const bool is_called_;  // by a function of the module
  dialect::MeshTable& meshes_;
  const Grains& grains_;
  rules::KernelTable& kernels_;
  rules::ResizedKernels& padded_kernels_;
  const PaddedFunctions& functions_;
  ir::Function function_;
  CastSizes cast_sizes_;
  bool symbolic_is_padded_ = false;  // of a parameter or a result
  /*! \brief Original calls that can be written for other sizes, by their variables. */
  std::unordered_map<const ffi::Object*, ir::Call> sized_calls_;
  /*! \brief Variables of the new function, tensors or tuples of them, whose tails are zeros. */
  std::unordered_set<const ffi::Object*> has_zero_tail_;
};

}  // namespace

ir::Function PadFunction(const ir::Function& function, const ir::GlobalVar& name, bool is_called,
                         const PaddedModule& module) {
  return Padder(name, is_called, module).Run(function);
}

}  // namespace distir::padding
