// DispatchConvolution: convolutions become calls of the runtime, which computes them as products of
// matrices by BLAS.
//
//     y = R.nn.conv2d(x, w, strides=[2, 2], padding=[1, 1, 1, 1])
//     ->
//     y = R.call_dps_packed("distir.runtime.convolution",
//                           (x, w, R.str("NCHW,OIHW->NCHW strides=2,2 padding=1,1,1,1 .."), ...)
#include <optional>
#include <string>

#include "ir/build.h"
#include "ir/operator_attrs.h"
#include "ir/report.h"
#include "ir/rewriter.h"
#include "ir/symbolic.h"
#include "rules/factor/layout.h"
#include "target/cpu/passes.h"

namespace distir::target {

namespace {

namespace ffi = tvm::ffi;

struct Operator {
  const char* name;
  const ir::attrs::ConvFields* fields;
  bool is_transposed;
};

const Operator kOperators[] = {
    {"relax.nn.conv1d", &ir::attrs::kConv1d, false},
    {"relax.nn.conv2d", &ir::attrs::kConv2d, false},
    {"relax.nn.conv3d", &ir::attrs::kConv3d, false},
    {"relax.nn.conv1d_transpose", &ir::attrs::kTransposed1d, true},
    {"relax.nn.conv2d_transpose", &ir::attrs::kTransposed2d, true},
    {"relax.nn.conv3d_transpose", &ir::attrs::kTransposed3d, true},
};

// A convolution of fewer multiplications takes less time in a loop, fused with its neighbours.
constexpr int64_t kSmallestWork = 1024;

bool IsFloat(DLDataType dtype, int bits) { return dtype.code == kDLFloat && dtype.bits == bits; }

/*! \brief True if the runtime computes with these dtypes. */
bool AreComputed(const ir::TensorType& data, const ir::TensorType& weight,
                 const ir::TensorType& out, bool is_transposed) {
  for (const ir::TensorType& type : {data, weight, out}) {
    if (!type.has_dtype() || type.dtype().lanes != 1) return false;
  }
  const DLDataType in = data.dtype(), result = out.dtype();
  if (weight.dtype().code != in.code || weight.dtype().bits != in.bits) return false;
  const bool is_same = in.code == result.code && in.bits == result.bits;
  if (IsFloat(in, 32) || IsFloat(in, 64)) return is_same;
  if (IsFloat(in, 16) || (in.code == kDLBfloat && in.bits == 16))
    return is_same || IsFloat(result, 32);
  const bool is_integer = (in.code == kDLInt || in.code == kDLUInt) && in.bits == 8;
  return is_integer && !is_transposed && result.code == kDLInt && result.bits == 32;
}

/*! \brief True if there is too little to multiply; symbolic sizes count as enough. */
bool IsSmall(const ir::TensorType& weight, const ir::TensorType& out) {
  int64_t work = 1;
  for (const ir::TensorType& type : {weight, out}) {
    for (const ir::Expr& dim : ir::ShapeOf(type)) {
      const int64_t size = ir::StaticDim(dim);
      if (size < 0) return false;
      if (size == 0) return true;
      if (work < kSmallestWork) work *= size;
    }
  }
  return work < kSmallestWork;
}

std::string ListOf(const ir::AttrField& field, const ir::Node& attrs) {
  std::string text;
  for (int64_t value : field(attrs).cast<ffi::Array<int64_t>>())
    text += (text.empty() ? "" : ",") + std::to_string(value);
  return text;
}

/*! \brief The argument that describes a convolution to the runtime; nullopt if it does not compute
 * it. */
std::optional<std::string> TextOf(const ir::Call& call, const ir::Type& type) {
  for (const Operator& each : kOperators) {
    if (!ir::IsOp(call.op(), each.name)) continue;
    const auto data = ir::TensorType::Cast(call.args()[0].ty());
    const auto weight = ir::TensorType::Cast(call.args()[1].ty());
    const auto out = ir::TensorType::Cast(type);
    for (const ir::TensorType& tensor : {data, weight, out}) {
      if (!tensor.defined() || !ir::HasKnownShape(tensor)) return std::nullopt;
    }
    if (!AreComputed(data, weight, out, each.is_transposed) || IsSmall(weight, out))
      return std::nullopt;
    const ir::Node& attrs = call.attrs();
    const std::string data_layout = each.fields->data_layout.Text(attrs);
    const std::string kernel_layout = each.fields->kernel_layout.Text(attrs);
    std::string out_layout = each.fields->out_layout.Text(attrs);
    if (out_layout.empty()) out_layout = data_layout;
    for (const std::string& layout : {data_layout, kernel_layout, out_layout}) {
      if (rules::IsBlocked(rules::LayoutLetters(layout))) return std::nullopt;
    }
    return data_layout + "," + kernel_layout + "->" + out_layout +
           " strides=" + ListOf(each.fields->strides, attrs) +
           " padding=" + ListOf(each.fields->padding, attrs) +
           " dilation=" + ListOf(each.fields->dilation, attrs) +
           " groups=" + std::to_string(each.fields->groups.Int(attrs, 1)) +
           (each.is_transposed ? " transposed" : "");
  }
  return std::nullopt;
}

class Dispatcher : public ir::FunctionRewriter {
 public:
  bool found() const { return found_; }

 private:
  void RewriteVarBinding(const ir::Var& var, const ir::Expr& value) override {
    const ir::Call call = ir::Call::Cast(value);
    const auto text = call.defined() ? TextOf(call, var.ty()) : std::nullopt;
    if (!text.has_value()) return FunctionRewriter::RewriteVarBinding(var, value);
    found_ = true;
    ir::Count("convolutions");
    const ir::Expr arguments =
        ir::MakeTuple({Rewrite(call.args()[0]), Rewrite(call.args()[1]), ir::MakeString(*text)});
    Bind(var, ir::MakeOpCall(var.ty(), "relax.call_dps_packed",
                             {ir::MakeExternFunc("distir.runtime.convolution"), arguments}, {},
                             {var.ty()}));
  }

  bool found_ = false;
};

}  // namespace

ir::IRModule DispatchConvolution(const ir::IRModule& mod) {
  return ir::RewriteFunctions(mod, [](const ir::Function& function) {
    Dispatcher dispatcher;
    const ir::Function rewritten = dispatcher.RewriteFunction(function);
    return dispatcher.found() ? rewritten : ir::Function();
  });
}

}  // namespace distir::target
