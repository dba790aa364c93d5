"""Names that the vendor publishes."""

CUSTOM_CALLS = frozenset(
    {
        *(
            f"AwsNeuron{name}"
            for name in (
                "Erf Gelu GeluApprxTanh GeluBackward Silu SiluBackward RmsNorm Softmax SoftmaxBackward CollectiveMatmul IntMatmult ArgMax ArgMin "
                "TopK DropoutMaskV1 CustomNativeKernel CustomOp DevicePrint LNCShardingConstraint TransferWithStaticRing "
                "ModuleMarkerStart-Forward ModuleMarkerStart-Backward ModuleMarkerEnd-Forward ModuleMarkerEnd-Backward"
            ).split()
        ),
        "NeuronBoundaryMarker-Start",
        "NeuronBoundaryMarker-End",
        "ResizeNearest",
        "ResizeBilinear",
        "ResizeNearestGrad",
        "QuantizeMX",
        "__op$block_scaled_dot",
    }
)
"""custom_call targets that neuronx-cc understands."""

REDUCE_BODIES = frozenset({"stablehlo.add", "stablehlo.multiply", "stablehlo.minimum", "stablehlo.maximum"})
"""Ops of which a reduction's body may be one."""
