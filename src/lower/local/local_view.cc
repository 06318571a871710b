// LowerGlobalViewToLocalView: kernels on DTensors become kernels on shards.
#include "lower/local/local_view.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <vector>

#include "dialect/operators/local_view.h"
#include "dialect/placement.h"
#include "ir/build.h"
#include "ir/leaves.h"
#include "ir/module/names.h"
#include "ir/report.h"
#include "ir/rewriter.h"
#include "ir/symbolic.h"
#include "ir/tir_node.h"
#include "lower/local/local_kernel.h"
#include "lower/passes.h"
#include "rules/factor/factor_rule.h"
#include "rules/tir/rule.h"

namespace distir::lower {

namespace ffi = tvm::ffi;

namespace {

std::string SizesText(const std::vector<int64_t>& sizes) {
  std::string text;
  for (int64_t size : sizes)
    text += (text.empty() ? "" : ", ") + (size < 0 ? std::string("?") : std::to_string(size));
  return "(" + text + (sizes.size() == 1 ? ",)" : ")");
}

/*! \brief The tensor types among a type's leaves, in order. */
std::vector<ir::Type> TensorsOf(const ir::Type& type) {
  std::vector<ir::Type> tensors;
  ir::ForEachLeaf(type, [&tensors](const ir::Type& leaf) {
    if (ir::TensorType::Is(leaf) || ir::DTensorType::Is(leaf)) tensors.push_back(leaf);
  });
  return tensors;
}

/*! \brief The sizes of a tensor on a device, -1 where they are not known. */
std::vector<int64_t> SizesOnDevice(const ir::Type& type, dialect::MeshTable* meshes) {
  auto dtensor = ir::DTensorType::Cast(type);
  const rules::Sizes whole =
      rules::StaticSizes(dtensor.defined() ? dtensor.tensor_ty() : ir::TensorType::Cast(type));
  std::vector<int64_t> sizes(whole.begin(), whole.end());
  if (!dtensor.defined()) return sizes;
  const mesh::Sharding& sharding = meshes->ShardingOf(dtensor);
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] >= 0) sizes[d] /= mesh::NumShards(sharding.dims[d]);
  }
  return sizes;
}

bool Agree(const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](int64_t x, int64_t y) { return x < 0 || y < 0 || x == y; });
}

}  // namespace

std::string MisfitOfLocalView(const ir::Call& local_view, const ir::FunctionMap& functions,
                              dialect::MeshTable* meshes) {
  auto name = ir::GlobalVar::Cast(local_view.args()[0]);
  auto found = functions.find(name);
  auto kernel = found == functions.end() ? ir::PrimFunc() : ir::PrimFunc::Cast((*found).second);
  if (!kernel.defined()) return "`" + name.name() + "` is no kernel of the module";
  std::vector<ir::Var> buffers;
  for (const ir::Var& param : kernel.params()) {
    if (ir::BufferType::Is(param.ty())) buffers.push_back(param);
  }
  const std::vector<ir::Type> operands = TensorsOf(local_view.args()[1].ty());
  const std::vector<ir::Type> results = TensorsOf(local_view.ty());
  const std::vector<size_t> of_results =
      rules::ParamsOfResults(local_view, operands.size(), results.size());
  size_t num_tensors = operands.size();
  for (size_t param : of_results) num_tensors = std::max(num_tensors, param + 1);
  if (num_tensors != buffers.size())
    return "kernel `" + name.name() + "` has " + std::to_string(buffers.size()) +
           " tensors, the call " + std::to_string(num_tensors);
  auto misfit = [&](const ir::Type& type, size_t param, const std::string& what) -> std::string {
    std::vector<int64_t> taken;
    for (const ir::Expr& size : ir::BufferType::Cast(buffers[param].ty()).shape())
      taken.push_back(ir::StaticDim(size));
    const std::vector<int64_t> have = SizesOnDevice(type, meshes);
    if (Agree(have, taken)) return "";
    auto dtensor = ir::DTensorType::Cast(type);
    return "kernel `" + std::string(name.name()) + "` has " + SizesText(taken) + " for `" +
           std::string(buffers[param].name()) + "`, " + what + ", of which a device has " +
           SizesText(have) +
           (dtensor.defined() ? ", since it is sharded " + meshes->TextAmongMeshes(dtensor) : "");
  };
  std::string why;
  for (size_t i = 0; i < operands.size() && why.empty(); ++i)
    why = misfit(operands[i], i, "argument " + std::to_string(i));
  for (size_t i = 0; i < results.size() && why.empty(); ++i)
    why = misfit(results[i], of_results[i], "result " + std::to_string(i));
  return why;
}

namespace {

/*! \brief True if a call is a kernel on DTensors; one on Tensors is the same on every device. */
bool IsGlobalView(const ir::Call& call) {
  return rules::KernelTable::IsKernelCall(call.op()) &&
         (dialect::HasDTensor(call.ty()) || dialect::TakesDTensors(call));
}

/*! \brief Puts local views in place of kernel calls. No type changes, so everything else stays the
 * object that it was. */
class LocalViewWriter {
 public:
  explicit LocalViewWriter(LocalKernels* kernels) : kernels_(*kernels) {}

  ir::SeqExpr Rewrite(const ir::SeqExpr& seq) {
    ffi::Array<ir::BindingBlock> blocks;
    for (const ir::BindingBlock& block : seq.blocks()) {
      ffi::Array<ir::Binding> bindings;
      for (const ir::Binding& binding : block.bindings()) bindings.push_back(Rewrite(binding));
      blocks.push_back(ir::MakeBlock(bindings, ir::DataflowBlock::Is(block)));
    }
    return ir::MakeSeq(blocks, seq.body(), seq.ty());
  }

 private:
  ir::Binding Rewrite(const ir::Binding& binding) {
    auto bound = ir::VarBinding::Cast(binding);
    if (!bound.defined()) return binding;
    if (auto branch = ir::If::Cast(bound.value()); branch.defined()) {
      return ir::MakeBinding(bound.var(), ir::MakeIf(branch.cond(), Rewrite(branch.true_branch()),
                                                     Rewrite(branch.false_branch()), branch.ty()));
    }
    const ir::Call call = ir::BoundCall(binding);
    if (!call.defined() || !IsGlobalView(call)) return binding;
    ir::Count("kernels");
    ffi::Array<ir::Expr> args = call.args();
    args.Set(0, kernels_.Localize(call));
    return ir::MakeBinding(bound.var(), ir::MakeCall(call.ty(), dialect::LocalViewOf(call), args,
                                                     call.attrs(), call.ty_args(), call.span()));
  }

  LocalKernels& kernels_;
};

}  // namespace

ir::IRModule LowerGlobalViewToLocalView(const ir::IRModule& mod) {
  dialect::MeshTable meshes(mod);
  ir::FunctionMap functions = mod.functions();
  std::vector<std::pair<ir::GlobalVar, ir::Function>> with_kernels;
  for (const auto& [gv, base] : ir::OrderedFunctions(mod)) {
    ir::Function function = ir::Function::Cast(base);
    if (!function.defined()) continue;
    bool has_kernels = false;
    ir::VisitBindings(function.body(), [&, name = gv.name()](const ir::Binding& binding) {
      const ir::Call call = ir::BoundCall(binding);
      if (!call.defined()) return;
      has_kernels = has_kernels || IsGlobalView(call);
      if (!dialect::IsLocalView(call.op())) return;
      const std::string misfit = MisfitOfLocalView(call, mod.functions(), &meshes);
      if (!misfit.empty())
        TVM_FFI_THROW(ValueError) << "local view `" << binding.var().name() << "` in `" << name
                                  << "`: " << misfit;
    });
    if (has_kernels) with_kernels.emplace_back(gv, function);
  }
  if (with_kernels.empty()) return mod;
  ir::FunctionNames names;
  for (const auto& [gv, base] : functions) names.Add(gv.name());
  LocalKernels kernels(mod.functions(), &meshes,
                       [&](const std::string& name, const ir::BaseFunc& kernel) {
                         ir::GlobalVar gv = ir::MakeGlobalVar(names.Fresh(name));
                         ir::SetType(gv, kernel.ty());
                         functions.Set(gv, kernel);
                         return gv;
                       });
  for (const auto& [gv, function] : with_kernels) {
    functions.Set(
        gv, ir::MakeFunction(function.params(), LocalViewWriter(&kernels).Rewrite(function.body()),
                             function.ret_ty(), function.is_pure(), function.attrs()));
  }
  return ir::MakeModule(functions, mod.attrs(), meshes.GlobalInfos());
}

}  // namespace distir::lower
