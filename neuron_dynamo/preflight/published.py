"""Names that the vendor publishes."""

CUSTOM_CALLS = frozenset(
    {
        "AwsNeuronArgMax",
        "AwsNeuronArgMin",
        "AwsNeuronCollectiveMatmul",
        "AwsNeuronCustomNativeKernel",
        "AwsNeuronCustomOp",
        "AwsNeuronDevicePrint",
        "AwsNeuronDropoutMaskV1",
        "AwsNeuronErf",
        "AwsNeuronGelu",
        "AwsNeuronGeluApprxTanh",
        "AwsNeuronGeluBackward",
        "AwsNeuronIntMatmult",
        "AwsNeuronLNCShardingConstraint",
        "AwsNeuronModuleMarkerEnd-Backward",
        "AwsNeuronModuleMarkerEnd-Forward",
        "AwsNeuronModuleMarkerStart-Backward",
        "AwsNeuronModuleMarkerStart-Forward",
        "AwsNeuronRmsNorm",
        "AwsNeuronSilu",
        "AwsNeuronSiluBackward",
        "AwsNeuronSoftmax",
        "AwsNeuronSoftmaxBackward",
        "AwsNeuronTopK",
        "AwsNeuronTransferWithStaticRing",
        "NeuronBoundaryMarker-End",
        "NeuronBoundaryMarker-Start",
        "QuantizeMX",
        "ResizeBilinear",
        "ResizeNearest",
        "ResizeNearestGrad",
        "__op$block_scaled_dot",
    }
)
"""custom_call targets that neuronx-cc understands."""

REDUCE_BODIES = frozenset({"stablehlo.add", "stablehlo.multiply", "stablehlo.minimum", "stablehlo.maximum"})
"""Ops of which a reduction's body may be one."""
