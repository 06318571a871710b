// schedule_collectives: collectives start as early as their operands allow, and other work runs
// before their first use, so that communication and computation can overlap.
//
//     a = R.dist.all_gather(w1, ..)          a = R.dist.all_gather(w1, ..)
//     b = R.matmul(x, a)                     d = R.dist.all_gather(w2, ..)
//     c = R.nn.relu(y)                  ->   c = R.nn.relu(y)
//     d = R.dist.all_gather(w2, ..)          b = R.matmul(x, a)
//     e = R.matmul(c, d)                     e = R.matmul(c, d)
//
// A list schedule, in the order of the bindings wherever there is a choice: first a collective
// whose operands are there; else a binding that uses no value in flight; else the oldest collective
// in flight counts as done, which frees its users. Values in flight take memory, and so does what
// is computed meanwhile and waits for its users, such as the transposed weights of all later
// layers: bindings come earlier only as long as each of the two has at most
// Options::prefetch_bytes, and at most kRunAhead bindings run while one collective is in flight.
// Nothing moves past calls that may have an effect or write in place, nor out of its block.
#include <deque>
#include <functional>
#include <queue>

#include "dialect/operators/collective.h"
#include "ir/leaves.h"
#include "optimize/optimization.h"
#include "support/pointer_map.h"
#include "support/small_vector.h"

namespace distir::optimize {

namespace {

// More than a decoder layer has.
constexpr int kRunAhead = 64;

class Schedule {
 public:
  Schedule(const EditableFunction& editable, Program* program,
           std::vector<EditableBinding*> bindings)
      : editable_(editable), program_(*program), bindings_(std::move(bindings)) {}

  /*! \brief The bindings in their new order. */
  std::vector<EditableBinding*> Run() {
    Prepare();
    while (order_.size() < bindings_.size()) {
      if (!started_.empty() && CanStart(started_.top())) {
        int next = started_.top();
        started_.pop();
        in_flight_.push_back(next);
        bytes_in_flight_ += nodes_[next].bytes;
        nodes_[next].in_flight = true;
        Place(next);
      } else if (!free_.empty() && (in_flight_.empty() || MayRunAhead(free_.top()))) {
        int next = free_.top();
        free_.pop();
        ++run_ahead_;
        Place(next);
      } else {
        FinishOldest();
      }
    }
    return std::move(order_);
  }

  static bool Sends(const EditableBinding* binding) {
    auto call = ir::Call::Cast(binding->value);
    auto kind = call.defined() ? dialect::DTensorCollective(call.op()) : std::nullopt;
    return kind && *kind != mesh::CollectiveKind::kSlice && *kind != mesh::CollectiveKind::kView;
  }

 private:
  struct Node {
    SmallVector<int, 2> users;     // each as often as it uses
    SmallVector<int, 2> operands;  // each as often as it is used
    int missing = 0;               // operands that have no place yet
    size_t num_placed_users = 0;
    int waiting = 0;  // operands in flight
    bool sends = false;
    bool in_flight = false;
    bool is_placed = false;
    double bytes = 0;  // of a collective's result
    double early_bytes = 0;
  };

  void Prepare() {
    nodes_.resize(bindings_.size());
    PointerMap<int> index;
    for (size_t i = 0; i < bindings_.size(); ++i) {
      EditableBinding* binding = bindings_[i];
      index[binding] = static_cast<int>(i);
      nodes_[i].sends = Sends(binding);
      if (nodes_[i].sends) nodes_[i].bytes = BytesOf(binding->var.ty());
      VisitVarsOf(binding->value, [&](const ir::Expr& var) {
        const int* found = index.Find(editable_.DefinitionOf(var));
        if (found == nullptr) return;
        nodes_[*found].users.push_back(static_cast<int>(i));
        nodes_[i].operands.push_back(*found);
        ++nodes_[i].missing;
      });
    }
    for (size_t i = 0; i < nodes_.size(); ++i) {
      if (nodes_[i].missing == 0) MakeReady(static_cast<int>(i));
    }
  }

  double BytesOf(const ir::Type& type) const {
    double bytes = 0;
    ir::ForEachLeaf(type, [&](const ir::Type& leaf) {
      auto dtensor = ir::DTensorType::Cast(leaf);
      if (!dtensor.defined()) return;
      bytes += LocalBytes(dtensor.tensor_ty(), program_.meshes->ShardingOf(dtensor));
    });
    return bytes;
  }

  void MakeReady(int i) {
    // A collective of a value in flight waits for it, too.
    if (nodes_[i].waiting == 0) (nodes_[i].sends ? started_ : free_).push(i);
  }

  bool CanStart(int i) const {
    return in_flight_.empty() || bytes_in_flight_ + nodes_[i].bytes <=
                                     static_cast<double>(program_.options.prefetch_bytes);
  }

  // True if a binding may come while a collective is in flight.
  bool MayRunAhead(int i) const {
    if (run_ahead_ >= kRunAhead) return false;
    return i == oldest_ || early_bytes_ + BytesOf(bindings_[i]->var.ty()) <=
                               static_cast<double>(program_.options.prefetch_bytes);
  }

  void Place(int i) {
    Node& node = nodes_[i];
    if (!in_flight_.empty() && !node.sends && !node.users.empty()) {
      node.early_bytes = BytesOf(bindings_[i]->var.ty());
      early_bytes_ += node.early_bytes;
    }
    node.is_placed = true;
    order_.push_back(bindings_[i]);
    while (oldest_ < static_cast<int>(nodes_.size()) && nodes_[oldest_].is_placed) ++oldest_;
    for (int operand : node.operands) {
      Node& used = nodes_[operand];
      if (++used.num_placed_users == used.users.size()) early_bytes_ -= used.early_bytes;
    }
    for (int user : node.users) {
      nodes_[user].waiting += node.in_flight;
      if (--nodes_[user].missing == 0) MakeReady(user);
    }
  }

  void FinishOldest() {
    int oldest = in_flight_.front();
    in_flight_.pop_front();
    run_ahead_ = 0;
    bytes_in_flight_ -= nodes_[oldest].bytes;
    nodes_[oldest].in_flight = false;
    for (int user : nodes_[oldest].users) {
      if (--nodes_[user].waiting == 0 && nodes_[user].missing == 0) MakeReady(user);
    }
  }

  const EditableFunction& editable_;
  Program& program_;
  std::vector<EditableBinding*> bindings_;
  std::vector<Node> nodes_;
  using Earliest = std::priority_queue<int, std::vector<int>, std::greater<int>>;
  Earliest started_;  // collectives whose operands are there
  Earliest free_;     // other bindings whose operands are there and not in flight
  std::deque<int> in_flight_;
  double bytes_in_flight_ = 0;
  double early_bytes_ = 0;  // of values that were computed beside a collective and wait for users
  int oldest_ = 0;          // binding that has no place
  int run_ahead_ = 0;       // bindings since the oldest in flight became the oldest
  std::vector<EditableBinding*> order_;
};

void ScheduleBody(EditableFunction* editable, Body* body, Program* program, Tally* tally) {
  for (Block& block : body->blocks) {
    std::vector<EditableBinding*> order, run;
    bool any_sends = false;
    auto close = [&] {
      if (any_sends) {
        std::vector<EditableBinding*> scheduled = Schedule(*editable, program, run).Run();
        tally->matched += scheduled != run;
        run = std::move(scheduled);
      }
      order.insert(order.end(), run.begin(), run.end());
      run.clear();
      any_sends = false;
    };
    for (const auto& binding : block.bindings) {
      if (IsBarrier(*binding)) {
        close();
        order.push_back(binding.get());
      } else {
        run.push_back(binding.get());
        any_sends = any_sends || Schedule::Sends(binding.get());
      }
      if (!binding->true_branch) continue;
      ScheduleBody(editable, binding->true_branch.get(), program, tally);
      ScheduleBody(editable, binding->false_branch.get(), program, tally);
    }
    close();
    if (!order.empty()) editable->Reorder(&block, order);
  }
}

}  // namespace

void ScheduleCollectives(Program* program, Tally* tally) {
  for (NamedFunction& function : program->functions)
    ScheduleBody(function.editable.get(), function.editable->body(), program, tally);
}

}  // namespace distir::optimize
