"""Graphs stored in S3 (moto's server) and in HDFS (Hadoop's own name and data node in one Java process)."""

from __future__ import annotations

import gzip
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from skyphos.errors import BadInput
from skyphos.graph import read_edges

HADOOP = Path(__file__).parents[2] / "target" / "hadoop"

EDGES = np.random.default_rng(3).integers(0, 300, (2000, 2))
TEXT = gzip.compress("".join(f"{source} {target}\n" for source, target in EDGES).encode())


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A bucket with the graph. fsspec and pyarrow find its endpoint in AWS's variable."""
    server = pytest.importorskip("moto.server", reason="moto is not installed: pip install 'moto[server]' s3fs")
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    import boto3  # type: ignore[import-untyped, unused-ignore]

    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AWS_ACCESS_KEY_ID": "tests",
            "AWS_SECRET_ACCESS_KEY": "tests",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        }.items():
            patch.setenv(name, value)
        client = boto3.client("s3")
        client.create_bucket(Bucket="graphs")
        client.put_object(Bucket="graphs", Key="edges.txt.gz", Body=TEXT)
        yield "s3://graphs/edges.txt.gz"
    running.stop()


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The graph in an HDFS. It is read over HTTP (webhdfs), because hdfs:// needs Hadoop's native library."""
    if shutil.which("java") is None or not HADOOP.is_dir():
        pytest.skip("no Java, or no target/hadoop, which `make test-engines` gets with Maven")
    pytest.importorskip("requests", reason="requests, which fsspec's webhdfs needs, is not installed")
    fsspec = pytest.importorskip("fsspec")
    folder = tmp_path_factory.mktemp("hdfs")
    words = ["-nomr", "-format", "-datanodes", "1", "-nnport", "0", "-nnhttpport", "0", "-writeConfig", "conf.xml"]
    java = ["java", "-cp", f"{HADOOP}/*", "org.apache.hadoop.mapreduce.MiniHadoopClusterManager", *words]
    with (folder / "log").open("wb") as log, subprocess.Popen(java, cwd=folder, stdout=log, stderr=log) as running:
        try:
            address = _written(folder / "conf.xml", running)
            host, port = address.split(":")
            system = fsspec.filesystem("webhdfs", host=host, port=int(port), user="root")
            with system.open("/edges.txt.gz", "wb") as file:
                file.write(TEXT)
            yield f"webhdfs://root@{address}/edges.txt.gz"
        finally:
            running.terminate()


def _written(config: Path, running: subprocess.Popen[bytes]) -> str:
    """The address of the name node, once it has written it to its configuration."""
    end = time.monotonic() + 60
    while time.monotonic() < end and running.poll() is None:
        try:
            found = ElementTree.parse(config)
        except (OSError, ElementTree.ParseError):  # not written yet, or only in part
            time.sleep(0.1)
            continue
        properties = {one.findtext("name"): one.findtext("value") for one in found.iter("property")}
        return str(properties["dfs.namenode.http-address"])
    pytest.fail((config.parent / "log").read_text(encoding="utf-8", errors="replace")[-2000:])


def check(address: str) -> None:
    parts = [read_edges(address, part=part, parts=3) for part in range(3)]
    assert sum(len(part) for part in parts) == len(EDGES)
    assert (np.concatenate([part.source for part in parts]) == EDGES[:, 0]).all()
    assert (np.concatenate([part.target for part in parts]) == EDGES[:, 1]).all()
    with pytest.raises(BadInput, match=r"none\.txt\.gz: "):
        read_edges(address.replace("edges", "none"))


@pytest.mark.parametrize("package", ["fsspec", "pyarrow"])
def test_s3(s3: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if package == "pyarrow":
        find = importlib.util.find_spec
        monkeypatch.setattr(importlib.util, "find_spec", lambda module: None if module == "fsspec" else find(module))
    check(s3)


def test_hdfs(hdfs: str) -> None:
    check(hdfs)


@pytest.mark.parametrize("store", ["s3", "hdfs"])
def test_pagerank_of_a_stored_graph(store: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    address = request.getfixturevalue(store)
    local, out = tmp_path / "edges.txt.gz", tmp_path / "ranks.csv"
    local.write_bytes(TEXT)
    ranks = []
    for graph in (address, str(local)):
        command = [sys.executable, "-m", "skyphos.cli", "pagerank", graph, "-n", "2", "--out", str(out)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=os.environ)
        assert done.returncode == 0, done.stderr
        ranks.append(out.read_text())
    assert ranks[0] == ranks[1]
