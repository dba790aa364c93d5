module {
  func.func @main(%arg0: tensor<4x4x3x3xf32>, %arg1: tensor<2x4x6x6xf32>, %arg2: tensor<i64>, %arg3: tensor<4xf32>, %arg4: tensor<4xf32>, %arg5: tensor<4xf32>, %arg6: tensor<4xf32>) -> (tensor<2x4x6x6xf32>, tensor<i64>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<2x4xf32>, tensor<2x4x6x6xi1>) {
    %cst = stablehlo.constant dense<3.600000e+01> : tensor<f32>
    %cst_0 = stablehlo.constant dense<0.101408452> : tensor<f32>
    %cst_1 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %cst_2 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %cst_3 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
    %cst_4 = stablehlo.constant dense<7.200000e+01> : tensor<f32>
    %cst_5 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %c = stablehlo.constant dense<1> : tensor<i64>
    %0 = stablehlo.convolution(%arg1, %arg0) dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1], window = {pad = [[1, 1], [1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<2x4x6x6xf32>, tensor<4x4x3x3xf32>) -> tensor<2x4x6x6xf32>
    %1 = stablehlo.add %arg2, %c : tensor<i64>
    %2 = stablehlo.reduce(%0 init: %cst_5) applies stablehlo.add across dimensions = [0, 2, 3] : (tensor<2x4x6x6xf32>, tensor<f32>) -> tensor<4xf32>
    %3 = stablehlo.broadcast_in_dim %cst_4, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %4 = stablehlo.divide %2, %3 : tensor<4xf32>
    %5 = stablehlo.broadcast_in_dim %4, dims = [1] : (tensor<4xf32>) -> tensor<2x4x6x6xf32>
    %6 = stablehlo.subtract %0, %5 : tensor<2x4x6x6xf32>
    %7 = stablehlo.multiply %6, %6 : tensor<2x4x6x6xf32>
    %8 = stablehlo.reduce(%7 init: %cst_5) applies stablehlo.add across dimensions = [0, 2, 3] : (tensor<2x4x6x6xf32>, tensor<f32>) -> tensor<4xf32>
    %9 = stablehlo.divide %8, %3 : tensor<4xf32>
    %10 = stablehlo.broadcast_in_dim %cst_3, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %11 = stablehlo.add %9, %10 : tensor<4xf32>
    %12 = stablehlo.rsqrt %11 : tensor<4xf32>
    %13 = stablehlo.multiply %12, %arg5 : tensor<4xf32>
    %14 = stablehlo.broadcast_in_dim %13, dims = [1] : (tensor<4xf32>) -> tensor<2x4x6x6xf32>
    %15 = stablehlo.multiply %6, %14 : tensor<2x4x6x6xf32>
    %16 = stablehlo.broadcast_in_dim %arg6, dims = [1] : (tensor<4xf32>) -> tensor<2x4x6x6xf32>
    %17 = stablehlo.add %15, %16 : tensor<2x4x6x6xf32>
    %18 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %19 = stablehlo.multiply %4, %18 : tensor<4xf32>
    %20 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %21 = stablehlo.multiply %arg3, %20 : tensor<4xf32>
    %22 = stablehlo.add %19, %21 : tensor<4xf32>
    %23 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %24 = stablehlo.multiply %9, %23 : tensor<4xf32>
    %25 = stablehlo.multiply %arg4, %20 : tensor<4xf32>
    %26 = stablehlo.add %24, %25 : tensor<4xf32>
    %27 = stablehlo.add %17, %arg1 : tensor<2x4x6x6xf32>
    %28 = stablehlo.broadcast_in_dim %cst_5, dims = [] : (tensor<f32>) -> tensor<2x4x6x6xf32>
    %29 = stablehlo.maximum %27, %28 : tensor<2x4x6x6xf32>
    %30 = stablehlo.reduce(%29 init: %cst_5) applies stablehlo.add across dimensions = [2, 3] : (tensor<2x4x6x6xf32>, tensor<f32>) -> tensor<2x4xf32>
    %31 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
    %32 = stablehlo.divide %30, %31 : tensor<2x4xf32>
    %33 = stablehlo.compare LE, %29, %28, FLOAT : (tensor<2x4x6x6xf32>, tensor<2x4x6x6xf32>) -> tensor<2x4x6x6xi1>
    return %0, %1, %4, %12, %22, %26, %32, %33 : tensor<2x4x6x6xf32>, tensor<i64>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<2x4xf32>, tensor<2x4x6x6xi1>
  }
}
