// Registers the solver of automatic sharding as a global function on plain arrays.
#include <tvm/ffi/any.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "autoshard/callback.h"
#include "autoshard/problem.h"
#include "autoshard/solver.h"
#include "support/functions.h"

namespace distir::autoshard {

namespace ffi = tvm::ffi;

namespace {

/*! \brief Reads the numbers of an array one after the other. */
class Numbers {
 public:
  Numbers(const ffi::Tensor& tensor, const char* name) : name_(name) {
    const DLDataType dtype = tensor.dtype();
    if (dtype.code != kDLInt || dtype.bits != 64 || dtype.lanes != 1 || tensor.ndim() != 1 ||
        tensor.device().device_type != kDLCPU || !tensor.IsContiguous()) {
      TVM_FFI_THROW(TypeError) << name << " is not a contiguous vector of int64 on the CPU";
    }
    next_ = static_cast<const int64_t*>(tensor.data_ptr());
    end_ = next_ + tensor.size(0);
  }

  bool is_empty() const { return next_ == end_; }
  int64_t Next() {
    if (is_empty()) TVM_FFI_THROW(ValueError) << name_ << " ends too early";
    return *next_++;
  }
  /*! \brief A number in [low, high). */
  int32_t Next(int64_t low, int64_t high) {
    const int64_t number = Next();
    if (number < low || number >= high) {
      TVM_FFI_THROW(ValueError) << name_ << " has " << number << ", which is not in [" << low
                                << ", " << high << ")";
    }
    return static_cast<int32_t>(number);
  }
  std::vector<int64_t> Next(size_t count) {
    if (static_cast<size_t>(end_ - next_) < count)
      TVM_FFI_THROW(ValueError) << name_ << " ends too early";
    std::vector<int64_t> numbers(next_, next_ + count);
    next_ += count;
    return numbers;
  }
  void End() const {
    if (!is_empty()) TVM_FFI_THROW(ValueError) << name_ << " has more numbers than are needed";
  }

 private:
  const char* name_;
  const int64_t* next_;
  const int64_t* end_;
};

/*!
 * \brief Solves the problem that arrays state.
 *
 * \param sizes How many strategies each node has.
 * \param costs Of all strategies, node by node.
 * \param usages Node, begin and end of each usage.
 * \param amounts Of all usages, one per strategy of its node.
 * \param edges Two nodes per edge.
 * \param edge_costs Row-major matrices, edge by edge.
 * \param limits Of each time.
 * \param stop Called with the best cost (kInfinite if there is none) and the bound.
 * \return The choice (empty if none is known), its cost, the bound.
 */
ffi::Array<ffi::Any> SolveArrays(ffi::Tensor sizes, ffi::Tensor costs, ffi::Tensor usages,
                                 ffi::Tensor amounts, ffi::Tensor edges, ffi::Tensor edge_costs,
                                 ffi::Tensor limits, int64_t rounds, double gap,
                                 ffi::Function stop) {
  constexpr int64_t kMostNodes = INT32_MAX;
  constexpr int64_t kMostStrategies = INT16_MAX;
  Problem problem;
  Numbers size(sizes, "sizes");
  Numbers cost(costs, "costs");
  while (!size.is_empty()) {
    const int32_t strategies = size.Next(1, kMostStrategies);
    problem.nodes.push_back({cost.Next(static_cast<size_t>(strategies)), {}});
  }
  cost.End();
  Numbers limit(limits, "limits");
  while (!limit.is_empty()) problem.limits.push_back(limit.Next());
  const auto nodes = static_cast<int64_t>(problem.nodes.size());
  const auto times = static_cast<int64_t>(problem.limits.size());
  Numbers usage(usages, "usages");
  Numbers amount(amounts, "amounts");
  while (!usage.is_empty()) {
    Node& node = problem.nodes[usage.Next(0, nodes)];
    const int32_t begin = usage.Next(0, times + 1);
    const int32_t end = usage.Next(begin, times + 1);
    node.usages.push_back({begin, end, amount.Next(node.costs.size())});
  }
  amount.End();
  Numbers edge(edges, "edges");
  Numbers edge_cost(edge_costs, "edge_costs");
  while (!edge.is_empty()) {
    const int32_t from = edge.Next(0, nodes);
    const int32_t to = edge.Next(0, nodes);
    const size_t entries = problem.nodes[from].costs.size() * problem.nodes[to].costs.size();
    problem.edges.push_back({from, to, edge_cost.Next(entries)});
  }
  edge_cost.End();
  if (rounds < 0 || rounds > kMostNodes)
    TVM_FFI_THROW(ValueError) << "rounds is " << rounds << ", which is not in [0, 2**31)";
  const Solution solution = Solve(problem, static_cast<int32_t>(rounds), gap,
                                  [&stop](const Solution& best) { return Ends(stop, best); });
  std::vector<int64_t> choice(solution.choice.begin(), solution.choice.end());
  return {ffi::Shape(std::move(choice)), solution.cost, solution.bound};
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() { support::Functions().def("distir.autoshard.Solve", SolveArrays); }

}  // namespace distir::autoshard
