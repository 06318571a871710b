module @jit_function attributes {jax.uses_shape_polymorphism = false, mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["dp"=2, "tp"=2]> {stablehlo.mesh = {axes = [{name = "dp", size = 2 : i64}, {name = "tp", size = 2 : i64}]}}
  func.func public @main(%arg0: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"tp"}]>} loc("w"), %arg1: tensor<2x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {}]>} loc("x")) -> (tensor<2x4xf32> {jax.result_info = "result[0]"}, tensor<2x2xf32> {jax.result_info = "result[1]"}, tensor<i32> {jax.result_info = "result[2]"}) {
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %c = stablehlo.constant dense<4> : tensor<i32>
    %cst_0 = stablehlo.constant dense<1.250000e+00> : tensor<f32>
    %c_1 = stablehlo.constant dense<false> : tensor<i1>
    %cst_2 = stablehlo.constant dense<5.000000e+00> : tensor<f32>
    %cst_3 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %c_4 = stablehlo.constant dense<40> : tensor<i32>
    %c_5 = stablehlo.constant dense<1> : tensor<i32>
    %c_6 = stablehlo.constant dense<2> : tensor<i32>
    %c_7 = stablehlo.constant dense<0> : tensor<i32>
    %cst_8 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %cst_9 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst_9, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
    %1 = stablehlo.broadcast_in_dim %cst_8, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
    %2 = stablehlo.multiply %1, %arg1 : tensor<2x4xf32>
    %3 = stablehlo.broadcast_in_dim %arg1, dims = [1, 2] : (tensor<2x4xf32>) -> tensor<1x2x4xf32>
    %4 = stablehlo.broadcast_in_dim %2, dims = [1, 2] : (tensor<2x4xf32>) -> tensor<1x2x4xf32>
    %5 = stablehlo.concatenate %3, %4, dim = 0 : (tensor<1x2x4xf32>, tensor<1x2x4xf32>) -> tensor<2x2x4xf32>
    %6 = stablehlo.broadcast_in_dim %cst_9, dims = [] : (tensor<f32>) -> tensor<2x2xf32>
    %7:5 = stablehlo.while(%iterArg = %5, %iterArg_10 = %arg0, %iterArg_11 = %c_7, %iterArg_12 = %0, %iterArg_13 = %6) : tensor<2x2x4xf32>, tensor<4x4xf32>, tensor<i32>, tensor<2x4xf32>, tensor<2x2xf32>
    cond {
      %12 = stablehlo.compare LT, %iterArg_11, %c_6, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %12 : tensor<i1>
    } do {
      %12 = func.call @dynamic_index_in_dim(%iterArg, %iterArg_11) : (tensor<2x2x4xf32>, tensor<i32>) -> tensor<2x4xf32>
      %13:2 = func.call @closed_call(%iterArg_10, %iterArg_12, %12) : (tensor<4x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2xf32>)
      %14 = func.call @dynamic_update_index_in_dim(%iterArg_13, %13#1, %iterArg_11) : (tensor<2x2xf32>, tensor<2xf32>, tensor<i32>) -> tensor<2x2xf32>
      %15 = stablehlo.add %iterArg_11, %c_5 : tensor<i32>
      stablehlo.return %iterArg, %iterArg_10, %15, %13#0, %14 : tensor<2x2x4xf32>, tensor<4x4xf32>, tensor<i32>, tensor<2x4xf32>, tensor<2x2xf32>
    }
    %8:2 = stablehlo.while(%iterArg = %c_7, %iterArg_10 = %7#3) : tensor<i32>, tensor<2x4xf32>
    cond {
      %12 = stablehlo.compare LT, %iterArg, %c_4, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      %13 = stablehlo.reduce(%iterArg_10 init: %cst_3) applies stablehlo.maximum across dimensions = [0, 1] : (tensor<2x4xf32>, tensor<f32>) -> tensor<f32>
      %14 = stablehlo.compare LT, %13, %cst_2, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %15 = stablehlo.broadcast_in_dim %c_1, dims = [] : (tensor<i1>) -> tensor<i1>
      %16 = stablehlo.compare NE, %12, %15, UNSIGNED : (tensor<i1>, tensor<i1>) -> tensor<i1>
      %17 = stablehlo.convert %16 : tensor<i1>
      %18 = stablehlo.and %17, %14 : tensor<i1>
      stablehlo.return %18 : tensor<i1>
    } do {
      %12 = stablehlo.add %iterArg, %c_5 : tensor<i32>
      %13 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
      %14 = stablehlo.multiply %iterArg_10, %13 : tensor<2x4xf32>
      stablehlo.return %12, %14 : tensor<i32>, tensor<2x4xf32>
    }
    %9 = stablehlo.compare GT, %8#0, %c, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %10 = stablehlo.convert %9 : (tensor<i1>) -> tensor<i32>
    %11 = "stablehlo.case"(%10) ({
      %12 = stablehlo.negate %8#1 : tensor<2x4xf32>
      stablehlo.return %12 : tensor<2x4xf32>
    }, {
      %12 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
      %13 = stablehlo.add %8#1, %12 : tensor<2x4xf32>
      stablehlo.return %13 : tensor<2x4xf32>
    }) : (tensor<i32>) -> tensor<2x4xf32>
    return %11, %7#4, %8#0 : tensor<2x4xf32>, tensor<2x2xf32>, tensor<i32>
  }
  func.func private @dynamic_index_in_dim(%arg0: tensor<2x2x4xf32>, %arg1: tensor<i32>) -> tensor<2x4xf32> {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.dynamic_slice %arg0, %arg1, %c, %c, sizes = [1, 2, 4] : (tensor<2x2x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x4xf32>
    %1 = stablehlo.reshape %0 : (tensor<1x2x4xf32>) -> tensor<2x4xf32>
    return %1 : tensor<2x4xf32>
  }
  func.func private @closed_call(%arg0: tensor<4x4xf32>, %arg1: tensor<2x4xf32>, %arg2: tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2xf32>) {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.dot_general %arg1, %arg0, contracting_dims = [1] x [0] : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
    %1 = stablehlo.add %0, %arg2 : tensor<2x4xf32>
    %2 = stablehlo.tanh %1 : tensor<2x4xf32>
    %3 = stablehlo.reduce(%2 init: %cst) applies stablehlo.add across dimensions = [1] : (tensor<2x4xf32>, tensor<f32>) -> tensor<2xf32>
    return %2, %3 : tensor<2x4xf32>, tensor<2xf32>
  }
  func.func private @dynamic_update_index_in_dim(%arg0: tensor<2x2xf32>, %arg1: tensor<2xf32>, %arg2: tensor<i32>) -> tensor<2x2xf32> {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.broadcast_in_dim %arg1, dims = [1] : (tensor<2xf32>) -> tensor<1x2xf32>
    %1 = stablehlo.dynamic_update_slice %arg0, %0, %arg2, %c : (tensor<2x2xf32>, tensor<1x2xf32>, tensor<i32>, tensor<i32>) -> tensor<2x2xf32>
    return %1 : tensor<2x2xf32>
  }
}
