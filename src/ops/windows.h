/*!
 * \file ops/windows.h
 * \brief Windows of convolutions and pooling: the elements of a spatial dimension that each element
 * of the result reads.
 *
 * Element o of a result looks at the elements o * stride - before + j * dilation, j < kernel, of
 * the data; those outside are padding. Of a transposed convolution element i of the data adds to
 * the elements i * stride - before + j of the result.
 */
#ifndef DISTIR_OPS_WINDOWS_H_
#define DISTIR_OPS_WINDOWS_H_

#include <optional>
#include <string>
#include <vector>

#include "ops/family.h"

namespace distir::ops {

enum class WindowKind { kConvolution, kTransposed, kMaximum, kMean };

/*! \brief One spatial dimension. */
struct WindowDim {
  int data_dim, result_dim;
  int64_t data_size, result_size;  // -1: symbolic
  int64_t kernel, stride, dilation, before, after;
  int64_t output_padding;   // of a transposed convolution
  int kernel_dim = -1;      // of a convolution
  bool contracted = false;  // shards are those of the window

  /*! \brief Distance from the first element in a window to the last, inclusive. */
  int64_t extent() const { return (kernel - 1) * dilation + 1; }
};

struct Windows {
  WindowKind kind;
  int data_batch, result_batch;  // dimensions
  std::vector<WindowDim> dims;   // in the order of the attributes
  bool counts_padding;           // of a mean
  // Dimensions of a convolution with contracted windows.
  int data_channel = -1, kernel_out = -1, result_channel = -1;
  int64_t groups = 1;
};

/*! \brief Spatial dimensions of data (the first operand) and result in their layouts, with windows
 * of one element; nullopt where the layouts do not fit the tensors. */
std::optional<Windows> SpatialDims(const OpView& view, WindowKind kind, const std::string& data,
                                   const std::string& out);

/*! \brief Reads strides, padding and dilation; false where a list has another length. */
bool ReadWindowLists(const ir::AttrField& strides, const ir::AttrField& padding,
                     const ir::AttrField& dilation, const ir::Node& attrs, Windows* windows);

/*!
 * \brief Gives each spatial dimension of data and result a factor: parallel where no window looks
 * into another shard, decomposed where windows of a shard can be gathered from its neighbours. The
 * operators of a decomposed one are decomposed where it is uneven (rules/tails.h). A contracted one
 * is that of data and kernel.
 */
void AddWindowFactors(const OpView& view, const Windows& windows, RuleBuilder* builder);

/*! \brief True if blocks of the result look at blocks of the data and nothing else. */
bool IsBlockwise(const WindowDim& dim, WindowKind kind);

/*! \brief Writes a call some spatial dimension of which is sharded: every device gets the elements
 * that the windows of its shard of the result look at (a halo exchange), padding included; the
 * shards then are a part of the batch, each computed alone. Shards of contracted windows are groups
 * of channels, which are summed. */
ir::Expr DecomposeWindows(const DecomposedCall& call, const Windows& windows, Writer* writer);

}  // namespace distir::ops
#endif  // DISTIR_OPS_WINDOWS_H_
