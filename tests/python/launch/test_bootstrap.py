"""A process finds its rank and its group in every launcher's environment."""

from __future__ import annotations

import pytest

from skyphos.errors import BadInput
from skyphos.launch.bootstrap import Bootstrap, discover, split_address
from skyphos.launch.hostlist import expand_hostlist, first_host, tasks_on_node

TORCH = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
OURS = {
    "SKYPHOS_RANK": "0",
    "SKYPHOS_WORLD_SIZE": "2",
    "SKYPHOS_RENDEZVOUS": "127.0.0.1:7000",
    "SKYPHOS_TOKEN": "secret",
    "SKYPHOS_LOCAL_RANK": "0",
    "SKYPHOS_LOCAL_WORLD_SIZE": "2",
    "SKYPHOS_LISTEN_FD": "5",
}
SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "6",
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "node[03-04],gpu1",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3)",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
}
MPI = {"PMI_RANK": "2", "PMI_SIZE": "3", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"}
OMPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3"}


def test_alone() -> None:
    assert discover(environ={}) == Bootstrap(rank=0, world_size=1)


def test_explicit_arguments_go_first() -> None:
    found = discover(2, 5, "h:1", "t", environ=OURS | TORCH)
    assert found == Bootstrap(2, 5, "h:1", "t", 0, 1, "explicit", None)


def test_explicit_group_of_one_needs_no_rendezvous() -> None:
    assert discover(0, 1, environ={}).rendezvous is None


def test_skyphos_run() -> None:
    assert discover(environ=OURS | TORCH) == Bootstrap(0, 2, "127.0.0.1:7000", "secret", 0, 2, "skyphos", 5)


def test_token_is_not_shown() -> None:
    assert "secret" not in repr(discover(environ=OURS))


def test_plain_torch_variables() -> None:
    found = discover(environ=TORCH)
    assert (found.rank, found.world_size, found.rendezvous) == (1, 4, "10.0.0.1:29500")
    assert (found.launcher, found.local_rank, found.local_size) == ("environment", 0, 1)


def test_torchrun_store_holds_the_port() -> None:
    local = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    found = discover(environ=TORCH | local | {"TORCHELASTIC_USE_AGENT_STORE": "True"})
    assert (found.rendezvous, found.launcher) == ("10.0.0.1:29501", "torchrun")
    assert (found.local_rank, found.local_size) == (1, 2)
    assert discover(environ=TORCH | {"TORCHELASTIC_USE_AGENT_STORE": "False"}).rendezvous == "10.0.0.1:29500"


def test_loopback_means_one_host() -> None:
    found = discover(environ=TORCH | {"MASTER_ADDR": "localhost"})
    assert (found.local_rank, found.local_size) == (1, 4)


def test_ipv6_master() -> None:
    assert discover(environ=TORCH | {"MASTER_ADDR": "fe80::1"}).rendezvous == "[fe80::1]:29500"


def test_slurm() -> None:
    found = discover(environ=SLURM)
    assert (found.rank, found.world_size, found.launcher) == (3, 6, "slurm")
    assert (found.local_rank, found.local_size) == (1, 2)
    host, port = split_address(found.rendezvous or "")
    assert host == "node03"
    assert 10_000 <= port < 30_000


def test_slurm_ranks_agree_on_the_port_and_steps_do_not_share_it() -> None:
    ports = [discover(environ=SLURM | {"SLURM_PROCID": str(rank)}).rendezvous for rank in range(6)]
    assert len(set(ports)) == 1
    assert discover(environ=SLURM | {"SLURM_STEP_ID": "1"}).rendezvous not in ports


def test_slurm_falls_back_on_the_jobs_nodes() -> None:
    environ = {k: v for k, v in SLURM.items() if not k.startswith("SLURM_STEP")}
    found = discover(environ=environ | {"SLURM_JOB_NODELIST": "a[1-2]", "SLURM_STEPID": "4"})
    assert found.rendezvous is not None
    assert found.rendezvous.startswith("a1:")


def test_batch_script_without_srun_is_alone() -> None:
    environ = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_NODELIST": "a", "ENVIRONMENT": "BATCH"}
    assert discover(environ=environ).world_size == 1


def test_mpiexec_takes_precedence_over_the_slurm_job_around_it() -> None:
    found = discover(environ=SLURM | MPI | {"SKYPHOS_RENDEZVOUS": "h:9"})
    assert (found.launcher, found.rank, found.world_size) == ("mpi", 2, 3)


@pytest.mark.parametrize("variables", [MPI, OMPI])
def test_mpi(variables: dict[str, str]) -> None:
    found = discover(environ=variables | {"MASTER_ADDR": "h", "MASTER_PORT": "9"})
    assert (found.rank, found.world_size, found.rendezvous, found.launcher) == (2, 3, "h:9", "mpi")
    assert discover(environ=variables | {"SKYPHOS_RENDEZVOUS": "k:8"}).rendezvous == "k:8"


def test_empty_settings_are_ignored() -> None:
    assert discover(environ={"RANK": "", "WORLD_SIZE": " "}).world_size == 1


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"RANK": "0"}, "WORLD_SIZE"),
        ({"WORLD_SIZE": "2"}, "RANK"),
        ({"SKYPHOS_RANK": "0"}, "SKYPHOS_WORLD_SIZE"),
        ({"SLURM_PROCID": "0"}, "SLURM_NTASKS"),
        ({"PMI_RANK": "0"}, "PMI_SIZE"),
        (TORCH | {"RANK": "4"}, "RANK is 4"),
        (TORCH | {"RANK": "-1"}, "RANK is -1"),
        (TORCH | {"WORLD_SIZE": "0"}, "WORLD_SIZE is 0"),
        (TORCH | {"RANK": "one"}, "RANK must be a whole number"),
        (TORCH | {"MASTER_PORT": "0"}, "MASTER_PORT"),
        (TORCH | {"MASTER_PORT": "65536"}, "MASTER_PORT"),
        (TORCH | {"MASTER_PORT": "x"}, "MASTER_PORT"),
        (TORCH | {"MASTER_PORT": "65535", "TORCHELASTIC_USE_AGENT_STORE": "True"}, "MASTER_PORT"),
        ({k: v for k, v in TORCH.items() if k != "MASTER_PORT"}, "MASTER_PORT"),
        ({k: v for k, v in TORCH.items() if not k.startswith("MASTER")}, "MASTER_ADDR"),
        (TORCH | {"LOCAL_WORLD_SIZE": "2"}, "LOCAL_RANK"),
        (TORCH | {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "5"}, "5 ranks on this host"),
        (MPI | {"MASTER_ADDR": "a"}, "MASTER_PORT"),
        (SLURM | {"SLURM_STEP_NODELIST": ""}, "SLURM_JOB_NODELIST"),
        (SLURM | {"SLURM_STEP_NODELIST": "a[1-"}, "a[1-"),
        ({"SKYPHOS_RENDEZVOUS": "h:1"}, "SKYPHOS_RENDEZVOUS"),
        (OURS | {"SKYPHOS_RENDEZVOUS": "h"}, "SKYPHOS_RENDEZVOUS"),
        (OURS | {"SKYPHOS_RENDEZVOUS": "::1:80"}, "SKYPHOS_RENDEZVOUS"),
        (OURS | {"SKYPHOS_RANK": "1"}, "SKYPHOS_LISTEN_FD"),
        (SLURM | {"SKYPHOS_RENDEZVOUS": "h:70000"}, "SKYPHOS_RENDEZVOUS"),
    ],
)
def test_bad_settings_name_the_variable(environ: dict[str, str], named: str) -> None:
    with pytest.raises(BadInput) as caught:
        discover(environ=environ)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "arguments",
    [(0, None), (None, 2), (2, 2), (-1, 2), (0, 0), (True, 2), (0.5, 2), (0, 2), (0, 2, "nonsense")],
)
def test_bad_arguments(arguments: tuple[object, ...]) -> None:
    with pytest.raises(BadInput):
        discover(*arguments, environ={})  # type: ignore[arg-type]


def test_hostlists() -> None:
    assert list(expand_hostlist("node[03-07,9]")) == [
        "node03",
        "node04",
        "node05",
        "node06",
        "node07",
        "node9",
    ]
    assert list(expand_hostlist("a,b[1-2]x[098-101]y, c")) == [
        "a",
        *(f"b{i}x{j:03d}y" for i in (1, 2) for j in range(98, 102)),
        "c",
    ]
    assert first_host("n[000001-999999]") == "n000001"
    assert [tasks_on_node("1,3(x2)", node) for node in range(3)] == [1, 3, 3]


@pytest.mark.parametrize("text", ["", " , ", "a]b", "a[1", "a[[1]]", "a[2-1]", "a[x]", "a[]"])
def test_bad_hostlists(text: str) -> None:
    with pytest.raises(BadInput):
        first_host(text)


@pytest.mark.parametrize(("text", "node"), [("4", 1), ("x", 0), ("", 0)])
def test_bad_task_lists(text: str, node: int) -> None:
    with pytest.raises(BadInput):
        tasks_on_node(text, node)


def test_mpiexec_needs_no_rendezvous() -> None:
    place = discover(environ=MPI)
    assert (place.rank, place.world_size, place.rendezvous, place.launcher) == (2, 3, None, "mpi")
    assert (place.local_rank, place.local_size) == (0, 1)
