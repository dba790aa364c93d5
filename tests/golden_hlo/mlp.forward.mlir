module {
  func.func @main(%arg0: tensor<32x16xf32>, %arg1: tensor<32xf32>, %arg2: tensor<4x16xf32>, %arg3: tensor<8x32xf32>, %arg4: tensor<8xf32>) -> (tensor<4x32xf32>, tensor<4x32xf32>, tensor<4x8xf32>) {
    %cst = stablehlo.constant dense<0.707106769> : tensor<f32>
    %cst_0 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %0 = stablehlo.dot_general %arg2, %arg0, contracting_dims = [1] x [1] : (tensor<4x16xf32>, tensor<32x16xf32>) -> tensor<4x32xf32>
    %1 = stablehlo.broadcast_in_dim %arg1, dims = [1] : (tensor<32xf32>) -> tensor<4x32xf32>
    %2 = stablehlo.add %0, %1 : tensor<4x32xf32>
    %3 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<4x32xf32>
    %4 = stablehlo.multiply %2, %3 : tensor<4x32xf32>
    %5 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x32xf32>
    %6 = stablehlo.multiply %2, %5 : tensor<4x32xf32>
    %7 = stablehlo.custom_call @mhlo.erf(%6) {mhlo.attributes = {}, mhlo.version = 1 : i64} : (tensor<4x32xf32>) -> tensor<4x32xf32>
    %8 = stablehlo.multiply %4, %7 : tensor<4x32xf32>
    %9 = stablehlo.add %4, %8 : tensor<4x32xf32>
    %10 = stablehlo.dot_general %9, %arg3, contracting_dims = [1] x [1] : (tensor<4x32xf32>, tensor<8x32xf32>) -> tensor<4x8xf32>
    %11 = stablehlo.broadcast_in_dim %arg4, dims = [1] : (tensor<8xf32>) -> tensor<4x8xf32>
    %12 = stablehlo.add %10, %11 : tensor<4x8xf32>
    return %2, %9, %12 : tensor<4x32xf32>, tensor<4x32xf32>, tensor<4x8xf32>
  }
}
