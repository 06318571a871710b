"""Programs whose layers are outlined are partitioned, cut into stages and run like others."""

import numpy as np
import pytest

import distir_ext as dx
from distir_ext.demo.llama import PLAN, llama_case


@pytest.fixture(scope="module")
def case():
    return llama_case()


def results(case, mod, mesh):
    with dx.Session(mesh) as session:
        model = session.load(dx.build(mod), params=case.weights)
        return model[case.function](**case.inputs).numpy()


@pytest.fixture(scope="module")
def expected(case):
    with dx.Session(1) as session:
        mod = dx.annotate(case.module, dx.Mesh(one=1), {"ids": None}, func=case.function)
        model = session.load(dx.build(mod), params=case.weights)
        return model[case.function](**case.inputs).numpy()


@pytest.mark.large
@pytest.mark.parametrize(("dp", "tp"), [(2, 2), (1, 3)])
def test_a_sharded_decoder(case, expected, dp, tp):
    mesh = dx.Mesh(dp=dp, tp=tp)
    outlined = dx.transform.OutlineRepeats()(case.module)
    mod = dx.annotate(outlined, mesh, PLAN, func=case.function)
    np.testing.assert_allclose(results(case, mod, mesh), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.large
def test_a_decoder_in_stages(case, expected):
    mesh = dx.Mesh(pp=2, dp=1, tp=2)
    outlined = dx.transform.OutlineRepeats()(case.module)
    mod = dx.annotate(outlined, mesh, PLAN, func=case.function)
    mod = dx.transform.AssignStages(mesh, "pp", func=case.function)(mod)
    np.testing.assert_allclose(results(case, mod, mesh), expected, rtol=1e-4, atol=1e-5)


def test_an_estimate_counts_what_it_counts_without(case):
    mesh, cluster = dx.Mesh(dp=2, tp=2), dx.Cluster.preset("H100")
    plain, outlined = (
        dx.analysis.estimate(dx.annotate(mod, mesh, PLAN, func=case.function), cluster)
        for mod in (case.module, dx.transform.OutlineRepeats()(case.module))
    )
    assert outlined.flops == plain.flops
    assert outlined.bytes_sent == plain.bytes_sent
    weights = [each.programs[0].memory.weights for each in (plain, outlined)]
    assert weights[0] == weights[1] > 0
