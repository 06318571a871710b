/*!
 * \file planning/space.h
 * \brief Numbers the shardings of a tensor over given parts of a mesh, as nodes of a search.
 *
 * The parts are the *atoms* of planning/planner.h. Worked example: the axes x and y of a mesh
 * (2, 3) are the atoms 0 and 1. The node of a matrix sharded [x | y] has the dims {{0}, {1}} and no
 * free atom; that of [y | -] has the dims {{1}, {}}, and atom 0 is free.
 */
#ifndef DISTIR_PLANNING_SPACE_H_
#define DISTIR_PLANNING_SPACE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "cost/cluster.h"
#include "cost/exchange.h"
#include "mesh/sharding.h"

namespace distir::planning {

/*! \brief A set of atoms; bit i stands for atom i. */
using AtomSet = uint32_t;
constexpr int kMostAtoms = 31;
/*! \brief Atoms, major to minor. */
using AtomList = std::vector<uint8_t>;

struct Node {
  std::vector<AtomList> dims;
  AtomSet partial;
  AtomSet free;  // atoms in neither
  cost::Layout layout;
};

class Space {
 public:
  /*!
   * \param atoms Parts of the mesh's axes that do not overlap; at most kMostAtoms.
   * \param ndim Dimensions of the tensor.
   */
  Space(const mesh::Mesh& mesh, std::shared_ptr<const cost::Cluster> cluster, mesh::AxisList atoms,
        int ndim);
  Space(const Space&) = delete;

  const mesh::Mesh& mesh() const { return mesh_; }
  const cost::Cluster& cluster() const { return *cluster_; }
  int ndim() const { return ndim_; }
  int num_atoms() const { return static_cast<int>(atoms_.size()); }
  int64_t SizeOf(int atom) const { return atoms_[atom].size; }
  int64_t SizeOf(AtomSet atoms) const;
  /*! \brief The slowest link of a collective over some atoms. */
  const cost::Link& LinkAlong(AtomSet atoms);

  /*! \brief The atoms of a list whose references are made of whole atoms. */
  AtomList AtomsOf(const mesh::AxisList& axes) const;
  AtomSet SetOf(const mesh::AxisList& axes) const;
  mesh::AxisList AxesOf(const AtomList& atoms) const;
  mesh::AxisList AxesOf(AtomSet atoms) const;

  int Intern(const std::vector<AtomList>& dims, AtomSet partial);
  const Node& at(int node) const { return *nodes_[node]; }
  /*! \brief Every sharding that is not partial. */
  const std::vector<int>& All();
  /*! \brief Terms of an exchange between two nodes, computed once. */
  const cost::ExchangeTerms& Exchange(int from, int to);
  /*! \brief The part of a tensor that the worst-off device lacks in it, found out once: in less
   * time, as links do not matter. */
  double Lacking(int from, int to);

 private:
  void AddAll(std::vector<AtomList>* dims, AtomSet free, size_t dim);

  const mesh::Mesh mesh_;
  const std::shared_ptr<const cost::Cluster> cluster_;
  const mesh::AxisList atoms_;
  const int ndim_;
  std::vector<std::vector<int64_t>> digits_;  // per atom, per device position
  std::vector<std::unique_ptr<Node>> nodes_;
  std::unordered_map<std::string, int> index_;
  std::map<AtomSet, int> link_along_;
  std::vector<int> all_;
  std::unique_ptr<cost::LinkTable> links_;        // between the mesh's devices, if they are few
  std::unordered_map<uint64_t, int> exchanges_;   // by pair of nodes, a number in terms_
  std::deque<cost::ExchangeTerms> terms_;         // different ones
  std::map<std::vector<double>, int> number_of_;  // in terms_
  std::unordered_map<uint64_t, double> lacking_;  // by pair of nodes
};

}  // namespace distir::planning
#endif  // DISTIR_PLANNING_SPACE_H_
