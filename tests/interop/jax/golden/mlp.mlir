module @jit_function attributes {jax.uses_shape_polymorphism = false, mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["dp"=2, "tp"=2]> {stablehlo.mesh = {axes = [{name = "dp", size = 2 : i64}, {name = "tp", size = 2 : i64}]}}
  func.func public @main(%arg0: tensor<12x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"tp"}, {}]>} loc("params['down']"), %arg1: tensor<8x12xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"tp"}]>} loc("params['up']"), %arg2: tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {}]>} loc("x")) -> (tensor<4x8xf32> {jax.result_info = "result"}) {
    %cst = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %cst_0 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %cst_1 = stablehlo.constant dense<0.797884583> : tensor<f32>
    %cst_2 = stablehlo.constant dense<4.471500e-02> : tensor<f32>
    %0 = stablehlo.dot_general %arg2, %arg1, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x12xf32>) -> tensor<4x12xf32>
    %1 = stablehlo.multiply %0, %0 : tensor<4x12xf32>
    %2 = stablehlo.multiply %1, %0 : tensor<4x12xf32>
    %3 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<4x12xf32>
    %4 = stablehlo.multiply %3, %2 : tensor<4x12xf32>
    %5 = stablehlo.add %0, %4 : tensor<4x12xf32>
    %6 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<4x12xf32>
    %7 = stablehlo.multiply %6, %5 : tensor<4x12xf32>
    %8 = stablehlo.tanh %7 : tensor<4x12xf32>
    %9 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<4x12xf32>
    %10 = stablehlo.add %9, %8 : tensor<4x12xf32>
    %11 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x12xf32>
    %12 = stablehlo.multiply %11, %10 : tensor<4x12xf32>
    %13 = stablehlo.multiply %0, %12 : tensor<4x12xf32>
    %14 = sdy.sharding_constraint %13 <@mesh, [{"dp"}, {"tp"}]> : tensor<4x12xf32>
    %15 = stablehlo.dot_general %14, %arg0, contracting_dims = [1] x [0] : (tensor<4x12xf32>, tensor<12x8xf32>) -> tensor<4x8xf32>
    %16 = stablehlo.add %arg2, %15 : tensor<4x8xf32>
    return %16 : tensor<4x8xf32>
  }
}
