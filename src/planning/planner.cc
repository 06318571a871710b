// Plans the cheapest sequence of collectives between two shardings; keeps plans for later calls.
#include "planning/planner.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "cost/collective_cost.h"
#include "planning/search.h"
#include "planning/space.h"

namespace distir::planning {

namespace {

using mesh::AxisList;
using mesh::AxisRef;
using mesh::CollectiveKind;
using mesh::Sharding;

/*! \brief The places at which shardings cut the axes of a mesh. */
class Cuts {
 public:
  explicit Cuts(const mesh::Mesh& mesh) : mesh_(mesh), cuts_(mesh.ndim()) {
    for (int axis = 0; axis < mesh.ndim(); ++axis) cuts_[axis] = {1, mesh.shape[axis]};
  }

  void Add(const Sharding& sharding) {
    for (const AxisList& axes : sharding.dims) Add(axes);
    Add(sharding.partial);
  }

  /*! \brief Cuts every part into primes. */
  void AddPrimes() {
    for (std::set<int64_t>& cuts : cuts_) {
      std::set<int64_t> finer = cuts;
      for (auto begin = cuts.begin(), end = std::next(begin); end != cuts.end(); ++begin, ++end) {
        int64_t at = *begin;
        for (int64_t prime = 2, rest = *end / at; rest > 1;) {
          if (rest % prime != 0) {
            ++prime;
            continue;
          }
          rest /= prime;
          at *= prime;
          finer.insert(at);
        }
      }
      cuts = std::move(finer);
    }
  }

  /*! \brief The parts between the cuts, axis by axis, major to minor; nullopt when some cut does
   * not divide the next, so that there are no common parts. */
  std::optional<AxisList> Atoms() const {
    AxisList atoms;
    for (int axis = 0; axis < mesh_.ndim(); ++axis) {
      int64_t previous = 1;
      for (int64_t cut : cuts_[axis]) {
        if (cut % previous != 0) return std::nullopt;
        if (cut > previous) atoms.push_back({axis, previous, cut / previous});
        previous = cut;
      }
    }
    return atoms;
  }

 private:
  void Add(const AxisList& axes) {
    for (const AxisRef& ref : axes) {
      cuts_[ref.axis].insert(ref.pre_size);
      cuts_[ref.axis].insert(ref.pre_size * ref.size);
    }
  }

  const mesh::Mesh& mesh_;
  std::vector<std::set<int64_t>> cuts_;
};

/*! \brief The finest parts that both sides are made of and that the search can cope with. */
std::optional<AxisList> ChooseAtoms(const mesh::Mesh& mesh, const Sharding& source,
                                    const Sharding& target) {
  Cuts cuts(mesh);
  cuts.Add(source);
  cuts.Add(target);
  std::optional<AxisList> atoms = cuts.Atoms();
  if (!atoms) return std::nullopt;
  Cuts finer = cuts;
  finer.AddPrimes();
  std::optional<AxisList> primes = finer.Atoms();
  return static_cast<int>(primes->size()) <= kMaxAtoms ? primes : atoms;
}

/*! \brief The dimensions that a plan may shard: those that a side shards, and up to three in all,
 * the longer first. */
std::vector<int> ChooseDims(const Sharding& source, const Sharding& target,
                            const TensorSize& size) {
  constexpr size_t kFew = 3;
  std::vector<int> dims, spare;
  for (size_t d = 0; d < source.dims.size(); ++d) {
    bool is_used = !source.dims[d].empty() || !target.dims[d].empty();
    if (is_used) {
      dims.push_back(static_cast<int>(d));
    } else if (size.dims[d] > 1) {
      spare.push_back(static_cast<int>(d));
    }
  }
  std::stable_sort(spare.begin(), spare.end(),
                   [&](int a, int b) { return size.dims[a] > size.dims[b]; });
  while (dims.size() < kFew && !spare.empty()) {
    dims.push_back(spare.front());
    spare.erase(spare.begin());
  }
  std::sort(dims.begin(), dims.end());
  return dims;
}

void Append(const std::vector<int64_t>& values, std::vector<int64_t>* key) {
  key->push_back(static_cast<int64_t>(values.size()));
  key->insert(key->end(), values.begin(), values.end());
}

void Append(const AxisList& axes, std::vector<int64_t>* key) {
  key->push_back(static_cast<int64_t>(axes.size()));
  for (const AxisRef& ref : axes) key->insert(key->end(), {ref.axis, ref.pre_size, ref.size});
}

std::vector<int64_t> KeyOf(int64_t mesh, const Sharding& source, const Sharding& target,
                           const TensorSize& size) {
  std::vector<int64_t> key = {mesh};
  for (const AxisList& axes : source.dims) Append(axes, &key);
  Append(source.partial, &key);
  for (const AxisList& axes : target.dims) Append(axes, &key);
  Append(size.dims, &key);
  int64_t bytes;
  static_assert(sizeof(bytes) == sizeof(size.bytes));
  std::memcpy(&bytes, &size.bytes, sizeof(bytes));
  key.push_back(bytes);
  return key;
}

/*! \brief Plans shardings without common parts: the reduction, and one exchange. */
Plan PlanDirectly(const cost::Cluster& cluster, const mesh::Mesh& mesh, const Sharding& source,
                  const Sharding& target, double bytes) {
  Plan plan;
  Sharding whole = source;
  whole.partial.clear();
  const cost::Layout from(mesh, whole), to(mesh, target);
  if (!source.partial.empty()) {
    int64_t size = mesh::NumShards(source.partial);
    double local = from.Fraction() * bytes;
    const cost::Link& link = cluster.links()[cluster.Along(mesh, source.partial)];
    plan.steps.push_back(
        {CollectiveKind::kAllReduce, mesh::Canonical(whole), mesh::Canonical(source.partial)});
    plan.seconds += cost::Seconds(CollectiveKind::kAllReduce, cluster.launch(), link, size, local);
    plan.received += cost::BytesSent(CollectiveKind::kAllReduce, size, local);
  }
  cost::ExchangeCost cost = cost::CostOfExchange(cluster, from, to, bytes);
  plan.steps.push_back({CollectiveKind::kExchange, mesh::Canonical(target), {}});
  plan.seconds += cost.seconds;
  plan.received += cost.bytes();
  return plan;
}

/*! \brief One tensor's dimensions that are planned, and their nodes in a space. */
class Projection {
 public:
  Projection(const Sharding& source, const Sharding& target, const TensorSize& size)
      : source_(source), target_(target), size_(size), dims_(ChooseDims(source, target, size)) {}

  int ndim() const { return static_cast<int>(dims_.size()); }

  Question Ask(Space* space) const {
    Question question{};
    std::vector<AtomList> from, to;
    for (int d : dims_) {
      from.push_back(space->AtomsOf(source_.dims[d]));
      to.push_back(space->AtomsOf(target_.dims[d]));
      int64_t common = std::lcm(mesh::NumShards(source_.dims[d]), mesh::NumShards(target_.dims[d]));
      question.divisors.push_back(size_.dims[d] != 0 ? size_.dims[d] : common);
    }
    question.source = space->Intern(from, space->SetOf(source_.partial));
    question.target = space->Intern(to, 0);
    question.bytes = size_.bytes;
    question.only_nearer = space->num_atoms() > kMaxAtoms;
    return question;
  }

  Plan Read(const Space& space, const std::vector<Move>& way) const {
    Plan plan;
    for (const Move& move : way) {
      plan.seconds += move.seconds;
      plan.received += move.received;
      Append({move.kind, ShardingAt(space, space.at(move.node)), space.AxesOf(move.reduced)},
             &plan.steps);
    }
    return plan;
  }

 private:
  Sharding ShardingAt(const Space& space, const Node& node) const {
    Sharding sharding = Sharding::Replicated(static_cast<int>(source_.dims.size()));
    for (size_t i = 0; i < dims_.size(); ++i) sharding.dims[dims_[i]] = space.AxesOf(node.dims[i]);
    sharding.partial = space.AxesOf(node.partial);
    if (node.partial != 0) sharding.reduction = source_.reduction;
    return mesh::Canonical(sharding);
  }

  /*! \brief Adds a step; slices of one dimension in a row are one. */
  void Append(PlanStep step, std::vector<PlanStep>* steps) const {
    if (!steps->empty() && step.kind == CollectiveKind::kSlice &&
        steps->back().kind == CollectiveKind::kSlice) {
      const Sharding before =
          steps->size() > 1 ? (*steps)[steps->size() - 2].result : mesh::Canonical(source_);
      int changed = 0;
      for (size_t d = 0; d < before.dims.size(); ++d) {
        changed += before.dims[d] != step.result.dims[d];
      }
      if (changed == 1) steps->pop_back();
    }
    steps->push_back(std::move(step));
  }

  const Sharding& source_;
  const Sharding& target_;
  const TensorSize& size_;
  std::vector<int> dims_;
};

}  // namespace

/*! \brief Plans of clusters with the same links. */
struct PlanStore {
  std::map<std::vector<int64_t>, int64_t> kinds;  // of meshes, by shape and pattern of links
  std::map<std::vector<int64_t>, std::unique_ptr<Space>> spaces;
  std::map<std::vector<int64_t>, Plan> plans;

  Space* SpaceOf(int64_t kind, const mesh::Mesh& mesh,
                 const std::shared_ptr<const cost::Cluster>& cluster, const AxisList& atoms,
                 int ndim) {
    std::vector<int64_t> key = {kind};
    Append(atoms, &key);
    key.push_back(ndim);
    std::unique_ptr<Space>& space = spaces[std::move(key)];
    if (space == nullptr) space = std::make_unique<Space>(mesh, cluster, atoms, ndim);
    return space.get();
  }
};

namespace {

// Beyond these, the next planner begins anew: a space may take some 50 MB.
constexpr size_t kMostSpaces = 32, kMostPlans = 100000;

std::shared_ptr<PlanStore> StoreOf(const cost::Cluster& cluster) {
  static thread_local std::vector<double> of_last;
  static thread_local std::shared_ptr<PlanStore> last;
  std::vector<double> numbers = {cluster.launch()};
  for (const cost::Link& link : cluster.links())
    numbers.insert(numbers.end(), {link.latency, link.gap, link.bandwidth});
  const bool is_full =
      last != nullptr && (last->spaces.size() > kMostSpaces || last->plans.size() > kMostPlans);
  if (last == nullptr || is_full || numbers != of_last) {
    last = std::make_shared<PlanStore>();
    of_last = std::move(numbers);
  }
  return last;
}

}  // namespace

TensorSize PaddedFor(TensorSize size, const Sharding& source, const Sharding& target) {
  for (size_t d = 0; d < size.dims.size(); ++d) {
    int64_t& dim = size.dims[d];
    if (dim <= 0) continue;
    const int64_t parts =
        std::lcm(mesh::NumShards(source.dims[d]), mesh::NumShards(target.dims[d]));
    const int64_t padded = (dim + parts - 1) / parts * parts;
    size.bytes *= static_cast<double>(padded) / static_cast<double>(dim);
    dim = padded;
  }
  return size;
}

Planner::Planner(cost::Cluster cluster)
    : cluster_(std::make_shared<const cost::Cluster>(std::move(cluster))),
      store_(StoreOf(*cluster_)) {}
Planner::~Planner() = default;

const Plan& Planner::Find(const mesh::Mesh& mesh, const Sharding& source, const Sharding& target,
                          const TensorSize& size) {
  if (source.dims.size() != target.dims.size() || source.dims.size() != size.dims.size() ||
      !target.partial.empty()) {
    TVM_FFI_THROW(ValueError) << "cannot redistribute a tensor of " << size.dims.size()
                              << " dimensions sharded " << mesh::ToString(source, mesh) << " to "
                              << mesh::ToString(target, mesh);
  }
  for (const AxisList& axes : source.dims) TVM_FFI_ICHECK(!mesh::Overlaps(axes, source.partial));
  const int64_t kind = KindOf(mesh);
  auto [found, is_new] = store_->plans.try_emplace(KeyOf(kind, source, target, size));
  Plan& plan = found->second;
  if (!is_new || (source.partial.empty() && mesh::SameLayout(mesh, source, target))) return plan;
  std::optional<AxisList> atoms = ChooseAtoms(mesh, source, target);
  if (!atoms || atoms->size() > kMostAtoms) {
    return plan = PlanDirectly(*cluster_, mesh, source, target, size.bytes);
  }
  const Projection projection(source, target, size);
  Space* space = store_->SpaceOf(kind, mesh, cluster_, *atoms, projection.ndim());
  return plan = projection.Read(*space, FindWay(space, projection.Ask(space)));
}

int64_t Planner::KindOf(const mesh::Mesh& mesh) {
  std::vector<int64_t> key;
  Append(mesh.shape, &key);
  std::vector<int64_t> kind = key;
  Append(mesh.device_ids, &key);
  auto [known, is_new] = kinds_.try_emplace(std::move(key), 0);
  if (is_new) {
    Append(cluster_->PatternOf(mesh.device_ids), &kind);
    const auto next = static_cast<int64_t>(store_->kinds.size());
    known->second = store_->kinds.emplace(std::move(kind), next).first->second;
  }
  return known->second;
}

}  // namespace distir::planning
