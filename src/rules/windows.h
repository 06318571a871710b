/*!
 * \file rules/windows.h
 * \brief The windows of convolutions and pooling: which elements of a spatial dimension each
 * element of the result looks at.
 *
 * Element o of a result looks at the elements o * stride - before + j * dilation, j < kernel, of
 * the data; those outside are padding. Of a transposed convolution element i of the data adds to
 * the elements i * stride - before + j of the result.
 */
#ifndef DISTIR_RULES_WINDOWS_H_
#define DISTIR_RULES_WINDOWS_H_

#include <optional>
#include <string>
#include <vector>

#include "rules/factor_rule.h"

namespace distir {
namespace rules {

enum class WindowKind { kConvolution, kTransposed, kMaximum, kMean };

/*! \brief One spatial dimension. */
struct WindowDim {
  int data_dim, result_dim;
  int64_t data_size, result_size;  // -1: symbolic
  int64_t kernel, stride, dilation, before, after;
  int64_t output_padding;  // of a transposed convolution

  /*! \brief From the first element that a window looks at to the last. */
  int64_t extent() const { return (kernel - 1) * dilation + 1; }
};

struct Windows {
  WindowKind kind;
  int data_batch, result_batch;  // dimensions
  std::vector<WindowDim> dims;   // in the order of the attributes
  bool counts_padding;           // of a mean
};

/*! \brief The windows of a call; nullopt for other operators and layouts that are not known. */
std::optional<Windows> WindowsOf(const OpView& view);

/*!
 * \brief Gives each spatial dimension of data (the first operand) and result a factor: parallel
 * where no window looks into another shard, special where windows of a shard can be gathered from
 * its neighbours. The operators of a special one are expanded where it is uneven (rules/tails.h).
 */
void AddWindowFactors(const OpView& view, RuleBuilder* builder);

/*!
 * \brief The same for the gradient of a pooling, of which the first operand is the gradient of the
 * pooling's result, and the second one and the result are as its data: parallel factors alone.
 */
void AddGradientFactors(const OpView& view, RuleBuilder* builder);

}  // namespace rules
}  // namespace distir
#endif  // DISTIR_RULES_WINDOWS_H_
