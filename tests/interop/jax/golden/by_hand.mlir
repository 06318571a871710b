module @jit_function attributes {jax.uses_shape_polymorphism = false, mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["dp"=2, "tp"=2]> {stablehlo.mesh = {axes = [{name = "dp", size = 2 : i64}, {name = "tp", size = 2 : i64}]}}
  func.func public @main(%arg0: tensor<4x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"tp"}]>} loc("up"), %arg1: tensor<6x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"tp"}, {}]>} loc("down"), %arg2: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"dp"}, {}]>} loc("x")) -> (tensor<8x4xf32> {jax.result_info = "result[0]"}, tensor<4x6xf32> {jax.result_info = "result[1]"}) {
    %0:2 = sdy.manual_computation(%arg0, %arg1, %arg2) in_shardings=[<@mesh, [{?}, {"tp", ?}]>, <@mesh, [{"tp", ?}, {?}]>, <@mesh, [{?}, {?}]>] out_shardings=[<@mesh, [{?}, {?}]>, <@mesh, [{?}, {"tp", ?}]>] manual_axes={"tp"} (%arg3: tensor<4x3xf32>, %arg4: tensor<3x4xf32>, %arg5: tensor<8x4xf32>) {
      %c = stablehlo.constant dense<1> : tensor<i32>
      %1 = sdy.manual_computation() in_shardings=[] out_shardings=[<@mesh, []>] manual_axes={"dp"} () {
        %c_0 = stablehlo.constant dense<1> : tensor<ui32>
        %c_1 = stablehlo.constant dense<2> : tensor<ui32>
        %17 = stablehlo.partition_id : tensor<ui32>
        %18 = stablehlo.divide %17, %c_0 : tensor<ui32>
        %19 = stablehlo.remainder %18, %c_1 : tensor<ui32>
        %20 = stablehlo.convert %19 : (tensor<ui32>) -> tensor<i32>
        sdy.return %20 : tensor<i32>
      } : () -> tensor<i32>
      %2 = stablehlo.dot_general %arg5, %arg3, contracting_dims = [1] x [0] : (tensor<8x4xf32>, tensor<4x3xf32>) -> tensor<8x3xf32>
      %3 = sdy.sharding_constraint %2 <@mesh, [{?}, {?}]> : tensor<8x3xf32>
      %4 = func.call @relu(%3) : (tensor<8x3xf32>) -> tensor<8x3xf32>
      %5 = stablehlo.dot_general %4, %arg4, contracting_dims = [1] x [0] : (tensor<8x3xf32>, tensor<3x4xf32>) -> tensor<8x4xf32>
      %6 = sdy.sharding_constraint %5 <@mesh, [{?}, {?}]> : tensor<8x4xf32>
      %7 = "stablehlo.all_reduce"(%6) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 0>, replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>, use_global_device_ids}> ({
      ^bb0(%arg6: tensor<f32>, %arg7: tensor<f32>):
        %17 = stablehlo.add %arg6, %arg7 : tensor<f32>
        %18 = sdy.sharding_constraint %17 <@mesh, []> : tensor<f32>
        stablehlo.return %18 : tensor<f32>
      }) : (tensor<8x4xf32>) -> tensor<8x4xf32>
      %8 = stablehlo.add %1, %c : tensor<i32>
      %9 = sdy.sharding_constraint %8 <@mesh, []> : tensor<i32>
      %10 = stablehlo.convert %9 : (tensor<i32>) -> tensor<f32>
      %11 = sdy.sharding_constraint %10 <@mesh, []> : tensor<f32>
      %12 = stablehlo.broadcast_in_dim %11, dims = [] : (tensor<f32>) -> tensor<4x3xf32>
      %13 = sdy.sharding_constraint %12 <@mesh, [{?}, {?}]> : tensor<4x3xf32>
      %14 = stablehlo.multiply %arg3, %13 : tensor<4x3xf32>
      %15 = sdy.sharding_constraint %14 <@mesh, [{?}, {?}]> : tensor<4x3xf32>
      %16 = "stablehlo.collective_permute"(%15) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 0>, source_target_pairs = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>}> : (tensor<4x3xf32>) -> tensor<4x3xf32>
      sdy.return %7, %16 : tensor<8x4xf32>, tensor<4x3xf32>
    } : (tensor<4x6xf32>, tensor<6x4xf32>, tensor<8x4xf32>) -> (tensor<8x4xf32>, tensor<4x6xf32>)
    return %0#0, %0#1 : tensor<8x4xf32>, tensor<4x6xf32>
  }
  func.func private @relu(%arg0: tensor<8x3xf32>) -> tensor<8x3xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<8x3xf32>
    %1 = sdy.sharding_constraint %0 <@mesh, [{?}, {?}]> : tensor<8x3xf32>
    %2 = stablehlo.maximum %arg0, %1 : tensor<8x3xf32>
    %3 = sdy.sharding_constraint %2 <@mesh, [{?}, {?}]> : tensor<8x3xf32>
    return %3 : tensor<8x3xf32>
  }
}
