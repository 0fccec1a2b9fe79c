"""``skyphos pagerank`` as a user runs it: real processes, real files, and all errors."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import networkx
import numpy as np
import pyarrow.parquet
import pytest

LIMIT_S = 120
SKYPHOS = [sys.executable, "-m", "skyphos.cli"]
# Gaps in the ids, a self loop, a dangling vertex (9) and an edge that is written twice.
ROWS = [(1, 2), (2, 5), (5, 1), (5, 5), (1, 9), (70, 1), (1, 2), (2, 70), (70, 70)]


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    file = tmp_path / "graph.txt"
    file.write_text("# a test\n" + "".join(f"{s}\t{t}\r\n" for s, t in ROWS))
    return file


def skyphos(*arguments: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if k != "SKYPHOS_DEBUG"} | (env or {})
    command = [*SKYPHOS, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=clean)


def ranks_by_networkx() -> dict[int, float]:
    result: dict[int, float] = networkx.pagerank(networkx.DiGraph(ROWS), tol=1e-15, max_iter=2000)
    return result


def read_csv(file: Path) -> dict[int, float]:
    head, *lines = file.read_text().splitlines()
    assert head == "vertex,rank"
    pairs = [line.split(",") for line in lines]
    ids = [int(vertex) for vertex, _ in pairs]
    assert ids == sorted(ids)
    return {int(vertex): float(rank) for vertex, rank in pairs}


def assert_equal(found: dict[int, float], expected: dict[int, float]) -> None:
    assert set(found) == set(expected)
    assert max(abs(found[vertex] - expected[vertex]) for vertex in expected) < 1e-9


TIGHT = ("--tol", "1e-13", "--max-iterations", "500")


@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("partition", ["random", "greedy", "row"])
def test_without_a_launcher_it_starts_its_own_processes(graph: Path, tmp_path: Path, n: int, partition: str) -> None:
    out = tmp_path / "ranks.csv"
    done = skyphos("pagerank", graph, "-n", n, "--partition", partition, *TIGHT, "--out", out)
    assert done.returncode == 0, done.stderr
    expected = ranks_by_networkx()
    assert_equal(read_csv(out), expected)
    table = re.findall(r"^(\d+) +(0\.\d+)$", done.stdout, re.MULTILINE)
    best = sorted(expected, key=lambda vertex: -expected[vertex])
    assert [int(vertex) for vertex, _ in table] == best
    for part in (
        "load",
        "configure",
        "compute",
        "wait for late peers",
        "transfer",
        "merge",
        "down 1",
        "up 1",
    ):
        assert re.search(rf"^{part} +\d", done.stdout, re.MULTILINE), part
    iterations = re.findall(r"^iteration (\d+) +residual (\S+)$", done.stderr, re.MULTILINE)
    assert [int(k) for k, _ in iterations] == list(range(1, len(iterations) + 1))
    assert float(iterations[-1][1]) < 1e-13
    assert sorted(os.listdir(tmp_path)) == ["graph.txt", "ranks.csv"]


def test_under_skyphos_run(graph: Path, tmp_path: Path) -> None:
    out, page = tmp_path / "ranks.csv", tmp_path / "report.html"
    run = ("run", "-n", "4", "--no-prefix", "-m", "skyphos.cli", "pagerank", graph)
    done = skyphos(*run, *TIGHT, "--degrees", "2x2", "--out", out, "--report", page, "--top", "3")
    assert done.returncode == 0, done.stderr
    assert_equal(read_csv(out), ranks_by_networkx())
    assert "degrees 2x2" in done.stdout
    assert page.read_text().count("▼ layer") == 2


def test_under_a_host_file(graph: Path, tmp_path: Path) -> None:
    hosts, out = tmp_path / "hosts", tmp_path / "ranks.csv"
    hosts.write_text("localhost slots=3\n")
    run = ("run", "--hostfile", hosts, "-m", "skyphos.cli", "pagerank", graph)
    done = skyphos(*run, *TIGHT, "--out", out)
    assert done.returncode == 0, done.stderr
    assert_equal(read_csv(out), ranks_by_networkx())


def test_outputs_agree(graph: Path, tmp_path: Path) -> None:
    for name in ("ranks.csv", "ranks.npy", "ranks.parquet"):
        assert skyphos("pagerank", graph, "-n", 2, "--out", tmp_path / name).returncode == 0
    exact = read_csv(tmp_path / "ranks.csv")
    array = np.load(tmp_path / "ranks.npy")
    assert dict(zip(array["vertex"].tolist(), array["rank"].tolist(), strict=True)) == exact
    table = pyarrow.parquet.read_table(tmp_path / "ranks.parquet").to_pydict()
    assert dict(zip(table["vertex"], table["rank"], strict=True)) == exact


def test_ids_are_as_in_the_file(tmp_path: Path) -> None:
    file, out = tmp_path / "m.mtx", tmp_path / "ranks.csv"
    file.write_text("%%MatrixMarket matrix coordinate pattern general\n4 4 2\n1 2\n2 1\n")
    done = skyphos("pagerank", file, "-n", 2, "--out", out, "--top", 1)
    assert done.returncode == 0, done.stderr
    assert list(read_csv(out)) == [1, 2, 3, 4]
    assert re.search(r"^1 +0\.", done.stdout, re.MULTILINE)


def test_weights_undirected_and_top(tmp_path: Path) -> None:
    file, out = tmp_path / "w.csv", tmp_path / "ranks.csv"
    file.write_text("from,to,weight\n1,2,3\n1,3,1\n")
    graph = networkx.Graph()
    graph.add_weighted_edges_from([(1, 2, 3.0), (1, 3, 1.0)])
    for options, weight in ((("--undirected",), "weight"), (("--undirected", "--unweighted"), None)):
        done = skyphos("pagerank", file, "-n", 2, *TIGHT, *options, "--out", out, "--top", 0)
        assert done.returncode == 0, done.stderr
        assert_equal(read_csv(out), networkx.pagerank(graph, weight=weight, tol=1e-15, max_iter=2000))


def test_no_convergence_is_reported_and_is_no_failure(graph: Path) -> None:
    done = skyphos("pagerank", graph, "-n", 2, "--max-iterations", 2)
    assert done.returncode == 0
    assert done.stderr.splitlines()[-1].startswith("skyphos: not converged: the residual is ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("missing.txt",), "missing.txt: No such file"),
        (("GRAPH", "--degrees", "3x2"), "--degrees 3x2 multiply to 6, but there are 2 ranks"),
        (("GRAPH", "--degrees", "two"), "--degrees must look like 4x2"),
        (("GRAPH", "--damping", "1"), "damping must be"),
        (("GRAPH", "--tol", "-1"), "tol must not be negative"),
        (("GRAPH", "--max-iterations", "0"), "max_iterations must be"),
        (("GRAPH", "--partition", "columns"), "columns"),
        (("GRAPH", "--out", "ranks.txt"), "ranks.txt: the name must end in .csv, .npy, .parquet"),
        (("GRAPH", "--out", "/no/such/ranks.csv"), "there is no folder /no/such"),
        (("GRAPH", "--report", "report.pdf"), "the name must end in .html"),
        (("GRAPH", "--bogus"), "--bogus"),
        ((), "GRAPH"),
    ],
)
def test_bad_settings_are_one_line_and_code_2(graph: Path, arguments: tuple[str, ...], said: str) -> None:
    done = skyphos("pagerank", "-n", 2, *(graph if a == "GRAPH" else a for a in arguments))
    lines = [line for line in done.stderr.splitlines() if line.startswith("skyphos: ")]
    assert done.returncode == 2
    assert len(lines) == 1
    assert said in lines[0]
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("line", ["1 x", "1", "-1 2", "9223372036854775808 1"])
def test_a_line_that_is_no_edge_leaves_nothing_behind(graph: Path, tmp_path: Path, n: int, line: str) -> None:
    graph.write_text(graph.read_text() + line + "\n")
    done = skyphos("pagerank", graph, "-n", n, "--out", tmp_path / "a.csv", "--report", tmp_path / "a.html")
    said = [text for text in done.stderr.splitlines() if text.startswith("skyphos: ")]
    assert done.returncode == 2
    assert len(said) == 1
    assert f"{graph}, line {len(ROWS) + 2}: not an edge" in said[0]
    assert os.listdir(tmp_path) == ["graph.txt"]


def test_a_report_that_cannot_be_written_leaves_no_ranks_either(graph: Path, tmp_path: Path) -> None:
    done = skyphos("pagerank", graph, "-n", 2, "--out", tmp_path / "a.csv", "--report", tmp_path / f"{'a' * 250}.html")
    assert done.returncode == 2
    assert "File name too long" in done.stderr
    assert os.listdir(tmp_path) == ["graph.txt"]


def test_settings_are_checked_before_the_graph_is_read(tmp_path: Path) -> None:
    (tmp_path / "no-graph.txt").write_text("no edge\n")
    done = skyphos("pagerank", tmp_path / "no-graph.txt", "-n", 2, "--damping", 2)
    assert (done.returncode, "damping must be" in done.stderr) == (2, True)


def test_an_address_in_place_of_a_path(graph: Path) -> None:
    pytest.importorskip("fsspec", reason="fsspec is not installed")
    found = skyphos("pagerank", "-n", 2, graph.as_uri())
    assert found.returncode == 0 and "vertices" in found.stdout, found.stderr
    absent = skyphos("pagerank", "-n", 2, graph.as_uri() + ".none")
    assert absent.returncode == 2 and absent.stderr.count("\n") == 1 and "none: No such file" in absent.stderr


def test_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    done = skyphos("pagerank", tmp_path / "empty.txt", "-n", 2)
    assert (done.returncode, "holds no edge" in done.stderr) == (2, True)


def test_another_number_of_ranks_than_the_group_has(graph: Path) -> None:
    done = skyphos("run", "-n", 2, "-m", "skyphos.cli", "pagerank", graph, "-n", 3)
    assert done.returncode == 2
    assert "leave -n out" in done.stderr


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    done = skyphos("pagerank", tmp_path / "missing.txt", "-n", 1, env={"SKYPHOS_DEBUG": "1"})
    assert done.returncode != 0
    assert "Traceback" in done.stderr


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_ends_it_with_nothing_written(rank: int, graph: Path, tmp_path: Path) -> None:
    out = tmp_path / "ranks.csv"
    command = [*SKYPHOS, "pagerank", str(graph), "-n", "3", "--tol", "0", "--max-iterations", "100000000"]
    process = subprocess.Popen([*command, "--out", str(out)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert process.stderr is not None
    while not process.stderr.readline().startswith(b"iteration 5 "):
        assert process.poll() is None
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) == 3
    os.kill(int(children[rank]), signal.SIGKILL)
    _, err = process.communicate(timeout=LIMIT_S)
    # The killed rank is the first that failed, unless a peer reported its loss earlier.
    assert process.returncode in (128 + signal.SIGKILL, 1)
    assert b"Traceback" not in err
    assert re.search(rf"rank {rank} (on \S+ was killed|\()", err.decode()), err
    assert os.listdir(tmp_path) == ["graph.txt"]


def test_ctrl_c(graph: Path) -> None:
    command = [*SKYPHOS, "pagerank", str(graph), "-n", "2", "--tol", "0", "--max-iterations", "100000000"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert process.stderr is not None
    while not process.stderr.readline().startswith(b"iteration 5 "):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 128 + signal.SIGINT
    assert b"Traceback" not in err


def test_version_and_help() -> None:
    assert re.fullmatch(r"skyphos, version \d+\.\d+\.\d+\S*\n", skyphos("--version").stdout)
    for command in (("--help",), ("run", "--help"), ("pagerank", "--help")):
        done = skyphos(*command)
        assert (done.returncode, done.stderr) == (0, "")
        assert "Usage: skyphos" in done.stdout
    assert {"pagerank", "run"} <= set(skyphos("--help").stdout.split())


def test_unknown_command() -> None:
    done = skyphos("bogus")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("how", ["-", "/dev/stdin", "pipe"])
def test_a_graph_from_stdin(graph: Path, tmp_path: Path, n: int, how: str) -> None:
    out = tmp_path / "ranks.csv"
    command = [*SKYPHOS, "pagerank", "-" if how == "pipe" else how, "-n", str(n), *TIGHT, "--out", str(out)]
    with open(graph, "rb") as file:
        given = {"input": file.read()} if how == "pipe" else {"stdin": file}
        done = subprocess.run(command, capture_output=True, timeout=LIMIT_S, check=False, **given)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr
    assert_equal(read_csv(out), ranks_by_networkx())


@pytest.mark.parametrize("launcher", [[], ["run", "-n", "3", "--", sys.executable, "-m", "skyphos.cli"]])
def test_a_graph_from_a_shell_command(graph: Path, tmp_path: Path, launcher: list[str]) -> None:
    out = tmp_path / "ranks.csv"
    command = [*SKYPHOS, *launcher, "pagerank", *TIGHT, "--out", str(out), *([] if launcher else ["-n", "3"])]
    shell = f'exec "$@" <(gzip -c {graph})'
    done = subprocess.run(["bash", "-c", shell, "bash", *command], capture_output=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert_equal(read_csv(out), ranks_by_networkx())


@pytest.mark.parametrize(
    ("given", "said"),
    [("1 2\n2 x\n", "-, line 2: not an edge"), ("", "-: holds no edge"), (None, "-: stdin is a terminal, or closed")],
)
def test_invalid_graphs_from_stdin(given: str | None, said: str) -> None:
    command = [*SKYPHOS, "pagerank", "-", "-n", "2"]
    if given is None:
        command = ["sh", "-c", 'exec "$@" <&-', "sh", *command]
    done = subprocess.run(command, input=given or "", capture_output=True, text=True, timeout=LIMIT_S, check=False)
    lines = [line for line in done.stderr.splitlines() if line.startswith("skyphos: ")]
    assert (done.returncode, len(lines)) == (2, 1) and said in lines[0]


def test_columns_that_are_named(tmp_path: Path) -> None:
    file, out = tmp_path / "e.csv", tmp_path / "ranks.csv"
    file.write_text("kind,a,b,score\nx,1,2,3\ny,2,1,1\nz,1,3,1\n")
    unnamed = skyphos("pagerank", file, "-n", 2)
    assert (
        unnamed.returncode == 2
        and "'kind', 'a', 'b', 'score'" in unnamed.stderr
        and "--columns source=" in unnamed.stderr
    )
    done = skyphos("pagerank", file, "-n", 2, *TIGHT, "--out", out, "--columns", "source=a,target=b,weight=score")
    assert done.returncode == 0, done.stderr
    weighted = networkx.DiGraph()
    weighted.add_weighted_edges_from([(1, 2, 3.0), (2, 1, 1.0), (1, 3, 1.0)])
    assert_equal(read_csv(out), networkx.pagerank(weighted, tol=1e-15, max_iter=2000))
    wrong = skyphos("pagerank", file, "-n", 2, "--columns", "a,b")
    assert wrong.returncode == 2 and "not role=column" in wrong.stderr


def test_results_through_a_link(graph: Path, tmp_path: Path) -> None:
    target, link = tmp_path / "target.csv", tmp_path / "link.csv"
    target.touch(0o664)
    target.chmod(0o664)
    link.symlink_to("target.csv")
    assert skyphos("pagerank", graph, "-n", 2, *TIGHT, "--out", link).returncode == 0
    assert link.is_symlink() and target.stat().st_mode & 0o777 == 0o664
    assert_equal(read_csv(target), ranks_by_networkx())


def test_results_to_stdout(graph: Path) -> None:
    for n in (1, 2):
        done = skyphos("pagerank", graph, "-n", n, "--out", "/dev/stdout")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("vertex,rank\n1,0.") and "\nvertices 5 " in done.stdout


def test_names_that_are_no_utf_8(graph: Path, tmp_path: Path) -> None:
    """An error in a file of such a name is raised at once on all ranks, and a report shows the name."""
    folder = os.fsencode(tmp_path)
    good, bad, report = folder + b"/raw\xff.txt", folder + b"/bad\xff.txt", folder + b"/raw\xff.html"
    with open(good, "wb") as file:
        file.write(graph.read_bytes())
    with open(bad, "wb") as file:
        file.write(b"1 2\n2 x\n")
    for arguments, code in (
        ([bad], 2),
        ([good, "--report", report], 0),
        ([good, "--checkpoint", folder + b"/\xfe"], 0),
    ):
        command = [*SKYPHOS, "pagerank", "-n", "2", *arguments]
        done = subprocess.run(command, capture_output=True, check=False, timeout=LIMIT_S)
        assert done.returncode == code, done.stderr
        assert b"Unicode" not in done.stderr and b"Traceback" not in done.stderr
        assert code == 0 or b"line 2: not an edge: '2 x'" in done.stderr
    with open(report, "rb") as file:
        assert b"raw\\xff.txt" in file.read()
    missing = subprocess.run([*SKYPHOS, "pagerank", folder + b"/no\xff.txt"], capture_output=True, check=False)
    assert missing.returncode == 2 and b"No such file" in missing.stderr and missing.stderr.count(b"\n") == 1
