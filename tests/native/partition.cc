// Test hook: cuts a list of operators into pipeline stages.
#include "stages/partition.h"

#include "arguments.h"

namespace distir::test {

namespace {

std::vector<double> Numbers(const ffi::Array<double>& array) {
  return std::vector<double>(array.begin(), array.end());
}

const bool kPartition = Register({
    {"Partition",
     [](Arguments& in) -> Any {
       stages::PartitionProblem problem;
       problem.work = Numbers(in.Next<ffi::Array<double>>());
       for (bool is_operator : in.Next<ffi::Array<bool>>())
         problem.is_operator.push_back(is_operator);
       problem.devices = Numbers(in.Next<ffi::Array<double>>());
       for (const ffi::Array<double>& into : in.Next<ffi::Array<ffi::Array<double>>>())
         problem.transfer.push_back(Numbers(into));
       problem.slack = in.Next<double>();
       return ArrayOf(stages::Partition(problem),
                      [](size_t item) { return static_cast<int64_t>(item); });
     }},
});

}  // namespace

}  // namespace distir::test
