module {
  func.func @main(%arg0: tensor<2x8x32xf32>, %arg1: tensor<32x32xf32>, %arg2: tensor<32xf32>, %arg3: tensor<32x32xf32>, %arg4: tensor<32xf32>, %arg5: tensor<32x32xf32>, %arg6: tensor<32xf32>, %arg7: tensor<32x32xf32>, %arg8: tensor<32xf32>, %arg9: tensor<32xf32>, %arg10: tensor<32xf32>, %arg11: tensor<64x32xf32>, %arg12: tensor<64xf32>, %arg13: tensor<32x64xf32>, %arg14: tensor<32xf32>, %arg15: tensor<32xf32>, %arg16: tensor<32xf32>) -> (tensor<2x8x32xf32>, tensor<2x8x32xf32>, tensor<2x8x32xf32>, tensor<2x4x8xf32>, tensor<16x32xf32>, tensor<2x8x32xf32>, tensor<2x8x1xf32>, tensor<2x8x1xf32>, tensor<16x32xf32>, tensor<16x64xf32>, tensor<16x64xf32>, tensor<2x8x32xf32>, tensor<2x8x32xf32>, tensor<2x8x1xf32>, tensor<2x8x1xf32>, tensor<2x4x8x8xf32>) {
    %cst = stablehlo.constant dense<0.707106769> : tensor<f32>
    %cst_0 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %cst_1 = stablehlo.constant dense<9.99999996E-13> : tensor<f32>
    %cst_2 = stablehlo.constant dense<3.200000e+01> : tensor<f32>
    %cst_3 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %cst_4 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %cst_5 = stablehlo.constant dense<0.353553385> : tensor<f32>
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [2] x [1] : (tensor<2x8x32xf32>, tensor<32x32xf32>) -> tensor<2x8x32xf32>
    %1 = stablehlo.broadcast_in_dim %arg2, dims = [2] : (tensor<32xf32>) -> tensor<2x8x32xf32>
    %2 = stablehlo.add %0, %1 : tensor<2x8x32xf32>
    %3 = stablehlo.reshape %2 : (tensor<2x8x32xf32>) -> tensor<2x8x4x8xf32>
    %4 = stablehlo.dot_general %arg0, %arg3, contracting_dims = [2] x [1] : (tensor<2x8x32xf32>, tensor<32x32xf32>) -> tensor<2x8x32xf32>
    %5 = stablehlo.broadcast_in_dim %arg4, dims = [2] : (tensor<32xf32>) -> tensor<2x8x32xf32>
    %6 = stablehlo.add %4, %5 : tensor<2x8x32xf32>
    %7 = stablehlo.reshape %6 : (tensor<2x8x32xf32>) -> tensor<2x8x4x8xf32>
    %8 = stablehlo.dot_general %arg0, %arg5, contracting_dims = [2] x [1] : (tensor<2x8x32xf32>, tensor<32x32xf32>) -> tensor<2x8x32xf32>
    %9 = stablehlo.broadcast_in_dim %arg6, dims = [2] : (tensor<32xf32>) -> tensor<2x8x32xf32>
    %10 = stablehlo.add %8, %9 : tensor<2x8x32xf32>
    %11 = stablehlo.reshape %10 : (tensor<2x8x32xf32>) -> tensor<2x8x4x8xf32>
    %12 = stablehlo.dot_general %3, %7, batching_dims = [0, 2] x [0, 2], contracting_dims = [3] x [3] : (tensor<2x8x4x8xf32>, tensor<2x8x4x8xf32>) -> tensor<2x4x8x8xf32>
    %13 = stablehlo.broadcast_in_dim %cst_5, dims = [] : (tensor<f32>) -> tensor<2x4x8x8xf32>
    %14 = stablehlo.multiply %12, %13 : tensor<2x4x8x8xf32>
    %15 = stablehlo.reduce(%14 init: %cst_4) applies stablehlo.maximum across dimensions = [3] : (tensor<2x4x8x8xf32>, tensor<f32>) -> tensor<2x4x8xf32>
    %16 = stablehlo.broadcast_in_dim %15, dims = [0, 1, 2] : (tensor<2x4x8xf32>) -> tensor<2x4x8x8xf32>
    %17 = stablehlo.subtract %14, %16 : tensor<2x4x8x8xf32>
    %18 = stablehlo.exponential %17 : tensor<2x4x8x8xf32>
    %19 = stablehlo.reduce(%18 init: %cst_3) applies stablehlo.add across dimensions = [3] : (tensor<2x4x8x8xf32>, tensor<f32>) -> tensor<2x4x8xf32>
    %20 = stablehlo.dot_general %18, %11, batching_dims = [0, 1] x [0, 2], contracting_dims = [3] x [1] : (tensor<2x4x8x8xf32>, tensor<2x8x4x8xf32>) -> tensor<2x4x8x8xf32>
    %21 = stablehlo.broadcast_in_dim %19, dims = [0, 1, 2] : (tensor<2x4x8xf32>) -> tensor<2x4x8x8xf32>
    %22 = stablehlo.divide %20, %21 : tensor<2x4x8x8xf32>
    %23 = stablehlo.log %19 : tensor<2x4x8xf32>
    %24 = stablehlo.add %15, %23 : tensor<2x4x8xf32>
    %25 = stablehlo.transpose %22, dims = [0, 2, 1, 3] : (tensor<2x4x8x8xf32>) -> tensor<2x8x4x8xf32>
    %26 = stablehlo.reshape %25 : (tensor<2x8x4x8xf32>) -> tensor<2x8x32xf32>
    %27 = stablehlo.reshape %25 : (tensor<2x8x4x8xf32>) -> tensor<16x32xf32>
    %28 = stablehlo.dot_general %26, %arg7, contracting_dims = [2] x [1] : (tensor<2x8x32xf32>, tensor<32x32xf32>) -> tensor<2x8x32xf32>
    %29 = stablehlo.broadcast_in_dim %arg8, dims = [2] : (tensor<32xf32>) -> tensor<2x8x32xf32>
    %30 = stablehlo.add %28, %29 : tensor<2x8x32xf32>
    %31 = stablehlo.add %30, %arg0 : tensor<2x8x32xf32>
    %32 = stablehlo.reduce(%31 init: %cst_3) applies stablehlo.add across dimensions = [2] : (tensor<2x8x32xf32>, tensor<f32>) -> tensor<2x8xf32>
    %33 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<2x8xf32>
    %34 = stablehlo.divide %32, %33 : tensor<2x8xf32>
    %35 = stablehlo.broadcast_in_dim %34, dims = [0, 1] : (tensor<2x8xf32>) -> tensor<2x8x32xf32>
    %36 = stablehlo.subtract %31, %35 : tensor<2x8x32xf32>
    %37 = stablehlo.multiply %36, %36 : tensor<2x8x32xf32>
    %38 = stablehlo.reduce(%37 init: %cst_3) applies stablehlo.add across dimensions = [2] : (tensor<2x8x32xf32>, tensor<f32>) -> tensor<2x8xf32>
    %39 = stablehlo.divide %38, %33 : tensor<2x8xf32>
    %40 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<2x8xf32>
    %41 = stablehlo.add %39, %40 : tensor<2x8xf32>
    %42 = stablehlo.rsqrt %41 : tensor<2x8xf32>
    %43 = stablehlo.broadcast_in_dim %42, dims = [0, 1] : (tensor<2x8xf32>) -> tensor<2x8x32xf32>
    %44 = stablehlo.multiply %36, %43 : tensor<2x8x32xf32>
    %45 = stablehlo.broadcast_in_dim %arg9, dims = [2] : (tensor<32xf32>) -> tensor<2x8x32xf32>
    %46 = stablehlo.multiply %44, %45 : tensor<2x8x32xf32>
    %47 = stablehlo.broadcast_in_dim %arg10, dims = [2] : (tensor<32xf32>) -> tensor<2x8x32xf32>
    %48 = stablehlo.add %46, %47 : tensor<2x8x32xf32>
    %49 = stablehlo.reshape %34 : (tensor<2x8xf32>) -> tensor<2x8x1xf32>
    %50 = stablehlo.reshape %42 : (tensor<2x8xf32>) -> tensor<2x8x1xf32>
    %51 = stablehlo.reshape %48 : (tensor<2x8x32xf32>) -> tensor<16x32xf32>
    %52 = stablehlo.dot_general %48, %arg11, contracting_dims = [2] x [1] : (tensor<2x8x32xf32>, tensor<64x32xf32>) -> tensor<2x8x64xf32>
    %53 = stablehlo.broadcast_in_dim %arg12, dims = [2] : (tensor<64xf32>) -> tensor<2x8x64xf32>
    %54 = stablehlo.add %52, %53 : tensor<2x8x64xf32>
    %55 = stablehlo.reshape %54 : (tensor<2x8x64xf32>) -> tensor<16x64xf32>
    %56 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<2x8x64xf32>
    %57 = stablehlo.multiply %54, %56 : tensor<2x8x64xf32>
    %58 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2x8x64xf32>
    %59 = stablehlo.multiply %54, %58 : tensor<2x8x64xf32>
    %60 = stablehlo.custom_call @mhlo.erf(%59) {mhlo.attributes = {}, mhlo.version = 1 : i64} : (tensor<2x8x64xf32>) -> tensor<2x8x64xf32>
    %61 = stablehlo.multiply %57, %60 : tensor<2x8x64xf32>
    %62 = stablehlo.add %57, %61 : tensor<2x8x64xf32>
    %63 = stablehlo.reshape %62 : (tensor<2x8x64xf32>) -> tensor<16x64xf32>
    %64 = stablehlo.dot_general %62, %arg13, contracting_dims = [2] x [1] : (tensor<2x8x64xf32>, tensor<32x64xf32>) -> tensor<2x8x32xf32>
    %65 = stablehlo.broadcast_in_dim %arg14, dims = [2] : (tensor<32xf32>) -> tensor<2x8x32xf32>
    %66 = stablehlo.add %64, %65 : tensor<2x8x32xf32>
    %67 = stablehlo.add %66, %48 : tensor<2x8x32xf32>
    %68 = stablehlo.reduce(%67 init: %cst_3) applies stablehlo.add across dimensions = [2] : (tensor<2x8x32xf32>, tensor<f32>) -> tensor<2x8xf32>
    %69 = stablehlo.divide %68, %33 : tensor<2x8xf32>
    %70 = stablehlo.broadcast_in_dim %69, dims = [0, 1] : (tensor<2x8xf32>) -> tensor<2x8x32xf32>
    %71 = stablehlo.subtract %67, %70 : tensor<2x8x32xf32>
    %72 = stablehlo.multiply %71, %71 : tensor<2x8x32xf32>
    %73 = stablehlo.reduce(%72 init: %cst_3) applies stablehlo.add across dimensions = [2] : (tensor<2x8x32xf32>, tensor<f32>) -> tensor<2x8xf32>
    %74 = stablehlo.divide %73, %33 : tensor<2x8xf32>
    %75 = stablehlo.add %74, %40 : tensor<2x8xf32>
    %76 = stablehlo.rsqrt %75 : tensor<2x8xf32>
    %77 = stablehlo.broadcast_in_dim %76, dims = [0, 1] : (tensor<2x8xf32>) -> tensor<2x8x32xf32>
    %78 = stablehlo.multiply %71, %77 : tensor<2x8x32xf32>
    %79 = stablehlo.broadcast_in_dim %arg15, dims = [2] : (tensor<32xf32>) -> tensor<2x8x32xf32>
    %80 = stablehlo.multiply %78, %79 : tensor<2x8x32xf32>
    %81 = stablehlo.broadcast_in_dim %arg16, dims = [2] : (tensor<32xf32>) -> tensor<2x8x32xf32>
    %82 = stablehlo.add %80, %81 : tensor<2x8x32xf32>
    %83 = stablehlo.reshape %69 : (tensor<2x8xf32>) -> tensor<2x8x1xf32>
    %84 = stablehlo.reshape %76 : (tensor<2x8xf32>) -> tensor<2x8x1xf32>
    return %2, %6, %10, %24, %27, %31, %49, %50, %51, %55, %63, %67, %82, %83, %84, %22 : tensor<2x8x32xf32>, tensor<2x8x32xf32>, tensor<2x8x32xf32>, tensor<2x4x8xf32>, tensor<16x32xf32>, tensor<2x8x32xf32>, tensor<2x8x1xf32>, tensor<2x8x1xf32>, tensor<16x32xf32>, tensor<16x64xf32>, tensor<16x64xf32>, tensor<2x8x32xf32>, tensor<2x8x32xf32>, tensor<2x8x1xf32>, tensor<2x8x1xf32>, tensor<2x4x8x8xf32>
  }
}
