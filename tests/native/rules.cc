// Test hooks: operators that commute with reductions, estimated times of operators, and local
// kernels of any cut, also of cuts that no rule makes.
#include "arguments.h"
#include "ir/rewriter.h"
#include "lower/local/local_kernel.h"
#include "rules/linearity.h"
#include "rules/operator.h"
#include "stages/work.h"
#include "support/error.h"

namespace distir::test {

namespace {

const bool kRules = Register({
    {"CommutingOperators",
     [](Arguments&) -> Any {
       ffi::Array<Any> names;
       for (const rules::Operator& record : rules::AllOperators()) {
         if (record.commutation.any()) names.push_back(ffi::String(record.name));
       }
       return names;
     }},
    {"CommutesWith",  // a call, marks of its partial operands, a reduction
     [](Arguments& in) -> Any {
       const auto call = in.Next<ir::Call>();
       const auto partial = in.Next<ffi::Array<bool>>();
       const mesh::Reduction reduction = mesh::ReductionFromName(in.Next<ffi::String>());
       return rules::CommutesWith(call, {partial.begin(), partial.end()}, reduction);
     }},
    {"Work",  // of a function of a module, on a device: seconds of each binding
     [](Arguments& in) -> Any {
       const auto mod = in.Next<ir::IRModule>();
       const auto function = in.Next<ir::Function>();
       const auto operations = in.Next<double>(), bytes = in.Next<double>();
       stages::WorkEstimate work(mod, {operations, bytes});
       ffi::Array<double> seconds;
       ir::VisitBindings(function.body(), [&](const ir::Binding& binding) {
         seconds.push_back(work.SecondsOf(binding));
       });
       return seconds;
     }},
    {"LocalKernel",  // the cut that a rule may ask for, or one that none should
     [](Arguments& in) -> Any {
       const std::string what = in.Next<ffi::String>();
       const auto function = in.Next<ir::PrimFunc>();
       const auto shards = in.Next<ffi::Array<int64_t>>();
       const rules::KernelRule kernel = rules::DeriveKernelRule(function);
       DISTIR_REQUIRE(kernel.failure.empty(), ValueError) << what << ": " << kernel.failure;
       std::vector<int64_t> parts(kernel.factors.size(), 1);
       for (size_t f = 0; f < parts.size() && f < shards.size(); ++f) parts[f] = shards[f];
       return lower::MakeLocalKernel(what, kernel, parts);
     }},
});

}  // namespace

}  // namespace distir::test
