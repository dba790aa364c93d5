module {
  func.func @main(%arg0: tensor<4x16xf32>, %arg1: tensor<8x32xf32>, %arg2: tensor<4x32xf32>, %arg3: tensor<4x32xf32>, %arg4: tensor<4x8xf32>) -> (tensor<8xf32>, tensor<8x32xf32>, tensor<32xf32>, tensor<32x16xf32>) {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.dot_general %arg4, %arg1, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x32xf32>) -> tensor<4x32xf32>
    %1 = stablehlo.dot_general %arg4, %arg3, contracting_dims = [0] x [0] : (tensor<4x8xf32>, tensor<4x32xf32>) -> tensor<8x32xf32>
    %2 = stablehlo.reduce(%arg4 init: %cst) applies stablehlo.add across dimensions = [0] : (tensor<4x8xf32>, tensor<f32>) -> tensor<8xf32>
    %3 = stablehlo.composite "neuron_dynamo.gelu_backward" %0, %arg2 {composite_attributes = {approximate = "none"}, decomposition = @neuron_dynamo_gelu_backward_0, version = 1 : i32} : (tensor<4x32xf32>, tensor<4x32xf32>) -> tensor<4x32xf32>
    %4 = stablehlo.dot_general %3, %arg0, contracting_dims = [0] x [0] : (tensor<4x32xf32>, tensor<4x16xf32>) -> tensor<32x16xf32>
    %5 = stablehlo.reduce(%3 init: %cst) applies stablehlo.add across dimensions = [0] : (tensor<4x32xf32>, tensor<f32>) -> tensor<32xf32>
    return %2, %1, %5, %4 : tensor<8xf32>, tensor<8x32xf32>, tensor<32xf32>, tensor<32x16xf32>
  }
  func.func private @neuron_dynamo_gelu_backward_0(%arg0: tensor<4x32xf32>, %arg1: tensor<4x32xf32>) -> tensor<4x32xf32> {
    %cst = stablehlo.constant dense<0.398942292> : tensor<f32>
    %cst_0 = stablehlo.constant dense<-5.000000e-01> : tensor<f32>
    %cst_1 = stablehlo.constant dense<0.707106769> : tensor<f32>
    %cst_2 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<4x32xf32>
    %1 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<4x32xf32>
    %2 = stablehlo.multiply %arg1, %1 : tensor<4x32xf32>
    %3 = stablehlo.custom_call @mhlo.erf(%2) {mhlo.attributes = {}, mhlo.version = 1 : i64} : (tensor<4x32xf32>) -> tensor<4x32xf32>
    %4 = stablehlo.multiply %0, %3 : tensor<4x32xf32>
    %5 = stablehlo.add %0, %4 : tensor<4x32xf32>
    %6 = stablehlo.multiply %arg1, %arg1 : tensor<4x32xf32>
    %7 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<4x32xf32>
    %8 = stablehlo.multiply %6, %7 : tensor<4x32xf32>
    %9 = stablehlo.exponential %8 : tensor<4x32xf32>
    %10 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x32xf32>
    %11 = stablehlo.multiply %9, %10 : tensor<4x32xf32>
    %12 = stablehlo.multiply %arg1, %11 : tensor<4x32xf32>
    %13 = stablehlo.add %5, %12 : tensor<4x32xf32>
    %14 = stablehlo.multiply %arg0, %13 : tensor<4x32xf32>
    return %14 : tensor<4x32xf32>
  }
}
