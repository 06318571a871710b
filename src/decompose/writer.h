/*!
 * \file decompose/writer.h
 * \brief Writes calls of ordinary operators on DTensors: infers their types, and redistributes
 * operands for their rules.
 *
 * Calls are made by TVM's own constructors (`relax.op.sum`). Each is typed by
 * rules/call/infer_type.h; an operand that the rule wants placed differently is redistributed
 * first, so whoever writes need not think of placements. Partial results are left to
 * LegalizeRedistribute, as everywhere.
 *
 * Worked example: with x: DTensor (8, 16) "S[1]" on one axis,
 *
 *     ir::Expr most = writer.Reduce(kMax, x, {1});         // (8, 1), "R"
 *     ir::Expr shifted = writer.Write(kSubtract, x, most);  // (8, 16), "S[1]"
 */
#ifndef DISTIR_DECOMPOSE_WRITER_H_
#define DISTIR_DECOMPOSE_WRITER_H_

#include <functional>
#include <utility>
#include <vector>

#include "dialect/mesh_table.h"
#include "dialect/operators/segment_exchange.h"
#include "ir/node.h"
#include "rules/call/projection.h"
#include "support/dtypes.h"
#include "support/in_order.h"

namespace distir::decompose {

namespace ffi = tvm::ffi;

class Writer {
 public:
  using Emit = std::function<ir::Expr(const ir::Expr&)>;  // binds a value; gives the variable

  /*! \param view The mesh that new tensors are named on. */
  Writer(dialect::MeshTable* meshes, const ir::DeviceMesh& view, Emit emit)
      : meshes_(*meshes), view_(view), root_(meshes->RootOf(view)), emit_(std::move(emit)) {}

  /*! \brief A call made by one of TVM's constructors, typed, its operands placed, bound. */
  template <typename... Args>
  ir::Expr Write(const ir::GlobalFunction& make, const Args&... args) {
    return Place(make(args...).template cast<ir::Call>());
  }
  /*! \brief A reduction that keeps its dimensions as 1. */
  ir::Expr Reduce(const ir::GlobalFunction& make, const ir::Expr& x, const std::vector<int>& dims,
                  bool keepdims = true);
  /*! \brief The value in another element type; itself where it has it. */
  ir::Expr Cast(const ir::Expr& x, DLDataType dtype);
  ir::Expr Reshape(const ir::Expr& x, const ir::NodeArray<ir::Expr>& shape);
  /*! \brief New dimensions of size 1, at these positions of the result. */
  ir::Expr ExpandDims(const ir::Expr& x, const std::vector<int>& dims);
  /*! \brief Without these dimensions of size 1. */
  ir::Expr Squeeze(const ir::Expr& x, const std::vector<int>& dims);
  /*! \brief A field of a tuple, bound. */
  ir::Expr Field(const ir::Expr& tuple, int index);
  /*! \brief A scalar that is alike everywhere. */
  ir::Expr Scalar(double value, DLDataType dtype);
  /*! \brief The value placed so; itself where it is. */
  ir::Expr Placed(const ir::Expr& x, const mesh::Sharding& sharding);
  /*! \brief A call typed, its operands placed, bound; its own type need not be known. */
  ir::Expr Place(const ir::Call& call);
  /*! \brief Arguments with their tensors, those of tuples too, placed so, in order. */
  ffi::Array<ir::Expr> PlaceAll(const ir::NodeArray<ir::Expr>& args,
                                const std::vector<mesh::Sharding>& operands);
  /*! \brief A segment exchange; the dimension stays sharded as it is. */
  ir::Expr Move(const ir::Expr& x, int dim, int64_t size,
                const std::vector<mesh::Segment>& segments, const std::string& fill = "0");
  /*! \brief The value cut or lengthened to `size` along a dimension, with anything behind what it
   * has; nothing moves where the shards of both extents are of one size. */
  ir::Expr Resized(const ir::Expr& x, int dim, int64_t size);
  /*! \brief The value lengthened so that a dimension divides into its shards. */
  ir::Expr Even(const ir::Expr& x, int dim);
  /*! \brief 0, 1, .. of int64 up to `size`, made replicated, then placed. */
  ir::Expr Range(const ir::Expr& size, const mesh::AxisList& axes);
  /*! \brief A whole number, which may be symbolic, as one element of int64: (1,), replicated. */
  ir::Expr Number(const ir::Expr& value);
  /*! \brief Index of the device's shard along `axes`, as dimension `dim` of `rank`, the others of
   * size 1: 0, 1, .. of int64 over the devices. */
  ir::Expr ShardIndex(const mesh::AxisList& axes, int dim, int rank);
  /*! \brief 0, 1, .. of int64, `size` of them, sharded along `axes`; each device makes its own
   * where they divide. */
  ir::Expr Positions(const mesh::AxisList& axes, const ir::Expr& size);

  const mesh::Sharding& ShardingOf(const ir::Expr& x);

  /*! \brief A writer that names tensors on a view of the mesh that has all of these lists. */
  Writer OnViewOf(const std::vector<mesh::AxisList>& lists) const;
  /*! \brief The value named on this writer's view; itself where it is. */
  ir::Expr Named(const ir::Expr& x);

 private:
  ir::Expr Arange(const ir::Expr& begin, const ir::Expr& end);
  ir::Expr PlaceArg(const ir::Expr& arg, InOrder<std::vector<mesh::Sharding>>* operands);
  ir::DTensorType TypeOf(const ir::TensorType& type, const mesh::Sharding& sharding);

  dialect::MeshTable& meshes_;
  ir::DeviceMesh view_;
  int root_;
  Emit emit_;
};

/*! \brief The tensor type of a DTensor or Tensor. */
ir::TensorType TensorTypeOf(const ir::Expr& x);
int RankOf(const ir::Expr& x);
DLDataType DtypeOf(const ir::Expr& x);
/*! \brief The shape with dimension `dim` of n split into `shards` and n / shards. */
ffi::Array<ir::Expr> SplitShape(const ir::Expr& x, int dim, int64_t shards);

}  // namespace distir::decompose
#endif  // DISTIR_DECOMPOSE_WRITER_H_
