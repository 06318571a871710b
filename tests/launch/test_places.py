"""Places of copies, from environments as launchers write them and as users meet them."""

from __future__ import annotations

import socket

import pytest

from distir_ext import launch

TORCHRUN = {
    **{"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"},
    **{"MASTER_ADDR": "node7", "MASTER_PORT": "29400", "TORCHELASTIC_RUN_ID": "none"},
}
OPEN_MPI = {
    **{"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"},
    **{"OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
    **{"PMIX_RANK": "2", "PMIX_NAMESPACE": "prterun-node1-77@1", "PRTE_LAUNCHED": "1"},
}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}
CRAY = {"PMI_RANK": "3", "PMI_SIZE": "4", "PMI_LOCAL_RANK": "1", "PMI_LOCAL_SIZE": "2"}
ALLOCATION = {"SLURM_JOB_ID": "77", "SLURM_NTASKS": "8", "SLURM_JOB_NODELIST": "node[001-002]"}
STEP = {
    **ALLOCATION,
    **{"SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NODEID": "1"},
    **{"SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NODELIST": "node[001-002]"},
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
}
BATCH_SCRIPT = {**ALLOCATION, "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
INTERACTIVE_STEP = {**STEP, "SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1"}
LEADER_WORKER_SET = {
    **{"LWS_LEADER_ADDRESS": "llama-0.llama.default", "LWS_GROUP_SIZE": "2"},
    **{"LWS_WORKER_INDEX": "1", "HOSTNAME": "llama-0-1", "KUBERNETES_SERVICE_HOST": "10.96.0.1"},
}
INDEXED_JOB = {
    **{"JOB_COMPLETION_INDEX": "2", "HOSTNAME": "train-2", "DISTIR_EXT_WORLD_SIZE": "4"},
    "KUBERNETES_SERVICE_HOST": "10.96.0.1",
}
JOB_OF_A_SET = {
    **{"JOB_COMPLETION_INDEX": "1", "HOSTNAME": "train-workers-0-1"},
    **{"DISTIR_EXT_WORLD_SIZE": "2", "KUBERNETES_SERVICE_HOST": "10.96.0.1"},
}
STATED = {"DISTIR_EXT_RANK": "1", "DISTIR_EXT_WORLD_SIZE": "2", "DISTIR_EXT_LEADER": "10.0.0.2"}


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        (STATED, ("DISTIR_EXT_RANK", 1, 2, None, None, "10.0.0.2")),
        (TORCHRUN, ("torchrun", 5, 8, 1, 4, "node7")),
        (OPEN_MPI, ("Open MPI", 2, 4, 0, 2, None)),
        (MPICH, ("MPICH", 1, 4, 1, 4, "127.0.0.1")),
        (CRAY, ("MPICH", 3, 4, 1, 2, None)),
        (STEP, ("Slurm", 3, 4, 1, 2, "node001")),
        (LEADER_WORKER_SET, ("LeaderWorkerSet", 1, 2, 0, 1, "llama-0.llama.default")),
        (INDEXED_JOB, ("an indexed Job of Kubernetes", 2, 4, 0, 1, "train-0")),
        (JOB_OF_A_SET, ("an indexed Job of Kubernetes", 1, 2, 0, 1, "train-workers-0-0")),
        # Launchers within each other: the innermost counts.
        (STEP | TORCHRUN, ("torchrun", 5, 8, 1, 4, "node7")),
        (STEP | MPICH, ("MPICH", 1, 4, 1, 4, "127.0.0.1")),
        (BATCH_SCRIPT | OPEN_MPI, ("Open MPI", 2, 4, 0, 2, None)),
        (LEADER_WORKER_SET | TORCHRUN, ("torchrun", 5, 8, 1, 4, "node7")),
        (TORCHRUN | STATED, ("DISTIR_EXT_RANK", 1, 2, None, None, "10.0.0.2")),
        # Launchers of one level that agree.
        (MPICH | {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}, ("Open MPI", 1, 4)),
    ],
)
def test_a_launcher_is_found(environment, place):
    found = launch.find_place(environment)
    assert found is not None
    fields = (found.launcher, found.rank, found.size)
    fields += (found.local_rank, found.local_size, found.leader)
    assert fields[: len(place)] == place
    assert found.variables
    assert found.variables.items() <= environment.items()


def test_what_is_around_a_launcher_is_listed():
    findings = launch.look_around(LEADER_WORKER_SET | STEP | TORCHRUN)
    assert [place.launcher for place in findings.outer] == ["Slurm", "LeaderWorkerSet"]


@pytest.mark.parametrize(
    ("environment", "note"),
    [
        ({}, None),
        ({"KUBERNETES_SERVICE_HOST": "10.96.0.1", "HOSTNAME": "web-0"}, None),
        (ALLOCATION, "SLURM_JOB_ID=77, without SLURM_STEP_ID, SLURM_PROCID"),
        (BATCH_SCRIPT, "without SLURM_STEP_ID"),
        (INTERACTIVE_STEP, "a shell or a batch script"),
        ({"SLURM_JOB_ID": "77"}, "not Slurm"),
        ({"JOB_COMPLETION_INDEX": "2"}, "without DISTIR_EXT_WORLD_SIZE"),
        ({"PMIX_RANK": "2"}, "not Open MPI"),
        ({"RANK": "2"}, "without WORLD_SIZE, MASTER_ADDR: not torchrun"),
        ({"PMI_RANK": "", "PMI_SIZE": " "}, None),
    ],
)
def test_what_only_looks_like_a_launcher_is_a_note(environment, note):
    findings = launch.look_around(environment)
    assert findings.place is None
    assert len(findings.notes) == (note is not None)
    assert note is None or note in findings.notes[0]


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        (TORCHRUN | {"RANK": "8"}, ["rank 8 is not one of 8 copies", "RANK=8", "MASTER_ADDR"]),
        (TORCHRUN | {"LOCAL_RANK": "4"}, ["local rank 4 is not one of 4", "LOCAL_RANK=4"]),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "9"}, ["9 copies on this host, of 8"]),
        (TORCHRUN | {"WORLD_SIZE": "0"}, ["there are 0 copies"]),
        (TORCHRUN | {"WORLD_SIZE": "eight"}, ["WORLD_SIZE='eight' is not a whole number"]),
        (TORCHRUN | {"RANK": "-1"}, ["RANK='-1' is not a whole number"]),
        (OPEN_MPI | MPICH, ["Open MPI: rank 2 of 4", "MPICH: rank 1 of 4", "PMI_RANK=1"]),
        (STEP | {"SLURM_PROCID": "4"}, ["Slurm: rank 4 is not one of 4 copies"]),
        # It is looked at what is around too.
        (STEP | TORCHRUN | {"SLURM_PROCID": "4"}, ["Slurm: rank 4 is not one of 4 copies"]),
        (
            LEADER_WORKER_SET | {"LWS_WORKER_INDEX": "0"},
            ["LWS_WORKER_INDEX=0 in the pod llama-0-1", "two pods have this index"],
        ),
        ({"DISTIR_EXT_RANK": "1"}, ["DISTIR_EXT_RANK=1 is set, DISTIR_EXT_WORLD_SIZE is not"]),
    ],
)
def test_a_contradiction_is_one_error_with_what_was_found(environment, words):
    with pytest.raises(launch.LauncherError) as failure:
        launch.find_place(environment)
    for word in words:
        assert word in str(failure.value)


def test_pods_of_a_job_are_in_one_domain(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "train-2")
    monkeypatch.setattr(socket, "getfqdn", lambda pod: f"{pod}.train.default.svc.cluster.local")
    found = launch.find_place(INDEXED_JOB)
    assert found is not None
    assert found.leader == "train-0.train.default.svc.cluster.local"
    stated = launch.find_place({**INDEXED_JOB, "DISTIR_EXT_LEADER": "10.0.0.2"})
    assert stated is not None
    assert stated.leader == "10.0.0.2"


def test_a_leader_has_index_0():
    leader = LEADER_WORKER_SET | {"LWS_WORKER_INDEX": "0", "HOSTNAME": "llama-0"}
    found = launch.find_place(leader)
    assert found is not None
    assert found.rank == 0


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node1", "node1"),
        ("node1,node2", "node1"),
        ("node[001-003,7],other", "node001"),
        ("node[7,001]", "node7"),
        ("login,node[1-2]", "login"),
        ("rack[1-2]node[03-04]-ib,x", "rack1node03-ib"),
    ],
)
def test_the_first_node_of_a_step(nodes, first):
    found = launch.find_place(STEP | {"SLURM_STEP_NODELIST": nodes})
    assert found is not None
    assert found.leader == first


@pytest.mark.parametrize(
    ("counts", "node", "tasks"),
    [("4", 0, 4), ("2(x3),1", 2, 2), ("2(x3),1", 3, 1), ("2(x3),1", 4, None), ("2(y3)", 0, None)],
)
def test_the_tasks_of_a_node_of_a_step(counts, node, tasks):
    step = {"SLURM_STEP_TASKS_PER_NODE": counts, "SLURM_NODEID": str(node), "SLURM_LOCALID": "0"}
    found = launch.find_place(STEP | step)
    assert found is not None
    assert found.local_size == tasks
