/*!
 * \file ir/operator_attrs.h
 * \brief Attributes of TVM's operators that the library reads, by type and field.
 *
 * Each is resolved when the library is loaded, so a release of TVM that renames one fails on import
 * with a message that names it. `attrs::kSoftmaxAxis` is field `axis` of
 * `relax.attrs.SoftmaxAttrs`.
 */
#ifndef DISTIR_IR_OPERATOR_ATTRS_H_
#define DISTIR_IR_OPERATOR_ATTRS_H_

#include "ir/tvm/reflection.h"

namespace distir::ir {
namespace attrs {

inline const AttrField kAllReduceOpType("relax.attrs.AllReduceAttrs", "op_type");
inline const AttrField kArgmaxArgminAxis("relax.attrs.ArgmaxArgminAttrs", "axis");
inline const AttrField kArgmaxArgminKeepdims("relax.attrs.ArgmaxArgminAttrs", "keepdims");
inline const AttrField kArgsortAxis("relax.attrs.ArgsortAttrs", "axis");
inline const AttrField kArgsortDescending("relax.attrs.ArgsortAttrs", "descending");
inline const AttrField kAttentionCausalMask("relax.attrs.AttentionAttrs", "causal_mask");
inline const AttrField kAttentionScale("relax.attrs.AttentionAttrs", "scale");
inline const AttrField kAttentionWindowSize("relax.attrs.AttentionAttrs", "window_size");
inline const AttrField kBatchNormAxis("relax.attrs.BatchNormAttrs", "axis");
inline const AttrField kBatchNormCenter("relax.attrs.BatchNormAttrs", "center");
inline const AttrField kBatchNormEpsilon("relax.attrs.BatchNormAttrs", "epsilon");
inline const AttrField kBatchNormMomentum("relax.attrs.BatchNormAttrs", "momentum");
inline const AttrField kBatchNormScale("relax.attrs.BatchNormAttrs", "scale");
inline const AttrField kBatchNormTraining("relax.attrs.BatchNormAttrs", "training");
inline const AttrField kCallTIRInplaceInplaceIndices("relax.attrs.CallTIRInplaceAttrs",
                                                     "inplace_indices");
inline const AttrField kCallTIRWithGradTEGradName("relax.attrs.CallTIRWithGradAttrs",
                                                  "te_grad_name");
inline const AttrField kConcatAxis("relax.attrs.ConcatAttrs", "axis");
inline const AttrField kDistributionDeviceMesh("relax.attrs.DistributionAttrs", "device_mesh");
inline const AttrField kDistributionPlacement("relax.attrs.DistributionAttrs", "placement");
inline const AttrField kEinsumSubscripts("relax.attrs.EinsumAttrs", "subscripts");
inline const AttrField kExpandDimsAxis("relax.attrs.ExpandDimsAttrs", "axis");
inline const AttrField kFlipAxis("relax.attrs.FlipAttrs", "axis");
inline const AttrField kGatherElementsAxis("relax.attrs.GatherElementsAttrs", "axis");
inline const AttrField kGatherNDBatchDims("relax.attrs.GatherNDAttrs", "batch_dims");
inline const AttrField kGroupNormAxes("relax.attrs.GroupNormAttrs", "axes");
inline const AttrField kGroupNormChannelAxis("relax.attrs.GroupNormAttrs", "channel_axis");
inline const AttrField kGroupNormCenter("relax.attrs.GroupNormAttrs", "center");
inline const AttrField kGroupNormEpsilon("relax.attrs.GroupNormAttrs", "epsilon");
inline const AttrField kGroupNormNumGroups("relax.attrs.GroupNormAttrs", "num_groups");
inline const AttrField kGroupNormScale("relax.attrs.GroupNormAttrs", "scale");
inline const AttrField kIndexPutAccumulate("relax.attrs.IndexPutAttrs", "accumulate");
inline const AttrField kInstanceNormAxes("relax.attrs.InstanceNormAttrs", "axes");
inline const AttrField kInstanceNormChannelAxis("relax.attrs.InstanceNormAttrs", "channel_axis");
inline const AttrField kInstanceNormCenter("relax.attrs.InstanceNormAttrs", "center");
inline const AttrField kInstanceNormEpsilon("relax.attrs.InstanceNormAttrs", "epsilon");
inline const AttrField kInstanceNormScale("relax.attrs.InstanceNormAttrs", "scale");
inline const AttrField kLayerNormAxes("relax.attrs.LayerNormAttrs", "axes");
inline const AttrField kLayerNormCenter("relax.attrs.LayerNormAttrs", "center");
inline const AttrField kLayerNormEpsilon("relax.attrs.LayerNormAttrs", "epsilon");
inline const AttrField kLayerNormScale("relax.attrs.LayerNormAttrs", "scale");
inline const AttrField kLayoutTransformIndexMap("relax.attrs.LayoutTransformAttrs", "index_map");
inline const AttrField kMeshgridIndexing("relax.attrs.MeshgridAttrs", "indexing");
inline const AttrField kNLLLossIgnoreIndex("relax.attrs.NLLLossAttrs", "ignore_index");
inline const AttrField kNLLLossReduction("relax.attrs.NLLLossAttrs", "reduction");
inline const AttrField kOneHotAxis("relax.attrs.OneHotAttrs", "axis");
inline const AttrField kPReluAxis("relax.attrs.PReluAttrs", "axis");
inline const AttrField kPadPadMode("relax.attrs.PadAttrs", "pad_mode");
inline const AttrField kPadPadValue("relax.attrs.PadAttrs", "pad_value");
inline const AttrField kPadPadWidth("relax.attrs.PadAttrs", "pad_width");
inline const AttrField kPermuteDimsAxes("relax.attrs.PermuteDimsAttrs", "axes");
inline const AttrField kQuantizeAxis("relax.attrs.QuantizeAttrs", "axis");
inline const AttrField kRMSNormAxes("relax.attrs.RMSNormAttrs", "axes");
inline const AttrField kRMSNormEpsilon("relax.attrs.RMSNormAttrs", "epsilon");
inline const AttrField kRepeatAxis("relax.attrs.RepeatAttrs", "axis");
inline const AttrField kRepeatRepeats("relax.attrs.RepeatAttrs", "repeats");
inline const AttrField kReverseSequenceBatchAxis("relax.attrs.ReverseSequenceAttrs", "batch_axis");
inline const AttrField kReverseSequenceSeqAxis("relax.attrs.ReverseSequenceAttrs", "seq_axis");
inline const AttrField kScanopAxis("relax.attrs.ScanopAttrs", "axis");
inline const AttrField kScanopDtype("relax.attrs.ScanopAttrs", "dtype");
inline const AttrField kScanopExclusive("relax.attrs.ScanopAttrs", "exclusive");
inline const AttrField kScatterElementsAxis("relax.attrs.ScatterElementsAttrs", "axis");
inline const AttrField kScatterElementsReduction("relax.attrs.ScatterElementsAttrs", "reduction");
inline const AttrField kScatterNDReduction("relax.attrs.ScatterNDAttrs", "reduction");
inline const AttrField kSliceScatterAxis("relax.attrs.SliceScatterAttrs", "axis");
inline const AttrField kSoftmaxAxis("relax.attrs.SoftmaxAttrs", "axis");
inline const AttrField kSortAxis("relax.attrs.SortAttrs", "axis");
inline const AttrField kSortDescending("relax.attrs.SortAttrs", "descending");
inline const AttrField kSplitAxis("relax.attrs.SplitAttrs", "axis");
inline const AttrField kSqueezeAxis("relax.attrs.SqueezeAttrs", "axis");
inline const AttrField kStackAxis("relax.attrs.StackAttrs", "axis");
inline const AttrField kStatisticalAxis("relax.attrs.StatisticalAttrs", "axis");
inline const AttrField kStatisticalKeepdims("relax.attrs.StatisticalAttrs", "keepdims");
inline const AttrField kTakeAxis("relax.attrs.TakeAttrs", "axis");
inline const AttrField kTakeMode("relax.attrs.TakeAttrs", "mode");
inline const AttrField kTileRepeats("relax.attrs.TileAttrs", "repeats");
inline const AttrField kTopKAxis("relax.attrs.TopKAttrs", "axis");
inline const AttrField kTopKDtype("relax.attrs.TopKAttrs", "dtype");
inline const AttrField kTopKK("relax.attrs.TopKAttrs", "k");
inline const AttrField kTopKLargest("relax.attrs.TopKAttrs", "largest");
inline const AttrField kTopKRetType("relax.attrs.TopKAttrs", "ret_type");
inline const AttrField kGridSampleLayout("relax.attrs.GridSampleAttrs", "layout");
inline const AttrField kROIAlignLayout("relax.attrs.ROIAlignAttrs", "layout");
inline const AttrField kROIPoolLayout("relax.attrs.ROIPoolAttrs", "layout");

// Types that several operators of a family have alike, one object each.

struct ConvFields {
  explicit ConvFields(const char* key)
      : groups(key, "groups"),
        strides(key, "strides"),
        padding(key, "padding"),
        dilation(key, "dilation"),
        data_layout(key, "data_layout"),
        kernel_layout(key, "kernel_layout"),
        out_layout(key, "out_layout") {}
  AttrField groups, strides, padding, dilation, data_layout, kernel_layout, out_layout;
};

struct TransposedFields : ConvFields {
  explicit TransposedFields(const char* key)
      : ConvFields(key), output_padding(key, "output_padding") {}
  AttrField output_padding;
};

inline const ConvFields kConv1d("relax.attrs.Conv1DAttrs");
inline const ConvFields kConv2d("relax.attrs.Conv2DAttrs");
inline const ConvFields kConv3d("relax.attrs.Conv3DAttrs");
inline const TransposedFields kTransposed1d("relax.attrs.Conv1DTransposeAttrs");
inline const TransposedFields kTransposed2d("relax.attrs.Conv2DTransposeAttrs");
inline const TransposedFields kTransposed3d("relax.attrs.Conv3DTransposeAttrs");

struct PoolFields {
  explicit PoolFields(const char* key)
      : pool_size(key, "pool_size"),
        strides(key, "strides"),
        padding(key, "padding"),
        dilation(key, "dilation"),
        count_include_pad(key, "count_include_pad"),
        layout(key, "layout"),
        out_layout(key, "out_layout") {}
  AttrField pool_size, strides, padding, dilation, count_include_pad, layout, out_layout;
};

inline const PoolFields kPool1d("relax.attrs.Pool1DAttrs");
inline const PoolFields kPool2d("relax.attrs.Pool2DAttrs");
inline const PoolFields kPool3d("relax.attrs.Pool3DAttrs");

struct AdaptivePoolFields {
  explicit AdaptivePoolFields(const char* key)
      : layout(key, "layout"), out_layout(key, "out_layout") {}
  AttrField layout, out_layout;
};

inline const AdaptivePoolFields kAdaptivePool1d("relax.attrs.AdaptivePool1DAttrs");
inline const AdaptivePoolFields kAdaptivePool2d("relax.attrs.AdaptivePool2DAttrs");
inline const AdaptivePoolFields kAdaptivePool3d("relax.attrs.AdaptivePool3DAttrs");

struct ResizeFields {
  explicit ResizeFields(const char* key)
      : layout(key, "layout"),
        method(key, "method"),
        places(key, "coordinate_transformation_mode"),
        rounding(key, "rounding_method"),
        cubic_exclude(key, "cubic_exclude") {}
  AttrField layout, method, places, rounding, cubic_exclude;
};

inline const ResizeFields kResize2d("relax.attrs.Resize2DAttrs");
inline const ResizeFields kResize3d("relax.attrs.Resize3DAttrs");

}  // namespace attrs
}  // namespace distir::ir
#endif  // DISTIR_IR_OPERATOR_ATTRS_H_
