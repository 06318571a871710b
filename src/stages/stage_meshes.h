/*!
 * \file stages/stage_meshes.h
 * \brief Meshes of the stages, and translation of placements stated on other meshes.
 *
 * Stages have meshes of one number of axes, whose sizes may differ. Dims are lists with the axes of
 * these that shard each tensor dimension, major to minor.
 *
 * Worked example: the stages of a mesh (2, 4) along its first axis have meshes (4) each. What is
 * stated on (2, 4) as "R, S[1]" is {{}, {0}} on either stage.
 */
#ifndef DISTIR_STAGES_STAGE_MESHES_H_
#define DISTIR_STAGES_STAGE_MESHES_H_

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cost/cluster.h"
#include "dialect/mesh_table.h"
#include "dialect/operators/annotation.h"
#include "ir/node.h"
#include "propagation/pass.h"

namespace distir::stages {

namespace ffi = tvm::ffi;

/*! \brief May have fewer entries than the tensor has dimensions; the others are not sharded. */
using Dims = propagation::AxesOfDims;

class StageMeshes {
 public:
  /*!
   * \param meshes Of the stages, in order.
   * \param whole The mesh that the stages are cut from, or null.
   * \param axis The axis of `whole` that numbers the stages; the others are those of each stage's
   * mesh, which has one axis of size 1 where there are no others.
   */
  StageMeshes(const ir::NodeArray<ir::DeviceMesh>& meshes, const ir::DeviceMesh& whole, int axis,
              dialect::MeshTable* table);

  size_t size() const { return meshes_.size(); }
  const ir::DeviceMesh& of(int stage) const { return meshes_[stage]; }
  double NumDevices(int stage) const;
  /*! \brief The first stage that has the mesh of this one. */
  int FirstOnMeshOf(int stage) const;
  /*! \brief True if a mesh has several stages with those of others between them. */
  bool IsInterleaved() const;
  /*! \brief The smallest device of each mesh, in the order of their first stages. */
  ffi::Array<int64_t> SmallestDevices() const;

  /*!
   * \brief Dims that an annotate_sharding call states, on the axes of the stages' meshes.
   * \param name Name of the annotated value in messages.
   * \throws ValueError if it is on no mesh of these, or shards along the axis of the stages.
   */
  Dims DimsOf(const ir::Call& annotation, const std::string& name);

  /*! \brief The value annotated with the mesh of a stage. A dimension that has fewer elements than
   * shards there is not sharded. */
  ir::Call Annotate(const ir::Expr& value, int stage, const Dims& dims);

  /*! \brief The value annotated on the mesh of a stage as a call annotates it on another; see
   * DimsOf. */
  ir::Call AnnotateAs(const ir::Call& annotation, const ir::Expr& value, int stage,
                      const std::string& name);

  /*! \brief Seconds in which a tensor comes to a stage from the one before it. */
  double TransferSeconds(const cost::Cluster& cluster, int stage, const ir::TensorType& type,
                         const Dims& dims);

 private:
  struct Affine {
    double fixed;
    double per_byte;
  };

  /*! \brief The terms of an annotation, on the mesh that it has got. */
  dialect::Terms TermsOn(const ir::DeviceMesh& placed, int stage, const ir::Call& annotation,
                         const std::string& name);
  ir::Call Annotate(const ir::Expr& value, int stage, const Dims& dims, const ir::Call& annotation,
                    const std::string& name);
  /*! \brief The mesh of a stage, or a view of it that has the axes in the order of dims. */
  std::pair<ir::DeviceMesh, ir::Placement> Placed(int stage, const Dims& dims);

  std::vector<ir::DeviceMesh> meshes_;
  ir::DeviceMesh whole_;
  int axis_;
  dialect::MeshTable& table_;
  std::map<std::pair<int, std::pair<int, Dims>>, Affine> transfers_;  // by stage, rank, dims
};

}  // namespace distir::stages
#endif  // DISTIR_STAGES_STAGE_MESHES_H_
