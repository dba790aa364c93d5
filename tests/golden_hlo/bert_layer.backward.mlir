module {
  func.func @main(%arg0: tensor<32x32xf32>, %arg1: tensor<32xf32>, %arg2: tensor<32xf32>, %arg3: tensor<64x32xf32>, %arg4: tensor<32x64xf32>, %arg5: tensor<32xf32>, %arg6: tensor<32xf32>, %arg7: tensor<16x32xf32>, %arg8: tensor<2x4x8x8xf32>, %arg9: tensor<2x4x8x8xf32>, %arg10: tensor<2x4x8x8xf32>, %arg11: tensor<2x4x8xf32>, %arg12: tensor<16x32xf32>, %arg13: tensor<2x8x32xf32>, %arg14: tensor<2x8x1xf32>, %arg15: tensor<2x8x1xf32>, %arg16: tensor<16x32xf32>, %arg17: tensor<16x64xf32>, %arg18: tensor<16x64xf32>, %arg19: tensor<2x8x32xf32>, %arg20: tensor<2x8x1xf32>, %arg21: tensor<2x8x1xf32>, %arg22: tensor<2x4x8x8xf32>, %arg23: tensor<2x8x32xf32>) -> (tensor<32xf32>, tensor<32xf32>, tensor<32xf32>, tensor<32x64xf32>, tensor<64xf32>, tensor<64x32xf32>, tensor<32xf32>, tensor<32xf32>, tensor<32xf32>, tensor<32x32xf32>, tensor<32xf32>, tensor<32x32xf32>, tensor<32xf32>, tensor<32x32xf32>, tensor<32xf32>, tensor<32x32xf32>) {
    %cst = stablehlo.constant dense<0.353553385> : tensor<f32>
    %cst_0 = stablehlo.constant dense<0.398942292> : tensor<f32>
    %cst_1 = stablehlo.constant dense<-5.000000e-01> : tensor<f32>
    %cst_2 = stablehlo.constant dense<0.707106769> : tensor<f32>
    %cst_3 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %cst_4 = stablehlo.constant dense<3.200000e+01> : tensor<f32>
    %cst_5 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.reshape %arg20 : (tensor<2x8x1xf32>) -> tensor<2x8xf32>
    %1 = stablehlo.reshape %arg21 : (tensor<2x8x1xf32>) -> tensor<2x8xf32>
    %2 = stablehlo.broadcast_in_dim %0, dims = [0, 1] : (tensor<2x8xf32>) -> tensor<2x8x32xf32>
    %3 = stablehlo.subtract %arg19, %2 : tensor<2x8x32xf32>
    %4 = stablehlo.broadcast_in_dim %1, dims = [0, 1] : (tensor<2x8xf32>) -> tensor<2x8x32xf32>
    %5 = stablehlo.multiply %3, %4 : tensor<2x8x32xf32>
    %6 = stablehlo.broadcast_in_dim %arg5, dims = [2] : (tensor<32xf32>) -> tensor<2x8x32xf32>
    %7 = stablehlo.multiply %arg23, %6 : tensor<2x8x32xf32>
    %8 = stablehlo.reduce(%7 init: %cst_5) applies stablehlo.add across dimensions = [2] : (tensor<2x8x32xf32>, tensor<f32>) -> tensor<2x8xf32>
    %9 = stablehlo.multiply %7, %5 : tensor<2x8x32xf32>
    %10 = stablehlo.reduce(%9 init: %cst_5) applies stablehlo.add across dimensions = [2] : (tensor<2x8x32xf32>, tensor<f32>) -> tensor<2x8xf32>
    %11 = stablehlo.broadcast_in_dim %cst_4, dims = [] : (tensor<f32>) -> tensor<2x8xf32>
    %12 = stablehlo.divide %8, %11 : tensor<2x8xf32>
    %13 = stablehlo.broadcast_in_dim %12, dims = [0, 1] : (tensor<2x8xf32>) -> tensor<2x8x32xf32>
    %14 = stablehlo.divide %10, %11 : tensor<2x8xf32>
    %15 = stablehlo.broadcast_in_dim %14, dims = [0, 1] : (tensor<2x8xf32>) -> tensor<2x8x32xf32>
    %16 = stablehlo.subtract %7, %13 : tensor<2x8x32xf32>
    %17 = stablehlo.multiply %5, %15 : tensor<2x8x32xf32>
    %18 = stablehlo.subtract %16, %17 : tensor<2x8x32xf32>
    %19 = stablehlo.multiply %18, %4 : tensor<2x8x32xf32>
    %20 = stablehlo.multiply %arg23, %5 : tensor<2x8x32xf32>
    %21 = stablehlo.reduce(%20 init: %cst_5) applies stablehlo.add across dimensions = [0, 1] : (tensor<2x8x32xf32>, tensor<f32>) -> tensor<32xf32>
    %22 = stablehlo.reduce(%arg23 init: %cst_5) applies stablehlo.add across dimensions = [0, 1] : (tensor<2x8x32xf32>, tensor<f32>) -> tensor<32xf32>
    %23 = stablehlo.reshape %19 : (tensor<2x8x32xf32>) -> tensor<16x32xf32>
    %24 = stablehlo.dot_general %19, %arg4, contracting_dims = [2] x [0] : (tensor<2x8x32xf32>, tensor<32x64xf32>) -> tensor<2x8x64xf32>
    %25 = stablehlo.dot_general %23, %arg18, contracting_dims = [0] x [0] : (tensor<16x32xf32>, tensor<16x64xf32>) -> tensor<32x64xf32>
    %26 = stablehlo.reduce(%23 init: %cst_5) applies stablehlo.add across dimensions = [0] : (tensor<16x32xf32>, tensor<f32>) -> tensor<32xf32>
    %27 = stablehlo.reshape %arg17 : (tensor<16x64xf32>) -> tensor<2x8x64xf32>
    %28 = stablehlo.broadcast_in_dim %cst_3, dims = [] : (tensor<f32>) -> tensor<2x8x64xf32>
    %29 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<2x8x64xf32>
    %30 = stablehlo.multiply %27, %29 : tensor<2x8x64xf32>
    %31 = stablehlo.custom_call @mhlo.erf(%30) {mhlo.attributes = {}, mhlo.version = 1 : i64} : (tensor<2x8x64xf32>) -> tensor<2x8x64xf32>
    %32 = stablehlo.multiply %28, %31 : tensor<2x8x64xf32>
    %33 = stablehlo.add %28, %32 : tensor<2x8x64xf32>
    %34 = stablehlo.multiply %27, %27 : tensor<2x8x64xf32>
    %35 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<2x8x64xf32>
    %36 = stablehlo.multiply %34, %35 : tensor<2x8x64xf32>
    %37 = stablehlo.exponential %36 : tensor<2x8x64xf32>
    %38 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<2x8x64xf32>
    %39 = stablehlo.multiply %37, %38 : tensor<2x8x64xf32>
    %40 = stablehlo.multiply %27, %39 : tensor<2x8x64xf32>
    %41 = stablehlo.add %33, %40 : tensor<2x8x64xf32>
    %42 = stablehlo.multiply %24, %41 : tensor<2x8x64xf32>
    %43 = stablehlo.reshape %42 : (tensor<2x8x64xf32>) -> tensor<16x64xf32>
    %44 = stablehlo.dot_general %42, %arg3, contracting_dims = [2] x [0] : (tensor<2x8x64xf32>, tensor<64x32xf32>) -> tensor<2x8x32xf32>
    %45 = stablehlo.dot_general %43, %arg16, contracting_dims = [0] x [0] : (tensor<16x64xf32>, tensor<16x32xf32>) -> tensor<64x32xf32>
    %46 = stablehlo.reduce(%43 init: %cst_5) applies stablehlo.add across dimensions = [0] : (tensor<16x64xf32>, tensor<f32>) -> tensor<64xf32>
    %47 = stablehlo.add %19, %44 : tensor<2x8x32xf32>
    %48 = stablehlo.reshape %arg14 : (tensor<2x8x1xf32>) -> tensor<2x8xf32>
    %49 = stablehlo.reshape %arg15 : (tensor<2x8x1xf32>) -> tensor<2x8xf32>
    %50 = stablehlo.broadcast_in_dim %48, dims = [0, 1] : (tensor<2x8xf32>) -> tensor<2x8x32xf32>
    %51 = stablehlo.subtract %arg13, %50 : tensor<2x8x32xf32>
    %52 = stablehlo.broadcast_in_dim %49, dims = [0, 1] : (tensor<2x8xf32>) -> tensor<2x8x32xf32>
    %53 = stablehlo.multiply %51, %52 : tensor<2x8x32xf32>
    %54 = stablehlo.broadcast_in_dim %arg1, dims = [2] : (tensor<32xf32>) -> tensor<2x8x32xf32>
    %55 = stablehlo.multiply %47, %54 : tensor<2x8x32xf32>
    %56 = stablehlo.reduce(%55 init: %cst_5) applies stablehlo.add across dimensions = [2] : (tensor<2x8x32xf32>, tensor<f32>) -> tensor<2x8xf32>
    %57 = stablehlo.multiply %55, %53 : tensor<2x8x32xf32>
    %58 = stablehlo.reduce(%57 init: %cst_5) applies stablehlo.add across dimensions = [2] : (tensor<2x8x32xf32>, tensor<f32>) -> tensor<2x8xf32>
    %59 = stablehlo.divide %56, %11 : tensor<2x8xf32>
    %60 = stablehlo.broadcast_in_dim %59, dims = [0, 1] : (tensor<2x8xf32>) -> tensor<2x8x32xf32>
    %61 = stablehlo.divide %58, %11 : tensor<2x8xf32>
    %62 = stablehlo.broadcast_in_dim %61, dims = [0, 1] : (tensor<2x8xf32>) -> tensor<2x8x32xf32>
    %63 = stablehlo.subtract %55, %60 : tensor<2x8x32xf32>
    %64 = stablehlo.multiply %53, %62 : tensor<2x8x32xf32>
    %65 = stablehlo.subtract %63, %64 : tensor<2x8x32xf32>
    %66 = stablehlo.multiply %65, %52 : tensor<2x8x32xf32>
    %67 = stablehlo.multiply %47, %53 : tensor<2x8x32xf32>
    %68 = stablehlo.reduce(%67 init: %cst_5) applies stablehlo.add across dimensions = [0, 1] : (tensor<2x8x32xf32>, tensor<f32>) -> tensor<32xf32>
    %69 = stablehlo.reduce(%47 init: %cst_5) applies stablehlo.add across dimensions = [0, 1] : (tensor<2x8x32xf32>, tensor<f32>) -> tensor<32xf32>
    %70 = stablehlo.reshape %66 : (tensor<2x8x32xf32>) -> tensor<16x32xf32>
    %71 = stablehlo.dot_general %66, %arg0, contracting_dims = [2] x [0] : (tensor<2x8x32xf32>, tensor<32x32xf32>) -> tensor<2x8x32xf32>
    %72 = stablehlo.dot_general %70, %arg12, contracting_dims = [0] x [0] : (tensor<16x32xf32>, tensor<16x32xf32>) -> tensor<32x32xf32>
    %73 = stablehlo.reduce(%70 init: %cst_5) applies stablehlo.add across dimensions = [0] : (tensor<16x32xf32>, tensor<f32>) -> tensor<32xf32>
    %74 = stablehlo.reshape %71 : (tensor<2x8x32xf32>) -> tensor<2x8x4x8xf32>
    %75 = stablehlo.transpose %74, dims = [0, 2, 1, 3] : (tensor<2x8x4x8xf32>) -> tensor<2x4x8x8xf32>
    %76 = stablehlo.dot_general %arg8, %arg9, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3] : (tensor<2x4x8x8xf32>, tensor<2x4x8x8xf32>) -> tensor<2x4x8x8xf32>
    %77 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2x4x8x8xf32>
    %78 = stablehlo.multiply %76, %77 : tensor<2x4x8x8xf32>
    %79 = stablehlo.broadcast_in_dim %arg11, dims = [0, 1, 2] : (tensor<2x4x8xf32>) -> tensor<2x4x8x8xf32>
    %80 = stablehlo.subtract %78, %79 : tensor<2x4x8x8xf32>
    %81 = stablehlo.exponential %80 : tensor<2x4x8x8xf32>
    %82 = stablehlo.multiply %75, %arg22 : tensor<2x4x8x8xf32>
    %83 = stablehlo.reduce(%82 init: %cst_5) applies stablehlo.add across dimensions = [3] : (tensor<2x4x8x8xf32>, tensor<f32>) -> tensor<2x4x8xf32>
    %84 = stablehlo.dot_general %74, %arg10, batching_dims = [0, 2] x [0, 1], contracting_dims = [3] x [3] : (tensor<2x8x4x8xf32>, tensor<2x4x8x8xf32>) -> tensor<2x4x8x8xf32>
    %85 = stablehlo.broadcast_in_dim %83, dims = [0, 1, 2] : (tensor<2x4x8xf32>) -> tensor<2x4x8x8xf32>
    %86 = stablehlo.subtract %84, %85 : tensor<2x4x8x8xf32>
    %87 = stablehlo.multiply %81, %86 : tensor<2x4x8x8xf32>
    %88 = stablehlo.multiply %87, %77 : tensor<2x4x8x8xf32>
    %89 = stablehlo.dot_general %88, %arg9, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2] : (tensor<2x4x8x8xf32>, tensor<2x4x8x8xf32>) -> tensor<2x4x8x8xf32>
    %90 = stablehlo.dot_general %88, %arg8, batching_dims = [0, 1] x [0, 1], contracting_dims = [2] x [2] : (tensor<2x4x8x8xf32>, tensor<2x4x8x8xf32>) -> tensor<2x4x8x8xf32>
    %91 = stablehlo.dot_general %81, %74, batching_dims = [0, 1] x [0, 2], contracting_dims = [2] x [1] : (tensor<2x4x8x8xf32>, tensor<2x8x4x8xf32>) -> tensor<2x4x8x8xf32>
    %92 = stablehlo.transpose %91, dims = [0, 2, 1, 3] : (tensor<2x4x8x8xf32>) -> tensor<2x8x4x8xf32>
    %93 = stablehlo.reshape %92 : (tensor<2x8x4x8xf32>) -> tensor<16x32xf32>
    %94 = stablehlo.dot_general %93, %arg7, contracting_dims = [0] x [0] : (tensor<16x32xf32>, tensor<16x32xf32>) -> tensor<32x32xf32>
    %95 = stablehlo.reduce(%93 init: %cst_5) applies stablehlo.add across dimensions = [0] : (tensor<16x32xf32>, tensor<f32>) -> tensor<32xf32>
    %96 = stablehlo.transpose %90, dims = [0, 2, 1, 3] : (tensor<2x4x8x8xf32>) -> tensor<2x8x4x8xf32>
    %97 = stablehlo.reshape %96 : (tensor<2x8x4x8xf32>) -> tensor<16x32xf32>
    %98 = stablehlo.dot_general %97, %arg7, contracting_dims = [0] x [0] : (tensor<16x32xf32>, tensor<16x32xf32>) -> tensor<32x32xf32>
    %99 = stablehlo.reduce(%97 init: %cst_5) applies stablehlo.add across dimensions = [0] : (tensor<16x32xf32>, tensor<f32>) -> tensor<32xf32>
    %100 = stablehlo.transpose %89, dims = [0, 2, 1, 3] : (tensor<2x4x8x8xf32>) -> tensor<2x8x4x8xf32>
    %101 = stablehlo.reshape %100 : (tensor<2x8x4x8xf32>) -> tensor<16x32xf32>
    %102 = stablehlo.dot_general %101, %arg7, contracting_dims = [0] x [0] : (tensor<16x32xf32>, tensor<16x32xf32>) -> tensor<32x32xf32>
    %103 = stablehlo.reduce(%101 init: %cst_5) applies stablehlo.add across dimensions = [0] : (tensor<16x32xf32>, tensor<f32>) -> tensor<32xf32>
    return %21, %22, %26, %25, %46, %45, %68, %69, %73, %72, %95, %94, %99, %98, %103, %102 : tensor<32xf32>, tensor<32xf32>, tensor<32xf32>, tensor<32x64xf32>, tensor<64xf32>, tensor<64x32xf32>, tensor<32xf32>, tensor<32xf32>, tensor<32xf32>, tensor<32x32xf32>, tensor<32xf32>, tensor<32x32xf32>, tensor<32xf32>, tensor<32x32xf32>, tensor<32xf32>, tensor<32x32xf32>
  }
}
