module {
  func.func @main(%arg0: tensor<4x4x3x3xf32>, %arg1: tensor<2x4x6x6xf32>, %arg2: tensor<4xf32>, %arg3: tensor<2x4x6x6xf32>, %arg4: tensor<4xf32>, %arg5: tensor<4xf32>, %arg6: tensor<4xf32>, %arg7: tensor<4xf32>, %arg8: tensor<2x4x6x6xi1>, %arg9: tensor<2x4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4x4x3x3xf32>) {
    %cst = stablehlo.constant dense<7.200000e+01> : tensor<f32>
    %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %cst_1 = stablehlo.constant dense<3.600000e+01> : tensor<f32>
    %0 = stablehlo.reshape %arg9 : (tensor<2x4xf32>) -> tensor<2x4x1x1xf32>
    %1 = stablehlo.broadcast_in_dim %0, dims = [0, 1, 2, 3] : (tensor<2x4x1x1xf32>) -> tensor<2x4x6x6xf32>
    %2 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<2x4x6x6xf32>
    %3 = stablehlo.divide %1, %2 : tensor<2x4x6x6xf32>
    %4 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<2x4x6x6xf32>
    %5 = stablehlo.select %arg8, %4, %3 : tensor<2x4x6x6xi1>, tensor<2x4x6x6xf32>
    %6 = stablehlo.broadcast_in_dim %arg4, dims = [1] : (tensor<4xf32>) -> tensor<2x4x6x6xf32>
    %7 = stablehlo.subtract %arg3, %6 : tensor<2x4x6x6xf32>
    %8 = stablehlo.broadcast_in_dim %arg5, dims = [1] : (tensor<4xf32>) -> tensor<2x4x6x6xf32>
    %9 = stablehlo.multiply %7, %8 : tensor<2x4x6x6xf32>
    %10 = stablehlo.reduce(%5 init: %cst_0) applies stablehlo.add across dimensions = [0, 2, 3] : (tensor<2x4x6x6xf32>, tensor<f32>) -> tensor<4xf32>
    %11 = stablehlo.multiply %5, %9 : tensor<2x4x6x6xf32>
    %12 = stablehlo.reduce(%11 init: %cst_0) applies stablehlo.add across dimensions = [0, 2, 3] : (tensor<2x4x6x6xf32>, tensor<f32>) -> tensor<4xf32>
    %13 = stablehlo.multiply %arg5, %arg2 : tensor<4xf32>
    %14 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %15 = stablehlo.divide %10, %14 : tensor<4xf32>
    %16 = stablehlo.broadcast_in_dim %15, dims = [1] : (tensor<4xf32>) -> tensor<2x4x6x6xf32>
    %17 = stablehlo.divide %12, %14 : tensor<4xf32>
    %18 = stablehlo.broadcast_in_dim %17, dims = [1] : (tensor<4xf32>) -> tensor<2x4x6x6xf32>
    %19 = stablehlo.subtract %5, %16 : tensor<2x4x6x6xf32>
    %20 = stablehlo.multiply %9, %18 : tensor<2x4x6x6xf32>
    %21 = stablehlo.subtract %19, %20 : tensor<2x4x6x6xf32>
    %22 = stablehlo.broadcast_in_dim %13, dims = [1] : (tensor<4xf32>) -> tensor<2x4x6x6xf32>
    %23 = stablehlo.multiply %21, %22 : tensor<2x4x6x6xf32>
    %24 = stablehlo.pad %arg1, %cst_0, low = [0, 0, 1, 1], high = [0, 0, 1, 1], interior = [0, 0, 0, 0] : (tensor<2x4x6x6xf32>, tensor<f32>) -> tensor<2x4x8x8xf32>
    %25 = stablehlo.slice %24 [0:2, 0:4, 0:6, 0:6] : (tensor<2x4x8x8xf32>) -> tensor<2x4x6x6xf32>
    %26 = stablehlo.reshape %25 : (tensor<2x4x6x6xf32>) -> tensor<2x4x1x36xf32>
    %27 = stablehlo.slice %24 [0:2, 0:4, 0:6, 1:7] : (tensor<2x4x8x8xf32>) -> tensor<2x4x6x6xf32>
    %28 = stablehlo.reshape %27 : (tensor<2x4x6x6xf32>) -> tensor<2x4x1x36xf32>
    %29 = stablehlo.slice %24 [0:2, 0:4, 0:6, 2:8] : (tensor<2x4x8x8xf32>) -> tensor<2x4x6x6xf32>
    %30 = stablehlo.reshape %29 : (tensor<2x4x6x6xf32>) -> tensor<2x4x1x36xf32>
    %31 = stablehlo.slice %24 [0:2, 0:4, 1:7, 0:6] : (tensor<2x4x8x8xf32>) -> tensor<2x4x6x6xf32>
    %32 = stablehlo.reshape %31 : (tensor<2x4x6x6xf32>) -> tensor<2x4x1x36xf32>
    %33 = stablehlo.slice %24 [0:2, 0:4, 1:7, 1:7] : (tensor<2x4x8x8xf32>) -> tensor<2x4x6x6xf32>
    %34 = stablehlo.reshape %33 : (tensor<2x4x6x6xf32>) -> tensor<2x4x1x36xf32>
    %35 = stablehlo.slice %24 [0:2, 0:4, 1:7, 2:8] : (tensor<2x4x8x8xf32>) -> tensor<2x4x6x6xf32>
    %36 = stablehlo.reshape %35 : (tensor<2x4x6x6xf32>) -> tensor<2x4x1x36xf32>
    %37 = stablehlo.slice %24 [0:2, 0:4, 2:8, 0:6] : (tensor<2x4x8x8xf32>) -> tensor<2x4x6x6xf32>
    %38 = stablehlo.reshape %37 : (tensor<2x4x6x6xf32>) -> tensor<2x4x1x36xf32>
    %39 = stablehlo.slice %24 [0:2, 0:4, 2:8, 1:7] : (tensor<2x4x8x8xf32>) -> tensor<2x4x6x6xf32>
    %40 = stablehlo.reshape %39 : (tensor<2x4x6x6xf32>) -> tensor<2x4x1x36xf32>
    %41 = stablehlo.slice %24 [0:2, 0:4, 2:8, 2:8] : (tensor<2x4x8x8xf32>) -> tensor<2x4x6x6xf32>
    %42 = stablehlo.reshape %41 : (tensor<2x4x6x6xf32>) -> tensor<2x4x1x36xf32>
    %43 = stablehlo.concatenate %26, %28, %30, %32, %34, %36, %38, %40, %42, dim = 2 : (tensor<2x4x1x36xf32>, tensor<2x4x1x36xf32>, tensor<2x4x1x36xf32>, tensor<2x4x1x36xf32>, tensor<2x4x1x36xf32>, tensor<2x4x1x36xf32>, tensor<2x4x1x36xf32>, tensor<2x4x1x36xf32>, tensor<2x4x1x36xf32>) -> tensor<2x4x9x36xf32>
    %44 = stablehlo.reshape %43 : (tensor<2x4x9x36xf32>) -> tensor<2x36x36xf32>
    %45 = stablehlo.reshape %23 : (tensor<2x4x6x6xf32>) -> tensor<2x4x36xf32>
    %46 = stablehlo.dot_general %45, %44, batching_dims = [0] x [0], contracting_dims = [2] x [2] : (tensor<2x4x36xf32>, tensor<2x36x36xf32>) -> tensor<2x4x36xf32>
    %47 = stablehlo.reduce(%46 init: %cst_0) applies stablehlo.add across dimensions = [0] : (tensor<2x4x36xf32>, tensor<f32>) -> tensor<4x36xf32>
    %48 = stablehlo.reshape %47 : (tensor<4x36xf32>) -> tensor<4x4x3x3xf32>
    return %12, %10, %48 : tensor<4xf32>, tensor<4xf32>, tensor<4x4x3x3xf32>
  }
}
