"""Collectives of a step are the textbook's, per plan: their kinds, and the bytes that are sent."""

import pytest
from tvm import relax
from tvm.relax import op

import distir_ext as dx

LAYERS, WIDTH, BATCH = 3, 16, 24
WEIGHTS = r"state\.params\.(up|down)\d"
DATA = {"x": ("dp", None), "target": ("dp", None)}
TENSOR = {r"state\.params\.up\d": (None, "tp"), r"state\.params\.down\d": ("tp", None)}
MATRIX = 4 * 4 * WIDTH * WIDTH  # bytes


def step():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((BATCH, WIDTH), "float32"))
    weights = [
        relax.Var(f"{name}{at}", relax.TensorType(shape, "float32"))
        for at in range(LAYERS)
        for name, shape in (("up", (WIDTH, 4 * WIDTH)), ("down", (4 * WIDTH, WIDTH)))
    ]
    with builder.function("main", [x, *weights], attrs={"num_input": 1}):
        with builder.dataflow():
            h = x
            for up, down in zip(weights[::2], weights[1::2], strict=True):
                wide = builder.emit(op.nn.gelu(op.matmul(h, up)))
                h = builder.emit(op.add(h, op.matmul(wide, down)))
            result = builder.emit_output(h)
        builder.emit_func_output(result)
    return dx.train_step(builder.get(), "mse", "adamw")


def sent(mesh, plan):
    """Bytes that a device sends, by collective; without scalars: the loss, the norm."""
    lowered = dx.lower(dx.annotate(step(), dx.Mesh(**mesh), plan))
    found = {}
    for each in dx.analysis.collectives(lowered):
        size = each.count * each.bytes_per_device
        if size > 64:
            key = each.kind, "".join(each.axes)
            found[key] = found.get(key, 0) + size
    return found


@pytest.mark.parametrize("devices", [4, 3])
def test_bytes_are_those_of_the_textbook(devices):
    matrices = 2 * LAYERS
    part = (devices - 1) / devices
    assert sent({"dp": devices}, DATA) == {("all_reduce", "dp"): 2 * part * matrices * MATRIX}
    if devices == 3:  # which do not divide the weights
        return
    scattered = ("reduce_scatter", "dp"), part * matrices * MATRIX
    # ZeRO-1: gradients are reduce-scattered, new weights gathered once.
    optimizer = {**DATA, r"state\.(mean|square)\..*": ("dp", None)}
    gathered = ("all_gather", "dp"), part * matrices * MATRIX
    assert sent({"dp": devices}, optimizer) == dict([scattered, gathered])
    # FSDP: each weight once forward and once backward, but the first, whose input has no gradient.
    gathered = ("all_gather", "dp"), part * (2 * matrices - 1) * MATRIX
    assert sent({"dp": devices}, {**DATA, WEIGHTS: ("dp", None)}) == dict([scattered, gathered])
    # Megatron: an all-reduce per layer forward and backward, but the first one backward.
    rows = 4 * BATCH * WIDTH
    reduced = 2 * part * (2 * LAYERS - 1) * rows
    assert sent({"tp": devices}, TENSOR) == {("all_reduce", "tp"): reduced}
    assert sent({"dp": 2, "tp": 2}, {**DATA, **TENSOR}) == {
        ("all_reduce", "tp"): (2 * LAYERS - 1) * rows / 2,
        ("all_reduce", "dp"): matrices * MATRIX / 2,
    }


def test_fully_sharded_weights_save_memory_where_gathers_are_not_combined():
    one_by_one = {"passes": {"OptimizeCollectives": {"combine_bytes": 1, "prefetch_bytes": 0}}}
    cluster = dx.Cluster.preset("H100")
    peaks = [
        dx.analysis.estimate(
            dx.lower(
                dx.annotate(step(), dx.Mesh(dp=4), plan), pipeline=dx.pipelines.load(one_by_one)
            ),
            cluster,
        ).peak_memory
        for plan in ({**DATA, WEIGHTS: ("dp", None)}, DATA)
    ]
    assert peaks[0] < peaks[1] / 2


def fsdp2_sends(devices):
    """Collectives of a step of torch's FSDP2 by kind, and what a device sends by ring factors."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    import torch.distributed as distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from torch.utils._python_dispatch import TorchDispatchMode

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up = torch.nn.Linear(WIDTH, 4 * WIDTH, bias=False)
            self.down = torch.nn.Linear(4 * WIDTH, WIDTH, bias=False)

        def forward(self, h):
            return h + self.down(torch.nn.functional.gelu(self.up(h)))

    found = {}

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            for kind in ("allgather_base", "reduce_scatter_base"):
                if func.name() == f"c10d::_{kind}_":
                    whole = max(args[0].nbytes, args[1].nbytes)
                    count, sent = found.get(kind, (0, 0))
                    found[kind] = count + 1, sent + whole * (devices - 1) // devices
            return func(*args, **(kwargs or {}))

    distributed.init_process_group("fake", rank=0, world_size=devices, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (devices,))
        model = torch.nn.Sequential(*(Layer() for _ in range(LAYERS)))
        for each in (*model, model):
            fully_shard(each, mesh=mesh)
        x, target = torch.ones(2, BATCH // devices, WIDTH)
        with Counting():
            torch.nn.functional.mse_loss(model(x), target).backward()
    finally:
        distributed.destroy_process_group()
    return found


@pytest.mark.large
@pytest.mark.filterwarnings("ignore")  # of hooks of inputs that need no gradient
def test_fully_sharded_steps_send_no_more_than_torch_does():
    """A layer's weights are gathered forward and backward, and its gradients scattered once."""
    theirs = fsdp2_sends(4)
    assert theirs == {
        "allgather_base": (2 * LAYERS, 2 * LAYERS * 2 * MATRIX * 3 // 4),
        "reduce_scatter_base": (LAYERS, LAYERS * 2 * MATRIX * 3 // 4),
    }
    plan = {**DATA, WEIGHTS: ("dp", None)}
    lowered = dx.lower(dx.annotate(step(), dx.Mesh(dp=4), plan))
    for kind, name in (("all_gather", "allgather_base"), ("reduce_scatter", "reduce_scatter_base")):
        ours = [each for each in dx.analysis.collectives(lowered) if each.kind == kind]
        count, sent = theirs[name]
        assert 0 < sum(each.count for each in ours) <= count
        assert 0 < sum(each.count * each.bytes_per_device for each in ours) <= sent
