import distir_ext as dx
from tests.models.test_communication import *
def test_v(exported):
    model = exported("vision")
    cluster = dx.Cluster.uniform(device=DEVICES["llvm"])
    for k,partition in model.partitions.items():
        mod = dx.annotate(model.module, partition.mesh(4), partition.patterns)
        (program,) = dx.analysis.estimate(mod, cluster).programs
        s=sum(each.cost.flops * each.count for each in program.operators)
        print(k, s, program.cost)
        if s!=program.cost.flops:
            for e in program.operators: print(e)
