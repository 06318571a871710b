#include "redistribute/planner.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace distir {
namespace redistribute {

namespace {

using mesh::AxisList;
using mesh::AxisRef;
using mesh::CollectiveKind;
using mesh::Sharding;

/*! \brief The places where the references of both shardings cut each mesh axis. */
class Cuts {
 public:
  explicit Cuts(const std::vector<const Sharding*>& shardings) {
    for (const Sharding* sharding : shardings) {
      for (const AxisList& axes : sharding->dims) Add(axes);
      Add(sharding->partial);
    }
  }

  /*! \brief Whether every cut of an axis divides the next, so that all references are made of
   * common atoms. */
  bool AreNested() const {
    for (const auto& [axis, cuts] : cuts_) {
      int64_t previous = 1;
      for (int64_t cut : cuts) {
        if (cut % previous != 0) return false;
        previous = cut;
      }
    }
    return true;
  }

  AxisList Atoms(const AxisList& axes) const {
    AxisList atoms;
    for (const AxisRef& ref : axes) {
      int64_t begin = ref.pre_size;
      for (int64_t cut : cuts_.at(ref.axis)) {
        if (cut <= begin || cut > ref.pre_size * ref.size) continue;
        atoms.push_back({ref.axis, begin, cut / begin});
        begin = cut;
      }
    }
    return atoms;
  }

  Sharding Atoms(Sharding sharding) const {
    for (AxisList& axes : sharding.dims) axes = Atoms(axes);
    sharding.partial = Atoms(sharding.partial);
    return sharding;
  }

 private:
  void Add(const AxisList& axes) {
    for (const AxisRef& ref : axes) {
      cuts_[ref.axis].insert(ref.pre_size);
      cuts_[ref.axis].insert(ref.pre_size * ref.size);
    }
  }
  std::map<int, std::set<int64_t>> cuts_;
};

size_t CommonLength(const AxisList& a, const AxisList& b) {
  size_t length = 0;
  while (length < a.size() && length < b.size() && a[length] == b[length]) ++length;
  return length;
}

bool Contains(const AxisList& axes, const AxisRef& atom) {
  return std::find(axes.begin(), axes.end(), atom) != axes.end();
}

class Planner {
 public:
  Planner(Sharding source, Sharding target) : now_(std::move(source)), target_(std::move(target)) {}

  std::vector<PlanStep> Run() {
    Reduce();
    // Slices first, since they make what follows smaller; gathers only where nothing else helps.
    while (TrySlice() || TryAllToAll() || TryAllGather()) {
    }
    return std::move(steps_);
  }

 private:
  size_t num_dims() const { return now_.dims.size(); }
  bool HasMissing(size_t d) const {
    return now_.dims[d].size() < target_.dims[d].size() &&
           CommonLength(now_.dims[d], target_.dims[d]) == now_.dims[d].size();
  }
  const AxisRef& NextMissing(size_t d) const { return target_.dims[d][now_.dims[d].size()]; }

  void Push(CollectiveKind kind, AxisList reduce_axes = {}) {
    Sharding result = mesh::Canonical(now_);
    // A gather that continues the last one on the same dimension is one gather.
    if (kind == CollectiveKind::kAllGather && !steps_.empty() && steps_.back().kind == kind &&
        last_gathered_ == gathered_) {
      steps_.back().result = std::move(result);
      return;
    }
    last_gathered_ = kind == CollectiveKind::kAllGather ? gathered_ : -1;
    steps_.push_back({kind, std::move(result), mesh::Canonical(reduce_axes)});
  }

  void Reduce() {
    for (size_t d = 0; d < num_dims() && !now_.partial.empty(); ++d) {
      AxisList scattered;
      while (HasMissing(d) && Contains(now_.partial, NextMissing(d))) {
        AxisRef atom = NextMissing(d);
        scattered.push_back(atom);
        now_.dims[d].push_back(atom);
        now_.partial.erase(std::find(now_.partial.begin(), now_.partial.end(), atom));
      }
      if (!scattered.empty()) Push(CollectiveKind::kReduceScatter, scattered);
    }
    if (now_.partial.empty()) return;
    AxisList reduced = std::exchange(now_.partial, {});
    Push(CollectiveKind::kAllReduce, reduced);
  }

  bool IsFree(const AxisRef& atom) const {
    for (const AxisList& axes : now_.dims) {
      if (Contains(axes, atom)) return false;
    }
    return true;
  }

  bool TrySlice() {
    for (size_t d = 0; d < num_dims(); ++d) {
      bool sliced = false;
      while (HasMissing(d) && IsFree(NextMissing(d))) {
        now_.dims[d].push_back(NextMissing(d));
        sliced = true;
      }
      if (sliced) {
        Push(CollectiveKind::kSlice);
        return true;
      }
    }
    return false;
  }

  // Moves the longest minor run of some dimension that another dimension has next.
  bool TryAllToAll() {
    for (size_t to = 0; to < num_dims(); ++to) {
      if (!HasMissing(to)) continue;
      for (size_t from = 0; from < num_dims(); ++from) {
        if (from == to) continue;
        AxisList& source = now_.dims[from];
        size_t movable = source.size() - CommonLength(source, target_.dims[from]);
        size_t missing = target_.dims[to].size() - now_.dims[to].size();
        for (size_t run = std::min(movable, missing); run > 0; --run) {
          if (!std::equal(source.end() - run, source.end(),
                          target_.dims[to].begin() + now_.dims[to].size()))
            continue;
          now_.dims[to].insert(now_.dims[to].end(), source.end() - run, source.end());
          source.resize(source.size() - run);
          Push(CollectiveKind::kAllToAll);
          return true;
        }
      }
    }
    return false;
  }

  bool TryAllGather() {
    for (size_t d = 0; d < num_dims(); ++d) {
      if (CommonLength(now_.dims[d], target_.dims[d]) == now_.dims[d].size()) continue;
      now_.dims[d].pop_back();
      gathered_ = static_cast<int>(d);
      Push(CollectiveKind::kAllGather);
      return true;
    }
    return false;
  }

  Sharding now_, target_;
  std::vector<PlanStep> steps_;
  int gathered_ = -1;
  int last_gathered_ = -1;
};

// Without common atoms (an axis of 12 cut at 4 and at 6) the way leads over the replicated tensor.
std::vector<PlanStep> PlanOverReplicated(const mesh::Mesh& mesh, const Sharding& source,
                                         const Sharding& target) {
  Sharding whole = Sharding::Replicated(static_cast<int>(source.dims.size()));
  std::vector<PlanStep> steps = Plan(mesh, source, whole);
  for (PlanStep& step : Plan(mesh, whole, target)) steps.push_back(std::move(step));
  return steps;
}

}  // namespace

std::vector<PlanStep> Plan(const mesh::Mesh& mesh, const Sharding& source, const Sharding& target) {
  if (source.dims.size() != target.dims.size() || !target.partial.empty()) {
    TVM_FFI_THROW(ValueError) << "cannot redistribute a tensor sharded " << mesh::ToString(source)
                              << " to " << mesh::ToString(target);
  }
  Cuts cuts({&source, &target});
  if (!cuts.AreNested()) return PlanOverReplicated(mesh, source, target);
  return Planner(cuts.Atoms(source), cuts.Atoms(target)).Run();
}

}  // namespace redistribute
}  // namespace distir
