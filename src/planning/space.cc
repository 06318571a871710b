// Numbers the shardings of a tensor as search nodes. They assign atoms, which are parts of mesh
// axes, to dimensions (planning/planner.h).
#include "planning/space.h"

#include <utility>

namespace distir::planning {

namespace {

// Devices of a mesh for which links are listed by pairs.
constexpr int64_t kMostInTable = 256;

uint64_t PairOf(int from, int to) {
  return static_cast<uint64_t>(from) << 32 | static_cast<uint32_t>(to);
}

}  // namespace

Space::Space(const mesh::Mesh& mesh, std::shared_ptr<const cost::Cluster> cluster,
             mesh::AxisList atoms, int ndim)
    : mesh_(mesh), cluster_(std::move(cluster)), atoms_(std::move(atoms)), ndim_(ndim) {
  for (const mesh::AxisRef& atom : atoms_) {
    std::vector<int64_t> digits;
    for (int64_t position = 0; position < mesh_.size(); ++position) {
      digits.push_back(mesh::ShardIndex(mesh_, {atom}, mesh_.Coordinates(position)));
    }
    digits_.push_back(std::move(digits));
  }
}

int64_t Space::SizeOf(AtomSet atoms) const {
  int64_t size = 1;
  for (int i = 0; i < num_atoms(); ++i) {
    if (atoms >> i & 1) size *= SizeOf(i);
  }
  return size;
}

const cost::Link& Space::LinkAlong(AtomSet atoms) {
  if (cluster_->IsUniform()) return cluster_->links()[0];
  auto [it, is_new] = link_along_.emplace(atoms, 0);
  if (is_new) it->second = cluster_->Along(mesh_, AxesOf(atoms));
  return cluster_->links()[it->second];
}

AtomList Space::AtomsOf(const mesh::AxisList& axes) const {
  AtomList list;
  for (const mesh::AxisRef& ref : axes) {
    // The atoms of one axis stand in atoms_ from major to minor.
    for (int i = 0; i < num_atoms(); ++i) {
      const mesh::AxisRef& atom = atoms_[i];
      if (atom.axis == ref.axis && atom.pre_size >= ref.pre_size &&
          atom.pre_size < ref.pre_size * ref.size) {
        list.push_back(static_cast<uint8_t>(i));
      }
    }
  }
  return list;
}

AtomSet Space::SetOf(const mesh::AxisList& axes) const {
  AtomSet set = 0;
  for (uint8_t atom : AtomsOf(axes)) set |= AtomSet{1} << atom;
  return set;
}

mesh::AxisList Space::AxesOf(const AtomList& atoms) const {
  mesh::AxisList axes;
  for (uint8_t atom : atoms) axes.push_back(atoms_[atom]);
  return mesh::Canonical(axes);
}

mesh::AxisList Space::AxesOf(AtomSet atoms) const {
  AtomList list;
  for (int i = 0; i < num_atoms(); ++i) {
    if (atoms >> i & 1) list.push_back(static_cast<uint8_t>(i));
  }
  return AxesOf(list);
}

int Space::Intern(const std::vector<AtomList>& dims, AtomSet partial) {
  std::string key;
  AtomSet used = partial;
  for (const AtomList& atoms : dims) {
    for (uint8_t atom : atoms) {
      key.push_back(static_cast<char>(atom));
      used |= AtomSet{1} << atom;
    }
    key.push_back('\x7f');
  }
  for (int shift = 0; shift < 32; shift += 8) key.push_back(static_cast<char>(partial >> shift));
  auto [it, is_new] = index_.emplace(std::move(key), static_cast<int>(nodes_.size()));
  if (!is_new) return it->second;

  std::vector<int64_t> counts(dims.size(), 1);
  std::vector<int64_t> block_of(mesh_.size() * dims.size(), 0);
  for (size_t d = 0; d < dims.size(); ++d) {
    for (uint8_t atom : dims[d]) {
      counts[d] *= SizeOf(atom);
      for (int64_t position = 0; position < mesh_.size(); ++position) {
        int64_t& block = block_of[position * dims.size() + d];
        block = block * SizeOf(atom) + digits_[atom][position];
      }
    }
  }
  const AtomSet everything = (AtomSet{1} << num_atoms()) - 1;
  nodes_.push_back(std::make_unique<Node>(
      Node{dims, partial, everything & ~used,
           cost::Layout(&mesh_.device_ids, std::move(counts), std::move(block_of))}));
  return it->second;
}

const cost::ExchangeTerms& Space::Exchange(int from, int to) {
  auto [known, is_new] = exchanges_.emplace(PairOf(from, to), 0);
  if (is_new) {
    if (links_ == nullptr && !cluster_->IsUniform() && mesh_.size() <= kMostInTable) {
      links_ = std::make_unique<cost::LinkTable>(*cluster_, mesh_.device_ids, mesh_.device_ids);
    }
    cost::ExchangeTerms found =
        cost::TermsOfExchange(*cluster_, at(from).layout, at(to).layout, links_.get());
    std::vector<double> key = {found.received, found.sent, static_cast<double>(found.messages)};
    for (const cost::ExchangeTerms::Device& each : found.devices)
      key.insert(key.end(), {each.latency, each.gaps, each.per_byte});
    const auto next = static_cast<int>(terms_.size());
    known->second = number_of_.emplace(std::move(key), next).first->second;
    if (known->second == next) terms_.push_back(std::move(found));
  }
  return terms_[known->second];
}

double Space::Lacking(int from, int to) {
  auto [known, is_new] = lacking_.emplace(PairOf(from, to), 0);
  if (is_new) {
    static const cost::Cluster joined_alike;
    known->second = cost::TermsOfExchange(joined_alike, at(from).layout, at(to).layout).received;
  }
  return known->second;
}

const std::vector<int>& Space::All() {
  if (all_.empty()) {
    std::vector<AtomList> dims(ndim_);
    AddAll(&dims, (AtomSet{1} << num_atoms()) - 1, 0);
  }
  return all_;
}

// Fills dimension `dim` and those behind it in every way with atoms of `free`.
void Space::AddAll(std::vector<AtomList>* dims, AtomSet free, size_t dim) {
  if (dim == dims->size()) {
    all_.push_back(Intern(*dims, 0));
    return;
  }
  AddAll(dims, free, dim + 1);
  for (int atom = 0; atom < num_atoms(); ++atom) {
    if (!(free >> atom & 1)) continue;
    (*dims)[dim].push_back(static_cast<uint8_t>(atom));
    AddAll(dims, free & ~(AtomSet{1} << atom), dim);
    (*dims)[dim].pop_back();
  }
}

}  // namespace distir::planning
