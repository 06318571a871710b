// Decides on which mesh each tensor (slot) of a program lies.
#include "propagation/solving/meshes.h"

#include <algorithm>
#include <deque>
#include <numeric>

namespace distir::propagation {

namespace {

class MeshSolver {
 public:
  MeshSolver(Program* program, const LinksOfSlots& users, const dialect::MeshTable& meshes)
      : program_(*program), users_(users), meshes_(meshes) {}

  void Run() {
    if (!IsOneMesh()) Spread();
    int fallback = kNoRoot;
    for (const SlotState& slot : program_.slots) {
      if (fallback == kNoRoot && slot.root != kNoRoot) fallback = meshes_.DevicesOf(slot.root);
    }
    for (SlotState& slot : program_.slots) {
      if (slot.root == kNoRoot) slot.root = std::max(fallback, 0);
    }
  }

 private:
  /*! \brief True if all statements are on one mesh; then all slots are. */
  bool IsOneMesh() const {
    int first = kNoRoot;
    for (const SlotState& slot : program_.slots) {
      if (slot.root == kNoRoot) continue;
      if (first == kNoRoot) first = slot.root;
      if (slot.root != first) return false;
    }
    return first == kNoRoot || meshes_.DevicesOf(first) == first;
  }

  void Spread() {
    std::vector<int> all(program_.links.size());
    std::iota(all.begin(), all.end(), 0);
    forward_.assign(all.begin(), all.end());
    backward_ = forward_;
    // Forward always first: a value belongs to the mesh that computes it, not to one that will use
    // it.
    while (!forward_.empty() || !backward_.empty()) {
      bool is_forward = !forward_.empty();
      std::deque<int>& queue = is_forward ? forward_ : backward_;
      int link = queue.front();
      queue.pop_front();
      Visit(program_.links[link], is_forward);
    }
  }

  void Visit(const Link& link, bool is_forward) {
    if (is_forward) {
      int root = LastRoot(program_.Operands(link));
      if (root != kNoRoot) AssignAll(program_.Results(link), root);
    } else {
      int root = LastRoot(program_.Results(link));
      if (root == kNoRoot) root = LastRoot(program_.Operands(link));
      if (root != kNoRoot) AssignAll(program_.Operands(link), meshes_.DevicesOf(root));
    }
  }

  int LastRoot(IntRange slots) const {
    int root = kNoRoot;
    for (int slot : slots) root = std::max(root, program_.slots[slot].root);
    return root;
  }

  void AssignAll(IntRange slots, int root) {
    for (int slot : slots) {
      if (program_.slots[slot].root != kNoRoot) continue;
      program_.slots[slot].root = root;
      for (int link : users_[slot]) {
        forward_.push_back(link);
        backward_.push_back(link);
      }
    }
  }

  Program& program_;
  const LinksOfSlots& users_;
  const dialect::MeshTable& meshes_;
  std::deque<int> forward_, backward_;
};

}  // namespace

void SolveMeshes(Program* program, const LinksOfSlots& users, const dialect::MeshTable& meshes) {
  MeshSolver(program, users, meshes).Run();
}

}  // namespace distir::propagation
