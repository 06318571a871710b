// Slices for lookups at constant positions that follow each other.
#include "propagation/constant_positions.h"

#include <tvm/ffi/container/tensor.h>

#include <algorithm>
#include <string>

#include "ir/build.h"
#include "ir/make_operators.h"
#include "ir/operator_attrs.h"
#include "ir/rewriter.h"
#include "ir/symbolic.h"
#include "propagation/separated_call.h"
#include "rules/call/infer_type.h"
#include "rules/factor/axes.h"

namespace distir::propagation {

namespace ffi = tvm::ffi;

namespace {

/*! \brief More slices than this are no roll. */
constexpr size_t kMostRuns = 4;

/*! \brief Positions one behind the other, the last one left out. */
struct Run {
  int64_t begin, end;
};

/*! \brief The runs of positions in a dimension; empty if one is outside, or there are many. */
std::vector<Run> RunsOf(const std::vector<int64_t>& positions, int64_t size, bool counts_from_end) {
  std::vector<Run> runs;
  for (int64_t position : positions) {
    if (position < 0 && counts_from_end) position += size;
    if (position < 0 || position >= size) return {};
    if (!runs.empty() && runs.back().end == position) {
      ++runs.back().end;
    } else if (runs.size() < kMostRuns) {
      runs.push_back({position, position + 1});
    } else {
      return {};
    }
  }
  return runs;
}

class Slices : public ir::FunctionRewriter {
 public:
  bool any() const { return any_; }

 protected:
  void RewriteVarBinding(const ir::Var& var, const ir::Expr& value) override {
    const auto call = ir::Call::Cast(value);
    const ir::Call slices = call.defined() ? Written(var, call) : ir::Call();
    if (!slices.defined()) return ir::FunctionRewriter::RewriteVarBinding(var, value);
    any_ = true;
    Bind(var, slices);
  }

 private:
  /*! \brief A lookup as slices; null where a call is none. */
  ir::Call Written(const ir::Var& var, const ir::Call& call) {
    if (!ir::IsOp(call.op(), "relax.take")) return ir::Call();
    const std::optional<Dims> table = KnownShape(call.args()[0]), found = KnownShape(var);
    if (!table || !found || table->size() != found->size()) return ir::Call();
    const int rank = static_cast<int>(table->size());
    const auto axes = rules::ReadAxes(ir::attrs::kTakeAxis(call.attrs()), rank);
    const int axis = axes ? (*axes)[0] : 0;
    if ((!axes && rank != 1) || ir::StaticDim((*table)[axis]) < 0) return ir::Call();
    const auto positions = ConstantIntegers(call.args()[1]);
    if (!positions) return ir::Call();
    const bool counts_from_end = ir::attrs::kTakeMode.Text(call.attrs()) == "fast";
    const std::vector<Run> runs =
        RunsOf(*positions, ir::StaticDim((*table)[axis]), counts_from_end);
    if (runs.empty()) return ir::Call();
    const ir::Expr source = Rewrite(call.args()[0]);
    const auto one = [](int64_t number) { return ir::MakeTuple({ir::MakeInt(number)}); };
    ffi::Array<ir::Expr> pieces;
    ir::Call slice;
    for (const Run& run : runs) {
      const auto made =
          ir::make::kStridedSlice(source, one(axis), one(run.begin), one(run.end), one(1), false)
              .cast<ir::Call>();
      slice = ir::MakeCall(rules::InferGlobalType(made), made.op(), made.args(), made.attrs());
      if (runs.size() > 1) pieces.push_back(Emit(var.name(), slice));
    }
    if (runs.size() > 1)
      slice = ir::make::kConcat(ir::MakeTuple(pieces), int64_t{axis}).cast<ir::Call>();
    return ir::MakeCall(var.ty(), slice.op(), slice.args(), slice.attrs(), {}, call.span());
  }

  bool any_ = false;
};

}  // namespace

std::optional<std::vector<int64_t>> ConstantIntegers(const ir::Expr& value) {
  const auto constant = ir::Constant::Cast(value);
  if (!constant.defined() || !constant.IsTensor()) return std::nullopt;
  const auto tensor = constant.value().try_cast<ffi::Tensor>();
  if (!tensor || tensor->device().device_type != kDLCPU || !tensor->IsContiguous() ||
      tensor->dtype().code != kDLInt || tensor->dtype().lanes != 1)
    return std::nullopt;
  const auto* bytes = static_cast<const char*>(tensor->data_ptr()) + tensor->byte_offset();
  std::vector<int64_t> numbers(tensor->numel());
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (tensor->dtype().bits == 64) {
      numbers[i] = reinterpret_cast<const int64_t*>(bytes)[i];
    } else if (tensor->dtype().bits == 32) {
      numbers[i] = reinterpret_cast<const int32_t*>(bytes)[i];
    } else {
      return std::nullopt;
    }
  }
  return numbers;
}

ir::Function SliceAtConstants(const ir::Function& function) {
  bool any = false;
  ir::VisitBindings(function.body(), [&any](const ir::Binding& binding) {
    const ir::Call call = ir::BoundCall(binding);
    any = any ||
          (call.defined() && ir::IsOp(call.op(), "relax.take") && ir::Constant::Is(call.args()[1]));
  });
  if (!any) return function;
  Slices slices;
  ir::Function written = slices.RewriteFunction(function);
  if (!slices.any()) return function;
  return ir::MakeFunction(written.params(), written.body(), function.ret_ty(), function.is_pure(),
                          function.attrs());
}

}  // namespace distir::propagation
