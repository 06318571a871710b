#include "redistribute/space.h"

#include <utility>

namespace distir {
namespace redistribute {

Space::Space(const mesh::Mesh& mesh, const cost::Cluster& cluster, mesh::AxisList atoms, int ndim)
    : mesh_(mesh), cluster_(cluster), atoms_(std::move(atoms)), ndim_(ndim) {
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
  if (cluster_.IsUniform()) return cluster_.links()[0];
  auto [it, is_new] = link_along_.emplace(atoms, 0);
  if (is_new) it->second = cluster_.Along(mesh_, AxesOf(atoms));
  return cluster_.links()[it->second];
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

}  // namespace redistribute
}  // namespace distir
