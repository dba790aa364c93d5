module {
  func.func @main(%arg0: tensor<32x32xf32>, %arg1: tensor<32xf32>, %arg2: tensor<32xf32>, %arg3: tensor<64x32xf32>, %arg4: tensor<32x64xf32>, %arg5: tensor<32xf32>, %arg6: tensor<32xf32>, %arg7: tensor<16x32xf32>, %arg8: tensor<2x4x8x8xf32>, %arg9: tensor<2x4x8x8xf32>, %arg10: tensor<2x4x8x8xf32>, %arg11: tensor<2x4x8xf32>, %arg12: tensor<16x32xf32>, %arg13: tensor<2x8x32xf32>, %arg14: tensor<2x8x1xf32>, %arg15: tensor<2x8x1xf32>, %arg16: tensor<16x32xf32>, %arg17: tensor<16x64xf32>, %arg18: tensor<16x64xf32>, %arg19: tensor<2x8x32xf32>, %arg20: tensor<2x8x1xf32>, %arg21: tensor<2x8x1xf32>, %arg22: tensor<2x4x8x8xf32>, %arg23: tensor<2x8x32xf32>) -> (tensor<32xf32>, tensor<32xf32>, tensor<32xf32>, tensor<32x64xf32>, tensor<64xf32>, tensor<64x32xf32>, tensor<32xf32>, tensor<32xf32>, tensor<32xf32>, tensor<32x32xf32>, tensor<32xf32>, tensor<32x32xf32>, tensor<32xf32>, tensor<32x32xf32>, tensor<32xf32>, tensor<32x32xf32>) {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0:3 = stablehlo.composite "neuron_dynamo.layer_norm_backward" %arg23, %arg19, %arg20, %arg21, %arg5, %arg6 {decomposition = @neuron_dynamo_layer_norm_backward_0, version = 1 : i32} : (tensor<2x8x32xf32>, tensor<2x8x32xf32>, tensor<2x8x1xf32>, tensor<2x8x1xf32>, tensor<32xf32>, tensor<32xf32>) -> (tensor<2x8x32xf32>, tensor<32xf32>, tensor<32xf32>)
    %1 = stablehlo.reshape %0#0 : (tensor<2x8x32xf32>) -> tensor<16x32xf32>
    %2 = stablehlo.dot_general %0#0, %arg4, contracting_dims = [2] x [0] : (tensor<2x8x32xf32>, tensor<32x64xf32>) -> tensor<2x8x64xf32>
    %3 = stablehlo.dot_general %1, %arg18, contracting_dims = [0] x [0] : (tensor<16x32xf32>, tensor<16x64xf32>) -> tensor<32x64xf32>
    %4 = stablehlo.reduce(%1 init: %cst) applies stablehlo.add across dimensions = [0] : (tensor<16x32xf32>, tensor<f32>) -> tensor<32xf32>
    %5 = stablehlo.reshape %arg17 : (tensor<16x64xf32>) -> tensor<2x8x64xf32>
    %6 = stablehlo.composite "neuron_dynamo.gelu_backward" %2, %5 {composite_attributes = {approximate = "none"}, decomposition = @neuron_dynamo_gelu_backward_0, version = 1 : i32} : (tensor<2x8x64xf32>, tensor<2x8x64xf32>) -> tensor<2x8x64xf32>
    %7 = stablehlo.reshape %6 : (tensor<2x8x64xf32>) -> tensor<16x64xf32>
    %8 = stablehlo.dot_general %6, %arg3, contracting_dims = [2] x [0] : (tensor<2x8x64xf32>, tensor<64x32xf32>) -> tensor<2x8x32xf32>
    %9 = stablehlo.dot_general %7, %arg16, contracting_dims = [0] x [0] : (tensor<16x64xf32>, tensor<16x32xf32>) -> tensor<64x32xf32>
    %10 = stablehlo.reduce(%7 init: %cst) applies stablehlo.add across dimensions = [0] : (tensor<16x64xf32>, tensor<f32>) -> tensor<64xf32>
    %11 = stablehlo.add %0#0, %8 : tensor<2x8x32xf32>
    %12:3 = stablehlo.composite "neuron_dynamo.layer_norm_backward" %11, %arg13, %arg14, %arg15, %arg1, %arg2 {decomposition = @neuron_dynamo_layer_norm_backward_0, version = 1 : i32} : (tensor<2x8x32xf32>, tensor<2x8x32xf32>, tensor<2x8x1xf32>, tensor<2x8x1xf32>, tensor<32xf32>, tensor<32xf32>) -> (tensor<2x8x32xf32>, tensor<32xf32>, tensor<32xf32>)
    %13 = stablehlo.reshape %12#0 : (tensor<2x8x32xf32>) -> tensor<16x32xf32>
    %14 = stablehlo.dot_general %12#0, %arg0, contracting_dims = [2] x [0] : (tensor<2x8x32xf32>, tensor<32x32xf32>) -> tensor<2x8x32xf32>
    %15 = stablehlo.dot_general %13, %arg12, contracting_dims = [0] x [0] : (tensor<16x32xf32>, tensor<16x32xf32>) -> tensor<32x32xf32>
    %16 = stablehlo.reduce(%13 init: %cst) applies stablehlo.add across dimensions = [0] : (tensor<16x32xf32>, tensor<f32>) -> tensor<32xf32>
    %17 = stablehlo.reshape %14 : (tensor<2x8x32xf32>) -> tensor<2x8x4x8xf32>
    %18 = stablehlo.transpose %17, dims = [0, 2, 1, 3] : (tensor<2x8x4x8xf32>) -> tensor<2x4x8x8xf32>
    %19:3 = stablehlo.composite "neuron_dynamo.attention_backward" %18, %arg8, %arg9, %arg10, %arg22, %arg11 {composite_attributes = {has_mask = false, is_causal = false, scale = 0.35355339059327379 : f64}, decomposition = @neuron_dynamo_attention_backward_0, version = 1 : i32} : (tensor<2x4x8x8xf32>, tensor<2x4x8x8xf32>, tensor<2x4x8x8xf32>, tensor<2x4x8x8xf32>, tensor<2x4x8x8xf32>, tensor<2x4x8xf32>) -> (tensor<2x4x8x8xf32>, tensor<2x4x8x8xf32>, tensor<2x4x8x8xf32>)
    %20 = stablehlo.transpose %19#2, dims = [0, 2, 1, 3] : (tensor<2x4x8x8xf32>) -> tensor<2x8x4x8xf32>
    %21 = stablehlo.reshape %20 : (tensor<2x8x4x8xf32>) -> tensor<16x32xf32>
    %22 = stablehlo.dot_general %21, %arg7, contracting_dims = [0] x [0] : (tensor<16x32xf32>, tensor<16x32xf32>) -> tensor<32x32xf32>
    %23 = stablehlo.reduce(%21 init: %cst) applies stablehlo.add across dimensions = [0] : (tensor<16x32xf32>, tensor<f32>) -> tensor<32xf32>
    %24 = stablehlo.transpose %19#1, dims = [0, 2, 1, 3] : (tensor<2x4x8x8xf32>) -> tensor<2x8x4x8xf32>
    %25 = stablehlo.reshape %24 : (tensor<2x8x4x8xf32>) -> tensor<16x32xf32>
    %26 = stablehlo.dot_general %25, %arg7, contracting_dims = [0] x [0] : (tensor<16x32xf32>, tensor<16x32xf32>) -> tensor<32x32xf32>
    %27 = stablehlo.reduce(%25 init: %cst) applies stablehlo.add across dimensions = [0] : (tensor<16x32xf32>, tensor<f32>) -> tensor<32xf32>
    %28 = stablehlo.transpose %19#0, dims = [0, 2, 1, 3] : (tensor<2x4x8x8xf32>) -> tensor<2x8x4x8xf32>
    %29 = stablehlo.reshape %28 : (tensor<2x8x4x8xf32>) -> tensor<16x32xf32>
    %30 = stablehlo.dot_general %29, %arg7, contracting_dims = [0] x [0] : (tensor<16x32xf32>, tensor<16x32xf32>) -> tensor<32x32xf32>
    %31 = stablehlo.reduce(%29 init: %cst) applies stablehlo.add across dimensions = [0] : (tensor<16x32xf32>, tensor<f32>) -> tensor<32xf32>
    return %0#1, %0#2, %4, %3, %10, %9, %12#1, %12#2, %16, %15, %23, %22, %27, %26, %31, %30 : tensor<32xf32>, tensor<32xf32>, tensor<32xf32>, tensor<32x64xf32>, tensor<64xf32>, tensor<64x32xf32>, tensor<32xf32>, tensor<32xf32>, tensor<32xf32>, tensor<32x32xf32>, tensor<32xf32>, tensor<32x32xf32>, tensor<32xf32>, tensor<32x32xf32>, tensor<32xf32>, tensor<32x32xf32>
  }
  func.func private @neuron_dynamo_layer_norm_backward_0(%arg0: tensor<2x8x32xf32>, %arg1: tensor<2x8x32xf32>, %arg2: tensor<2x8x1xf32>, %arg3: tensor<2x8x1xf32>, %arg4: tensor<32xf32>, %arg5: tensor<32xf32>) -> (tensor<2x8x32xf32>, tensor<32xf32>, tensor<32xf32>) {
    %cst = stablehlo.constant dense<3.200000e+01> : tensor<f32>
    %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.reshape %arg2 : (tensor<2x8x1xf32>) -> tensor<2x8xf32>
    %1 = stablehlo.reshape %arg3 : (tensor<2x8x1xf32>) -> tensor<2x8xf32>
    %2 = stablehlo.broadcast_in_dim %0, dims = [0, 1] : (tensor<2x8xf32>) -> tensor<2x8x32xf32>
    %3 = stablehlo.subtract %arg1, %2 : tensor<2x8x32xf32>
    %4 = stablehlo.broadcast_in_dim %1, dims = [0, 1] : (tensor<2x8xf32>) -> tensor<2x8x32xf32>
    %5 = stablehlo.multiply %3, %4 : tensor<2x8x32xf32>
    %6 = stablehlo.broadcast_in_dim %arg4, dims = [2] : (tensor<32xf32>) -> tensor<2x8x32xf32>
    %7 = stablehlo.multiply %arg0, %6 : tensor<2x8x32xf32>
    %8 = stablehlo.reduce(%7 init: %cst_0) applies stablehlo.add across dimensions = [2] : (tensor<2x8x32xf32>, tensor<f32>) -> tensor<2x8xf32>
    %9 = stablehlo.multiply %7, %5 : tensor<2x8x32xf32>
    %10 = stablehlo.reduce(%9 init: %cst_0) applies stablehlo.add across dimensions = [2] : (tensor<2x8x32xf32>, tensor<f32>) -> tensor<2x8xf32>
    %11 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2x8xf32>
    %12 = stablehlo.divide %8, %11 : tensor<2x8xf32>
    %13 = stablehlo.broadcast_in_dim %12, dims = [0, 1] : (tensor<2x8xf32>) -> tensor<2x8x32xf32>
    %14 = stablehlo.divide %10, %11 : tensor<2x8xf32>
    %15 = stablehlo.broadcast_in_dim %14, dims = [0, 1] : (tensor<2x8xf32>) -> tensor<2x8x32xf32>
    %16 = stablehlo.subtract %7, %13 : tensor<2x8x32xf32>
    %17 = stablehlo.multiply %5, %15 : tensor<2x8x32xf32>
    %18 = stablehlo.subtract %16, %17 : tensor<2x8x32xf32>
    %19 = stablehlo.multiply %18, %4 : tensor<2x8x32xf32>
    %20 = stablehlo.multiply %arg0, %5 : tensor<2x8x32xf32>
    %21 = stablehlo.reduce(%20 init: %cst_0) applies stablehlo.add across dimensions = [0, 1] : (tensor<2x8x32xf32>, tensor<f32>) -> tensor<32xf32>
    %22 = stablehlo.reduce(%arg0 init: %cst_0) applies stablehlo.add across dimensions = [0, 1] : (tensor<2x8x32xf32>, tensor<f32>) -> tensor<32xf32>
    return %19, %21, %22 : tensor<2x8x32xf32>, tensor<32xf32>, tensor<32xf32>
  }
  func.func private @neuron_dynamo_gelu_backward_0(%arg0: tensor<2x8x64xf32>, %arg1: tensor<2x8x64xf32>) -> tensor<2x8x64xf32> {
    %cst = stablehlo.constant dense<0.398942292> : tensor<f32>
    %cst_0 = stablehlo.constant dense<-5.000000e-01> : tensor<f32>
    %cst_1 = stablehlo.constant dense<0.707106769> : tensor<f32>
    %cst_2 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<2x8x64xf32>
    %1 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<2x8x64xf32>
    %2 = stablehlo.multiply %arg1, %1 : tensor<2x8x64xf32>
    %3 = stablehlo.custom_call @mhlo.erf(%2) {mhlo.attributes = {}, mhlo.version = 1 : i64} : (tensor<2x8x64xf32>) -> tensor<2x8x64xf32>
    %4 = stablehlo.multiply %0, %3 : tensor<2x8x64xf32>
    %5 = stablehlo.add %0, %4 : tensor<2x8x64xf32>
    %6 = stablehlo.multiply %arg1, %arg1 : tensor<2x8x64xf32>
    %7 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<2x8x64xf32>
    %8 = stablehlo.multiply %6, %7 : tensor<2x8x64xf32>
    %9 = stablehlo.exponential %8 : tensor<2x8x64xf32>
    %10 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2x8x64xf32>
    %11 = stablehlo.multiply %9, %10 : tensor<2x8x64xf32>
    %12 = stablehlo.multiply %arg1, %11 : tensor<2x8x64xf32>
    %13 = stablehlo.add %5, %12 : tensor<2x8x64xf32>
    %14 = stablehlo.multiply %arg0, %13 : tensor<2x8x64xf32>
    return %14 : tensor<2x8x64xf32>
  }
  func.func private @neuron_dynamo_attention_backward_0(%arg0: tensor<2x4x8x8xf32>, %arg1: tensor<2x4x8x8xf32>, %arg2: tensor<2x4x8x8xf32>, %arg3: tensor<2x4x8x8xf32>, %arg4: tensor<2x4x8x8xf32>, %arg5: tensor<2x4x8xf32>) -> (tensor<2x4x8x8xf32>, tensor<2x4x8x8xf32>, tensor<2x4x8x8xf32>) {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %cst_0 = stablehlo.constant dense<0.353553385> : tensor<f32>
    %0 = stablehlo.dot_general %arg1, %arg2, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3] : (tensor<2x4x8x8xf32>, tensor<2x4x8x8xf32>) -> tensor<2x4x8x8xf32>
    %1 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<2x4x8x8xf32>
    %2 = stablehlo.multiply %0, %1 : tensor<2x4x8x8xf32>
    %3 = stablehlo.broadcast_in_dim %arg5, dims = [0, 1, 2] : (tensor<2x4x8xf32>) -> tensor<2x4x8x8xf32>
    %4 = stablehlo.subtract %2, %3 : tensor<2x4x8x8xf32>
    %5 = stablehlo.exponential %4 : tensor<2x4x8x8xf32>
    %6 = stablehlo.multiply %arg0, %arg4 : tensor<2x4x8x8xf32>
    %7 = stablehlo.reduce(%6 init: %cst) applies stablehlo.add across dimensions = [3] : (tensor<2x4x8x8xf32>, tensor<f32>) -> tensor<2x4x8xf32>
    %8 = stablehlo.dot_general %arg0, %arg3, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3] : (tensor<2x4x8x8xf32>, tensor<2x4x8x8xf32>) -> tensor<2x4x8x8xf32>
    %9 = stablehlo.broadcast_in_dim %7, dims = [0, 1, 2] : (tensor<2x4x8xf32>) -> tensor<2x4x8x8xf32>
    %10 = stablehlo.subtract %8, %9 : tensor<2x4x8x8xf32>
    %11 = stablehlo.multiply %5, %10 : tensor<2x4x8x8xf32>
    %12 = stablehlo.multiply %11, %1 : tensor<2x4x8x8xf32>
    %13 = stablehlo.dot_general %12, %arg2, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2] : (tensor<2x4x8x8xf32>, tensor<2x4x8x8xf32>) -> tensor<2x4x8x8xf32>
    %14 = stablehlo.dot_general %12, %arg1, batching_dims = [0, 1] x [0, 1], contracting_dims = [2] x [2] : (tensor<2x4x8x8xf32>, tensor<2x4x8x8xf32>) -> tensor<2x4x8x8xf32>
    %15 = stablehlo.dot_general %5, %arg0, batching_dims = [0, 1] x [0, 1], contracting_dims = [2] x [2] : (tensor<2x4x8x8xf32>, tensor<2x4x8x8xf32>) -> tensor<2x4x8x8xf32>
    return %13, %14, %15 : tensor<2x4x8x8xf32>, tensor<2x4x8x8xf32>, tensor<2x4x8x8xf32>
  }
}
