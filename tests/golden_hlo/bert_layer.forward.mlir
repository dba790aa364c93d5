module {
  func.func @main(%arg0: tensor<2x8x32xf32>, %arg1: tensor<32x32xf32>, %arg2: tensor<32xf32>, %arg3: tensor<32x32xf32>, %arg4: tensor<32xf32>, %arg5: tensor<32x32xf32>, %arg6: tensor<32xf32>, %arg7: tensor<32x32xf32>, %arg8: tensor<32xf32>, %arg9: tensor<32xf32>, %arg10: tensor<32xf32>, %arg11: tensor<64x32xf32>, %arg12: tensor<64xf32>, %arg13: tensor<32x64xf32>, %arg14: tensor<32xf32>, %arg15: tensor<32xf32>, %arg16: tensor<32xf32>) -> (tensor<2x8x32xf32>, tensor<2x8x32xf32>, tensor<2x8x32xf32>, tensor<2x4x8xf32>, tensor<16x32xf32>, tensor<2x8x32xf32>, tensor<2x8x1xf32>, tensor<2x8x1xf32>, tensor<16x32xf32>, tensor<16x64xf32>, tensor<16x64xf32>, tensor<2x8x32xf32>, tensor<2x8x32xf32>, tensor<2x8x1xf32>, tensor<2x8x1xf32>, tensor<2x4x8x8xf32>) {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [2] x [1] : (tensor<2x8x32xf32>, tensor<32x32xf32>) -> tensor<2x8x32xf32>
    %1 = stablehlo.broadcast_in_dim %arg2, dims = [2] : (tensor<32xf32>) -> tensor<2x8x32xf32>
    %2 = stablehlo.add %0, %1 : tensor<2x8x32xf32>
    %3 = stablehlo.reshape %2 : (tensor<2x8x32xf32>) -> tensor<2x8x4x8xf32>
    %4 = stablehlo.transpose %3, dims = [0, 2, 1, 3] : (tensor<2x8x4x8xf32>) -> tensor<2x4x8x8xf32>
    %5 = stablehlo.dot_general %arg0, %arg3, contracting_dims = [2] x [1] : (tensor<2x8x32xf32>, tensor<32x32xf32>) -> tensor<2x8x32xf32>
    %6 = stablehlo.broadcast_in_dim %arg4, dims = [2] : (tensor<32xf32>) -> tensor<2x8x32xf32>
    %7 = stablehlo.add %5, %6 : tensor<2x8x32xf32>
    %8 = stablehlo.reshape %7 : (tensor<2x8x32xf32>) -> tensor<2x8x4x8xf32>
    %9 = stablehlo.transpose %8, dims = [0, 2, 1, 3] : (tensor<2x8x4x8xf32>) -> tensor<2x4x8x8xf32>
    %10 = stablehlo.dot_general %arg0, %arg5, contracting_dims = [2] x [1] : (tensor<2x8x32xf32>, tensor<32x32xf32>) -> tensor<2x8x32xf32>
    %11 = stablehlo.broadcast_in_dim %arg6, dims = [2] : (tensor<32xf32>) -> tensor<2x8x32xf32>
    %12 = stablehlo.add %10, %11 : tensor<2x8x32xf32>
    %13 = stablehlo.reshape %12 : (tensor<2x8x32xf32>) -> tensor<2x8x4x8xf32>
    %14 = stablehlo.transpose %13, dims = [0, 2, 1, 3] : (tensor<2x8x4x8xf32>) -> tensor<2x4x8x8xf32>
    %15:2 = stablehlo.composite "neuron_dynamo.attention" %4, %9, %14 {composite_attributes = {has_mask = false, is_causal = false, scale = 0.35355339059327379 : f64}, decomposition = @neuron_dynamo_attention_0, version = 1 : i32} : (tensor<2x4x8x8xf32>, tensor<2x4x8x8xf32>, tensor<2x4x8x8xf32>) -> (tensor<2x4x8x8xf32>, tensor<2x4x8xf32>)
    %16 = stablehlo.transpose %15#0, dims = [0, 2, 1, 3] : (tensor<2x4x8x8xf32>) -> tensor<2x8x4x8xf32>
    %17 = stablehlo.reshape %16 : (tensor<2x8x4x8xf32>) -> tensor<2x8x32xf32>
    %18 = stablehlo.reshape %16 : (tensor<2x8x4x8xf32>) -> tensor<16x32xf32>
    %19 = stablehlo.dot_general %17, %arg7, contracting_dims = [2] x [1] : (tensor<2x8x32xf32>, tensor<32x32xf32>) -> tensor<2x8x32xf32>
    %20 = stablehlo.broadcast_in_dim %arg8, dims = [2] : (tensor<32xf32>) -> tensor<2x8x32xf32>
    %21 = stablehlo.add %19, %20 : tensor<2x8x32xf32>
    %22 = stablehlo.add %21, %arg0 : tensor<2x8x32xf32>
    %23:3 = stablehlo.composite "neuron_dynamo.layer_norm" %22, %arg9, %arg10 {composite_attributes = {eps = 9.9999999999999998E-13 : f64}, decomposition = @neuron_dynamo_layer_norm_0, version = 1 : i32} : (tensor<2x8x32xf32>, tensor<32xf32>, tensor<32xf32>) -> (tensor<2x8x32xf32>, tensor<2x8x1xf32>, tensor<2x8x1xf32>)
    %24 = stablehlo.reshape %23#0 : (tensor<2x8x32xf32>) -> tensor<16x32xf32>
    %25 = stablehlo.dot_general %23#0, %arg11, contracting_dims = [2] x [1] : (tensor<2x8x32xf32>, tensor<64x32xf32>) -> tensor<2x8x64xf32>
    %26 = stablehlo.broadcast_in_dim %arg12, dims = [2] : (tensor<64xf32>) -> tensor<2x8x64xf32>
    %27 = stablehlo.add %25, %26 : tensor<2x8x64xf32>
    %28 = stablehlo.reshape %27 : (tensor<2x8x64xf32>) -> tensor<16x64xf32>
    %29 = stablehlo.composite "neuron_dynamo.gelu" %27 {composite_attributes = {approximate = "none"}, decomposition = @neuron_dynamo_gelu_0, version = 1 : i32} : (tensor<2x8x64xf32>) -> tensor<2x8x64xf32>
    %30 = stablehlo.reshape %29 : (tensor<2x8x64xf32>) -> tensor<16x64xf32>
    %31 = stablehlo.dot_general %29, %arg13, contracting_dims = [2] x [1] : (tensor<2x8x64xf32>, tensor<32x64xf32>) -> tensor<2x8x32xf32>
    %32 = stablehlo.broadcast_in_dim %arg14, dims = [2] : (tensor<32xf32>) -> tensor<2x8x32xf32>
    %33 = stablehlo.add %31, %32 : tensor<2x8x32xf32>
    %34 = stablehlo.add %33, %23#0 : tensor<2x8x32xf32>
    %35:3 = stablehlo.composite "neuron_dynamo.layer_norm" %34, %arg15, %arg16 {composite_attributes = {eps = 9.9999999999999998E-13 : f64}, decomposition = @neuron_dynamo_layer_norm_0, version = 1 : i32} : (tensor<2x8x32xf32>, tensor<32xf32>, tensor<32xf32>) -> (tensor<2x8x32xf32>, tensor<2x8x1xf32>, tensor<2x8x1xf32>)
    return %2, %7, %12, %15#1, %18, %22, %23#1, %23#2, %24, %28, %30, %34, %35#0, %35#1, %35#2, %15#0 : tensor<2x8x32xf32>, tensor<2x8x32xf32>, tensor<2x8x32xf32>, tensor<2x4x8xf32>, tensor<16x32xf32>, tensor<2x8x32xf32>, tensor<2x8x1xf32>, tensor<2x8x1xf32>, tensor<16x32xf32>, tensor<16x64xf32>, tensor<16x64xf32>, tensor<2x8x32xf32>, tensor<2x8x32xf32>, tensor<2x8x1xf32>, tensor<2x8x1xf32>, tensor<2x4x8x8xf32>
  }
  func.func private @neuron_dynamo_attention_0(%arg0: tensor<2x4x8x8xf32>, %arg1: tensor<2x4x8x8xf32>, %arg2: tensor<2x4x8x8xf32>) -> (tensor<2x4x8x8xf32>, tensor<2x4x8xf32>) {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %cst_0 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %cst_1 = stablehlo.constant dense<0.353553385> : tensor<f32>
    %0 = stablehlo.dot_general %arg0, %arg1, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3] : (tensor<2x4x8x8xf32>, tensor<2x4x8x8xf32>) -> tensor<2x4x8x8xf32>
    %1 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<2x4x8x8xf32>
    %2 = stablehlo.multiply %0, %1 : tensor<2x4x8x8xf32>
    %3 = stablehlo.reduce(%2 init: %cst_0) applies stablehlo.maximum across dimensions = [3] : (tensor<2x4x8x8xf32>, tensor<f32>) -> tensor<2x4x8xf32>
    %4 = stablehlo.broadcast_in_dim %3, dims = [0, 1, 2] : (tensor<2x4x8xf32>) -> tensor<2x4x8x8xf32>
    %5 = stablehlo.subtract %2, %4 : tensor<2x4x8x8xf32>
    %6 = stablehlo.exponential %5 : tensor<2x4x8x8xf32>
    %7 = stablehlo.reduce(%6 init: %cst) applies stablehlo.add across dimensions = [3] : (tensor<2x4x8x8xf32>, tensor<f32>) -> tensor<2x4x8xf32>
    %8 = stablehlo.dot_general %6, %arg2, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2] : (tensor<2x4x8x8xf32>, tensor<2x4x8x8xf32>) -> tensor<2x4x8x8xf32>
    %9 = stablehlo.broadcast_in_dim %7, dims = [0, 1, 2] : (tensor<2x4x8xf32>) -> tensor<2x4x8x8xf32>
    %10 = stablehlo.divide %8, %9 : tensor<2x4x8x8xf32>
    %11 = stablehlo.log %7 : tensor<2x4x8xf32>
    %12 = stablehlo.add %3, %11 : tensor<2x4x8xf32>
    return %10, %12 : tensor<2x4x8x8xf32>, tensor<2x4x8xf32>
  }
  func.func private @neuron_dynamo_layer_norm_0(%arg0: tensor<2x8x32xf32>, %arg1: tensor<32xf32>, %arg2: tensor<32xf32>) -> (tensor<2x8x32xf32>, tensor<2x8x1xf32>, tensor<2x8x1xf32>) {
    %cst = stablehlo.constant dense<9.99999996E-13> : tensor<f32>
    %cst_0 = stablehlo.constant dense<3.200000e+01> : tensor<f32>
    %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.reduce(%arg0 init: %cst_1) applies stablehlo.add across dimensions = [2] : (tensor<2x8x32xf32>, tensor<f32>) -> tensor<2x8xf32>
    %1 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<2x8xf32>
    %2 = stablehlo.divide %0, %1 : tensor<2x8xf32>
    %3 = stablehlo.broadcast_in_dim %2, dims = [0, 1] : (tensor<2x8xf32>) -> tensor<2x8x32xf32>
    %4 = stablehlo.subtract %arg0, %3 : tensor<2x8x32xf32>
    %5 = stablehlo.multiply %4, %4 : tensor<2x8x32xf32>
    %6 = stablehlo.reduce(%5 init: %cst_1) applies stablehlo.add across dimensions = [2] : (tensor<2x8x32xf32>, tensor<f32>) -> tensor<2x8xf32>
    %7 = stablehlo.divide %6, %1 : tensor<2x8xf32>
    %8 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2x8xf32>
    %9 = stablehlo.add %7, %8 : tensor<2x8xf32>
    %10 = stablehlo.rsqrt %9 : tensor<2x8xf32>
    %11 = stablehlo.broadcast_in_dim %10, dims = [0, 1] : (tensor<2x8xf32>) -> tensor<2x8x32xf32>
    %12 = stablehlo.multiply %4, %11 : tensor<2x8x32xf32>
    %13 = stablehlo.broadcast_in_dim %arg1, dims = [2] : (tensor<32xf32>) -> tensor<2x8x32xf32>
    %14 = stablehlo.multiply %12, %13 : tensor<2x8x32xf32>
    %15 = stablehlo.broadcast_in_dim %arg2, dims = [2] : (tensor<32xf32>) -> tensor<2x8x32xf32>
    %16 = stablehlo.add %14, %15 : tensor<2x8x32xf32>
    %17 = stablehlo.reshape %2 : (tensor<2x8xf32>) -> tensor<2x8x1xf32>
    %18 = stablehlo.reshape %10 : (tensor<2x8xf32>) -> tensor<2x8x1xf32>
    return %16, %17, %18 : tensor<2x8x32xf32>, tensor<2x8x1xf32>, tensor<2x8x1xf32>
  }
  func.func private @neuron_dynamo_gelu_0(%arg0: tensor<2x8x64xf32>) -> tensor<2x8x64xf32> {
    %cst = stablehlo.constant dense<0.707106769> : tensor<f32>
    %cst_0 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<2x8x64xf32>
    %1 = stablehlo.multiply %arg0, %0 : tensor<2x8x64xf32>
    %2 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2x8x64xf32>
    %3 = stablehlo.multiply %arg0, %2 : tensor<2x8x64xf32>
    %4 = stablehlo.custom_call @mhlo.erf(%3) {mhlo.attributes = {}, mhlo.version = 1 : i64} : (tensor<2x8x64xf32>) -> tensor<2x8x64xf32>
    %5 = stablehlo.multiply %1, %4 : tensor<2x8x64xf32>
    %6 = stablehlo.add %1, %5 : tensor<2x8x64xf32>
    return %6 : tensor<2x8x64xf32>
  }
}
