// Replaces repeated segments of bindings by calls of one function.
#include "outline/outline_repeats.h"

#include <algorithm>
#include <cctype>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ir/build.h"
#include "ir/module/names.h"
#include "ir/module/renew.h"
#include "ir/report.h"
#include "ir/rewriter.h"
#include "ir/symbolic.h"
#include "ir/tvm/pass.h"
#include "outline/repeats.h"
#include "outline/segment.h"
#include "support/functions.h"

namespace distir::outline {

namespace {

constexpr const char* kFunctionName = "layer";

/*! \brief Common part of two names: "l.up" of "l.3.up" and "l.4.up", else the first. */
std::string CommonName(const std::string& first, const std::string& second) {
  size_t at = 0;
  while (at < first.size() && at < second.size() && first[at] == second[at]) ++at;
  auto is_digit = [](const std::string& text, size_t i) {
    return i < text.size() && std::isdigit(static_cast<unsigned char>(text[i])) != 0;
  };
  while (at > 0 && is_digit(first, at - 1)) --at;
  if (!is_digit(first, at) || !is_digit(second, at)) return first;
  size_t end = at;
  while (is_digit(first, end)) ++end;
  auto is_separator = [&](size_t i) {
    return i < first.size() && (first[i] == '.' || first[i] == '_');
  };
  if (at > 0 && is_separator(at - 1) && is_separator(end)) ++end;
  const std::string name = first.substr(0, at) + first.substr(end);
  return name.empty() || is_digit(name, 0) ? first : name;
}

/*! \brief The symbolic sizes that a segment speaks of, in order, and those that its inputs state.
 */
class Sizes {
 public:
  void Use(const ir::Type& type) {
    ir::MapDims(type, [this](const ir::Expr& dim) { return UseDim(dim); });
  }
  void Use(const ir::Expr& value) {
    if (auto call = ir::Call::Cast(value); call.defined()) {
      Use(call.ty());
      for (const ir::Type& type : call.ty_args()) Use(type);
      for (const ir::Expr& arg : call.args()) Use(arg);
    } else if (auto tuple = ir::Tuple::Cast(value); tuple.defined()) {
      for (const ir::Expr& field : tuple.fields()) Use(field);
    } else if (auto shape = ir::ShapeExpr::Cast(value); shape.defined()) {
      for (const ir::Expr& dim : shape.values()) UseDim(dim);
    } else if (!ir::Var::Is(value) && ir::PrimType::Is(value.ty())) {
      UseDim(value);
    }
  }
  void State(const ir::Type& type) {
    ir::MapDims(type, [this](const ir::Expr& dim) {
      if (ir::Var::Is(dim)) is_stated_[dim.get()] = true;
      return dim;
    });
  }
  ffi::Array<ir::Expr> NotStated() const {
    ffi::Array<ir::Expr> missing;
    for (const ir::Var& size : used_) {
      if (!is_stated_.at(size.get())) missing.push_back(size);
    }
    return missing;
  }

 private:
  ir::Expr UseDim(const ir::Expr& dim) {
    ir::VisitVars(dim, [this](const ir::Var& size) {
      if (is_stated_.emplace(size.get(), false).second) used_.push_back(size);
    });
    return dim;
  }

  std::vector<ir::Var> used_;
  std::unordered_map<const ffi::Object*, bool> is_stated_;
};

/*! \brief The function that computes what the first segment computes. */
ir::Function MakeSegmentFunction(const Segments& segments, const Interface& interface,
                                 ffi::Array<ir::Expr>* sizes) {
  ir::Names names;
  ffi::Array<ir::Var> params;
  Sizes used;
  for (const std::vector<ir::Expr>& values : interface.inputs) {
    const ir::Var first = ir::Var::Cast(values[0]), second = ir::Var::Cast(values[1]);
    const std::string name = first.defined() ? CommonName(first.name(), second.name()) : "constant";
    params.push_back(ir::MakeVar(names.Fresh(name), values[0].ty(), false));
    used.Use(values[0].ty());
    used.State(values[0].ty());
  }

  std::vector<bool> is_output(segments.length, false);
  for (size_t place : interface.outputs) is_output[place] = true;
  ffi::Array<ir::Binding> bindings;
  std::vector<ir::Expr> own;
  InOrder leaves(interface.leaves);
  for (size_t place = 0; place < segments.length; ++place) {
    const ir::Var& var = segments.At(0, place).var();
    const ir::Expr& value = ir::VarBinding::Cast(segments.At(0, place)).value();
    std::vector<ir::Expr> replaced;
    for (const ir::Expr& expr : LeavesOf(value)) {
      const Leaf& leaf = leaves.Take();
      replaced.push_back(leaf.kind == Leaf::Kind::kOwn     ? own[leaf.index]
                         : leaf.kind == Leaf::Kind::kInput ? params[leaf.index]
                                                           : expr);
    }
    used.Use(var.ty());
    used.Use(value);
    InOrder next(replaced);
    own.push_back(ir::MakeVar(names.Fresh(var.name()), var.ty(), !is_output[place]));
    bindings.push_back(ir::MakeBinding(ir::Var::Cast(own.back()), WithLeaves(value, &next)));
  }

  *sizes = used.NotStated();
  if (!sizes->empty())
    params.push_back(ir::MakeVar(names.Fresh("sizes"), ir::MakeShapeType(*sizes), false));

  ir::Expr result = own[interface.outputs[0]];
  if (interface.outputs.size() > 1) {
    ffi::Array<ir::Expr> fields;
    for (size_t place : interface.outputs) fields.push_back(own[place]);
    const ir::Expr tuple = ir::MakeTuple(fields);
    result = ir::MakeVar(names.Fresh("results"), tuple.ty(), false);
    bindings.push_back(ir::MakeBinding(ir::Var::Cast(result), tuple));
  }
  const ir::SeqExpr body = ir::MakeSeq({ir::MakeBlock(bindings, true)}, result, result.ty());
  return ir::RenewVars(
      ir::MakeFunction(params, body, result.ty(), true, ir::WithAttr(ir::Node(), "", nullptr)));
}

/*! \brief The calls that stand for the segments. */
std::vector<ir::Binding> CallsOf(const Segments& segments, const Interface& interface,
                                 const ir::GlobalVar& function,
                                 const ir::NodeArray<ir::Expr>& sizes, ir::Names* names,
                                 bool is_dataflow) {
  std::vector<ir::Binding> calls;
  for (size_t segment = 0; segment < segments.count(); ++segment) {
    ffi::Array<ir::Expr> args;
    for (const std::vector<ir::Expr>& values : interface.inputs) args.push_back(values[segment]);
    if (!sizes.empty()) args.push_back(ir::MakeShape(sizes));
    ffi::Array<ir::Type> types;
    for (size_t place : interface.outputs) types.push_back(segments.At(segment, place).var().ty());
    const ir::Type type = types.size() == 1 ? types[0] : ir::MakeTupleType(types);
    const ir::Call call = ir::MakeCall(type, function, args);
    if (types.size() == 1) {
      calls.push_back(ir::MakeBinding(segments.At(segment, interface.outputs[0]).var(), call));
      continue;
    }
    const ir::Var tuple = ir::MakeVar(names->Fresh(kFunctionName), type, is_dataflow);
    calls.push_back(ir::MakeBinding(tuple, call));
    for (size_t i = 0; i < interface.outputs.size(); ++i) {
      calls.push_back(ir::MakeBinding(segments.At(segment, interface.outputs[i]).var(),
                                      ir::MakeTupleGetItem(tuple, static_cast<int>(i))));
    }
  }
  return calls;
}

/*! \brief Outlines what repeats itself in one function. */
class FunctionOutliner {
 public:
  FunctionOutliner(const ir::Function& function, size_t min_operators,
                   ir::FunctionNames* function_names)
      : function_(function),
        min_operators_(min_operators),
        function_names_(function_names),
        names_(function) {}

  /*! \brief The function, and in `made` those that it calls now. */
  ir::Function Run(ir::FunctionMap* made) {
    ffi::Array<ir::BindingBlock> blocks;
    bool has_changed = false;
    for (const ir::BindingBlock& block : function_.body().blocks()) {
      bindings_.assign(block.bindings().begin(), block.bindings().end());
      is_dataflow_ = ir::DataflowBlock::Is(block);
      if (OutlineBlock(made)) {
        blocks.push_back(ir::MakeBlock({bindings_.begin(), bindings_.end()}, is_dataflow_));
        has_changed = true;
      } else {
        blocks.push_back(block);
      }
    }
    if (!has_changed) return function_;
    const ir::SeqExpr& body = function_.body();
    return ir::MakeFunction(function_.params(), ir::MakeSeq(blocks, body.body(), body.ty()),
                            function_.ret_ty(), function_.is_pure(), function_.attrs());
  }

 private:
  bool OutlineBlock(ir::FunctionMap* made) {
    std::vector<uint64_t> numbers;
    for (const ir::Binding& binding : bindings_)
      numbers.push_back(NumberOf(binding, is_dataflow_, &unique_));
    bool has_changed = false;
    while (true) {
      Repeats repeats = FindRepeats(numbers, min_operators_);
      if (repeats.saved() == 0) return has_changed;
      repeats.begin += BestOffset(repeats);
      const size_t length = repeats.count() * repeats.period;
      const size_t end = repeats.begin + length;
      if (num_uses_.empty()) num_uses_ = ir::CountUses(function_);
      const Segments segments{{bindings_.begin() + repeats.begin, bindings_.begin() + end},
                              repeats.period};
      const std::optional<Interface> interface = FindInterface(segments, num_uses_);
      if (!interface.has_value() || interface->outputs.empty()) {
        ir::Skip("outline", "segments take values from different places");
        for (size_t i = repeats.begin; i < end; ++i) numbers[i] = unique_++;
        continue;
      }
      const std::vector<ir::Binding> calls = Outline(segments, *interface, made);
      ir::Count("calls", static_cast<int64_t>(segments.count()));
      bindings_.erase(bindings_.begin() + repeats.begin, bindings_.begin() + end);
      bindings_.insert(bindings_.begin() + repeats.begin, calls.begin(), calls.end());
      numbers.erase(numbers.begin() + repeats.begin, numbers.begin() + end);
      std::vector<uint64_t> own(calls.size());
      for (uint64_t& number : own) number = unique_++;
      numbers.insert(numbers.begin() + repeats.begin, own.begin(), own.end());
      has_changed = true;
    }
  }

  std::vector<ir::Binding> Outline(const Segments& segments, const Interface& interface,
                                   ir::FunctionMap* made) {
    ffi::Array<ir::Expr> sizes;
    const ir::Function function = MakeSegmentFunction(segments, interface, &sizes);
    const ir::GlobalVar name = ir::MakeGlobalVar(function_names_->Fresh(kFunctionName));
    ffi::Array<ir::Type> params;
    for (const ir::Var& param : function.params()) params.push_back(param.ty());
    ir::SetType(name, ir::MakeFuncType(params, function.ret_ty(), true));
    made->Set(name, function);
    return CallsOf(segments, interface, name, sizes, &names_, is_dataflow_);
  }

  /*! \brief Offset at which later segments begin, so that the fewest values pass between them;
   * small enough for two segments to be left. */
  size_t BestOffset(const Repeats& repeats) const {
    std::unordered_map<const ffi::Object*, size_t> made_at;
    for (size_t i = repeats.begin; i < repeats.begin + 2 * repeats.period; ++i)
      made_at[bindings_[i].var().get()] = i;
    // Between the first segments: how many values of this region are used behind each place.
    std::vector<size_t> last_use(bindings_.size(), 0);
    for (size_t i = repeats.begin; i < repeats.end; ++i) {
      for (const ir::Expr& leaf : LeavesOf(ir::VarBinding::Cast(bindings_[i]).value())) {
        auto found = made_at.find(leaf.get());
        if (found != made_at.end()) last_use[found->second] = i;
      }
    }
    size_t best = 0, fewest = bindings_.size() + 1;
    for (size_t offset = 0; offset < repeats.period; ++offset) {
      const size_t cut = repeats.begin + repeats.period + offset;
      if (repeats.end - repeats.begin - offset < 2 * repeats.period) break;
      size_t crossing = 0;
      for (size_t i = cut - repeats.period; i < cut; ++i) crossing += last_use[i] >= cut ? 1 : 0;
      if (crossing >= fewest) continue;
      fewest = crossing;
      best = offset;
    }
    return best;
  }

  ir::Function function_;
  size_t min_operators_;
  ir::FunctionNames* function_names_;
  ir::Names names_;
  std::unordered_map<const ffi::Object*, int> num_uses_;
  std::vector<ir::Binding> bindings_;  // of the block
  bool is_dataflow_ = false;
  uint64_t unique_ = 0;
};

}  // namespace

ir::IRModule OutlineRepeats(const ir::IRModule& mod, int64_t min_operators) {
  ir::FunctionNames names;
  for (const auto& [name, function] : mod.functions()) names.Add(name.name());
  ir::FunctionMap functions = mod.functions();
  bool has_changed = false;
  for (const auto& [name, base] : ir::OrderedFunctions(mod)) {
    const ir::Function function = ir::Function::Cast(base);
    if (!function.defined()) continue;
    const ir::Function outlined =
        FunctionOutliner(function, static_cast<size_t>(min_operators), &names).Run(&functions);
    if (outlined.same_as(function)) continue;
    functions.Set(name, outlined);
    has_changed = true;
  }
  return has_changed ? ir::MakeModule(functions, mod.attrs(), mod.global_infos()) : mod;
}

TVM_FFI_STATIC_INIT_BLOCK() {
  support::Functions().def("distir.transform.OutlineRepeats", [](int64_t min_operators) {
    return ir::MakeModulePass("OutlineRepeats", [min_operators](const ir::IRModule& mod) {
      return OutlineRepeats(mod, min_operators);
    });
  });
}

}  // namespace distir::outline
