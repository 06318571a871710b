/*!
 * \file ir/make_operators.h
 * \brief Makes calls of operators by TVM's functions; types are not yet inferred.
 *
 * Each is resolved when the library is loaded. `make::kNnSoftmax` is `relax.op.nn.softmax`.
 */
#ifndef DISTIR_IR_MAKE_OPERATORS_H_
#define DISTIR_IR_MAKE_OPERATORS_H_

#include "ir/tvm/reflection.h"

namespace distir::ir {
namespace make {

inline const GlobalFunction kAdd("relax.op.add");
inline const GlobalFunction kArange("relax.op.arange");
inline const GlobalFunction kArgmax("relax.op.argmax");
inline const GlobalFunction kArgmin("relax.op.argmin");
inline const GlobalFunction kAstype("relax.op.astype");
inline const GlobalFunction kBroadcastTo("relax.op.broadcast_to");
inline const GlobalFunction kClip("relax.op.clip");
inline const GlobalFunction kConcat("relax.op.concat");
inline const GlobalFunction kCos("relax.op.cos");
inline const GlobalFunction kCumprod("relax.op.cumprod");
inline const GlobalFunction kCumsum("relax.op.cumsum");
inline const GlobalFunction kDistAnnotateSharding("relax.op.dist.annotate_sharding");
inline const GlobalFunction kDistRedistribute("relax.op.dist.redistribute");
inline const GlobalFunction kDivide("relax.op.divide");
inline const GlobalFunction kEinsum("relax.op.einsum");
inline const GlobalFunction kEqual("relax.op.equal");
inline const GlobalFunction kExp("relax.op.exp");
inline const GlobalFunction kExpandDims("relax.op.expand_dims");
inline const GlobalFunction kFlip("relax.op.flip");
inline const GlobalFunction kFloorDivide("relax.op.floor_divide");
inline const GlobalFunction kFloorMod("relax.op.floor_mod");
inline const GlobalFunction kGatherElements("relax.op.gather_elements");
inline const GlobalFunction kGatherNd("relax.op.gather_nd");
inline const GlobalFunction kGreaterEqual("relax.op.greater_equal");
inline const GlobalFunction kIsNan("relax.op.isnan");
inline const GlobalFunction kLess("relax.op.less");
inline const GlobalFunction kLessEqual("relax.op.less_equal");
inline const GlobalFunction kLog("relax.op.log");
inline const GlobalFunction kLogicalAnd("relax.op.logical_and");
inline const GlobalFunction kLogicalOr("relax.op.logical_or");
inline const GlobalFunction kMatmul("relax.op.matmul");
inline const GlobalFunction kMax("relax.op.max");
inline const GlobalFunction kMean("relax.op.mean");
inline const GlobalFunction kMin("relax.op.min");
inline const GlobalFunction kMultiply("relax.op.multiply");
inline const GlobalFunction kNegative("relax.op.negative");
inline const GlobalFunction kNnAvgPool1d("relax.op.nn.avg_pool1d");
inline const GlobalFunction kNnAvgPool2d("relax.op.nn.avg_pool2d");
inline const GlobalFunction kNnAvgPool3d("relax.op.nn.avg_pool3d");
inline const GlobalFunction kNnConv1d("relax.op.nn.conv1d");
inline const GlobalFunction kNnConv2d("relax.op.nn.conv2d");
inline const GlobalFunction kNnConv3d("relax.op.nn.conv3d");
inline const GlobalFunction kNnGroupNorm("relax.op.nn.group_norm");
inline const GlobalFunction kNnInstanceNorm("relax.op.nn.instance_norm");
inline const GlobalFunction kNnLayerNorm("relax.op.nn.layer_norm");
inline const GlobalFunction kNnLogSoftmax("relax.op.nn.log_softmax");
inline const GlobalFunction kNnMaxPool1d("relax.op.nn.max_pool1d");
inline const GlobalFunction kNnMaxPool2d("relax.op.nn.max_pool2d");
inline const GlobalFunction kNnMaxPool3d("relax.op.nn.max_pool3d");
inline const GlobalFunction kNnNllLoss("relax.op.nn.nll_loss");
inline const GlobalFunction kNnPad("relax.op.nn.pad");
inline const GlobalFunction kNnRmsNorm("relax.op.nn.rms_norm");
inline const GlobalFunction kNnSoftmax("relax.op.nn.softmax");
inline const GlobalFunction kNotEqual("relax.op.not_equal");
inline const GlobalFunction kOnes("relax.op.ones");
inline const GlobalFunction kPermuteDims("relax.op.permute_dims");
inline const GlobalFunction kProd("relax.op.prod");
inline const GlobalFunction kReshape("relax.op.reshape");
inline const GlobalFunction kRsqrt("relax.op.rsqrt");
inline const GlobalFunction kScatterElements("relax.op.scatter_elements");
inline const GlobalFunction kSplit("relax.op.split");
inline const GlobalFunction kSqrt("relax.op.sqrt");
inline const GlobalFunction kSquare("relax.op.square");
inline const GlobalFunction kSqueeze("relax.op.squeeze");
inline const GlobalFunction kStd("relax.op.std");
inline const GlobalFunction kStridedSlice("relax.op.strided_slice");
inline const GlobalFunction kSubtract("relax.op.subtract");
inline const GlobalFunction kSum("relax.op.sum");
inline const GlobalFunction kTake("relax.op.take");
inline const GlobalFunction kTile("relax.op.tile");
inline const GlobalFunction kTopk("relax.op.topk");
inline const GlobalFunction kVariance("relax.op.variance");
inline const GlobalFunction kWhere("relax.op.where");
inline const GlobalFunction kZerosLike("relax.op.zeros_like");

}  // namespace make
}  // namespace distir::ir
#endif  // DISTIR_IR_MAKE_OPERATORS_H_
