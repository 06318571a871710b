/*!
 * \file decompose/blocks.h
 * \brief Reshapes indexed dimensions so that each device's block is one dimension, and finds the
 * positions in it.
 *
 * Worked example: the first two dimensions of x, (6, 8, 5), are named by positions, and the first
 * is sharded two ways. Split gives (2, 24, 5), of which a device has (1, 24, 5). Position (4, 7) is
 * place 15 of the second block: the row behind its first, of 8 elements each.
 */
#ifndef DISTIR_DECOMPOSE_BLOCKS_H_
#define DISTIR_DECOMPOSE_BLOCKS_H_

#include <vector>

#include "decompose/writer.h"

namespace distir::decompose {

/*!
 * \brief (.., n, .., m, ..) to (.., a, b, n / a, m / b, ..): dimensions from `begin` on are split,
 * their shards moved before all of them.
 * \param shards Per dimension; 0 where it is not split.
 */
ir::Expr ShardsFirst(const ir::Expr& x, int begin, const std::vector<int64_t>& shards, Writer* w);

/*! \brief The inverse: a tensor of this shape. */
ir::Expr ShardsBack(const ir::Expr& x, const ir::NodeArray<ir::Expr>& shape, int begin,
                    const std::vector<int64_t>& shards, Writer* w);

/*! \brief Elements `begin` to `end` along one dimension. */
ir::Expr Cut(const ir::Expr& x, int dim, int64_t begin, int64_t end, Writer* w);
/*! \brief Elements at each place of the last dimension, of known size, which is dropped. */
std::vector<ir::Expr> Columns(const ir::Expr& x, Writer* w);

/*! \brief The blocks of a tensor along consecutive dimensions of known size. */
class Blocks {
 public:
  /*! \param num Number of dimensions, from `begin` on. */
  Blocks(const ir::Expr& x, int begin, int num, Writer* w);

  /*! \brief Number of dimensions that are sharded. */
  int num_sharded() const { return static_cast<int>(sharded_.size()); }
  /*! \brief Places in a block. */
  int64_t places() const { return places_; }

  /*! \brief (before.., n.., behind..) to (before.., shards.., places, behind..), of each sharded
   * dimension its shards. */
  ir::Expr Split(const ir::Expr& x, Writer* w) const;
  /*! \brief The inverse. */
  ir::Expr Join(const ir::Expr& x, Writer* w) const;

  struct Places {
    ir::Expr is_own;  // whether the position lies in the block; null where nothing is sharded
    ir::Expr place;   // of a position that does
  };
  /*!
   * \brief Finds positions.
   * \param positions Per dimension, integers of one rank that broadcast with each other.
   * \return Broadcast with each other, dimensions for the shards inserted at `begin`.
   */
  Places Find(const std::vector<ir::Expr>& positions, Writer* w) const;

 private:
  int begin_;
  ffi::Array<ir::Expr> shape_;
  std::vector<mesh::AxisList> axes_;  // per dimension
  std::vector<int64_t> lengths_;      // per dimension, of a block
  std::vector<int> sharded_;
  std::vector<int64_t> shards_;  // per dimension; 0 where it is not sharded
  int64_t places_ = 1;
};

}  // namespace distir::decompose
#endif  // DISTIR_DECOMPOSE_BLOCKS_H_
