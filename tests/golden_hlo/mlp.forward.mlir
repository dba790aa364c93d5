module {
  func.func @main(%arg0: tensor<32x16xf32>, %arg1: tensor<32xf32>, %arg2: tensor<4x16xf32>, %arg3: tensor<8x32xf32>, %arg4: tensor<8xf32>) -> (tensor<4x32xf32>, tensor<4x32xf32>, tensor<4x8xf32>) {
    %0 = stablehlo.dot_general %arg2, %arg0, contracting_dims = [1] x [1] : (tensor<4x16xf32>, tensor<32x16xf32>) -> tensor<4x32xf32>
    %1 = stablehlo.broadcast_in_dim %arg1, dims = [1] : (tensor<32xf32>) -> tensor<4x32xf32>
    %2 = stablehlo.add %0, %1 : tensor<4x32xf32>
    %3 = stablehlo.composite "neuron_dynamo.gelu" %2 {composite_attributes = {approximate = "none"}, decomposition = @neuron_dynamo_gelu_0, version = 1 : i32} : (tensor<4x32xf32>) -> tensor<4x32xf32>
    %4 = stablehlo.dot_general %3, %arg3, contracting_dims = [1] x [1] : (tensor<4x32xf32>, tensor<8x32xf32>) -> tensor<4x8xf32>
    %5 = stablehlo.broadcast_in_dim %arg4, dims = [1] : (tensor<8xf32>) -> tensor<4x8xf32>
    %6 = stablehlo.add %4, %5 : tensor<4x8xf32>
    return %2, %3, %6 : tensor<4x32xf32>, tensor<4x32xf32>, tensor<4x8xf32>
  }
  func.func private @neuron_dynamo_gelu_0(%arg0: tensor<4x32xf32>) -> tensor<4x32xf32> {
    %cst = stablehlo.constant dense<0.707106769> : tensor<f32>
    %cst_0 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<4x32xf32>
    %1 = stablehlo.multiply %arg0, %0 : tensor<4x32xf32>
    %2 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x32xf32>
    %3 = stablehlo.multiply %arg0, %2 : tensor<4x32xf32>
    %4 = stablehlo.custom_call @mhlo.erf(%3) {mhlo.attributes = {}, mhlo.version = 1 : i64} : (tensor<4x32xf32>) -> tensor<4x32xf32>
    %5 = stablehlo.multiply %1, %4 : tensor<4x32xf32>
    %6 = stablehlo.add %1, %5 : tensor<4x32xf32>
    return %6 : tensor<4x32xf32>
  }
}
