"""Files with arbitrary content: each reader returns the content or raises BadInput, and has no other effect.

Whole files are damaged as a fuzzer does it, by examples that Hypothesis makes; with a seed they are the same each time.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from hypothesis import HealthCheck, example, given, seed, settings
from hypothesis import strategies as st

import skyphos as sky
from skyphos.errors import BadInput
from skyphos.graph import read_edges
from skyphos.launch.hostlist import expand_hostlist
from skyphos.launch.hosts import parse_hostfile
from skyphos.planning import Profile, Topology
from skyphos.planning.profile_file import Measured
from skyphos.simulate import Network

NETWORK = (
    b'{"ranks": 4, "rate_out": 1e9, "rate_in": 1e9, "latency_s": 1e-5, "jitter": "uniform(0, 1e-3)", "dealt": true}'
)
EDGES = b"# from to weight\n0 1 0.5\n1\t2\t1e3\n% x\n7,8,9\r\n9223372036854775807 3 1\n"
NAMED = b"source,target,weight\n1,2,3\n4,5,-1.5e3\n"
MATRIX = b"%%MatrixMarket matrix coordinate real symmetric\n% x\n3 3 2\n1 1 2.5\n3 1 -1e300\n"
RACKS = b"a 1 # one\nb 2\n1.2.3.4 1\n"
HOSTS = b"n1 slots=4\n# x\nn2\n10.0.0.3 slots=2\n"


def npz() -> bytes:
    out = io.BytesIO()
    scipy.sparse.save_npz(out, scipy.sparse.csr_matrix(np.eye(3)), compressed=False)
    return out.getvalue()


def topology(path: Path) -> object:
    return Topology.load(path, [("a", "1.2.3.4"), ("b", "1.2.3.5")])


def topology_as_probed(path: Path) -> object:
    return Topology.load(path, [(host.name, host.address) for host in Measured.load(path).hosts])


def slurm(path: Path) -> object:
    return [host for host, _ in zip(expand_hostlist(path.read_text(errors="replace")), range(1000), strict=False)]


#: Name of the file, its undamaged content (empty: what a probe writes), and its reader.
FILES: dict[str, tuple[str, bytes, Callable[[Path], object]]] = {
    "profile": ("p.json", b"", lambda path: Profile.load(str(path))),
    "probe": ("p.json", b"", Measured.load),
    "topology as probed": ("p.json", b"", topology_as_probed),
    "topology": ("racks", RACKS, topology),
    "hosts": ("hosts", HOSTS, lambda path: parse_hostfile(str(path))),
    "hosts of Slurm": ("slurm", b"node[03-05,9]x[1-2],login1,a[0001-9999]", slurm),
    "network": ("n.json", NETWORK, lambda path: Network.load(str(path))),
    "edges": ("a.txt", EDGES, read_edges),
    "compressed edges": ("a.txt.gz", gzip.compress(EDGES, mtime=0), read_edges),
    "CSV": ("a.csv", NAMED, read_edges),
    "MatrixMarket": ("a.mtx", MATRIX, read_edges),
    "SciPy": ("a.npz", npz(), read_edges),
}


@st.composite
def damage(draw: st.DrawFn, whole: bytes) -> bytes:
    """One to four changes: a part is doubled, or replaced by other bytes or by text that readers may mishandle."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        to = min(len(data), at + draw(st.integers(0, 20)))
        more = draw(
            st.one_of(
                st.binary(max_size=8),
                st.just(bytes(data[at:to]) * 2),
                st.sampled_from(
                    [
                        b"-1",
                        b"1e999",
                        b"NaN",
                        b"null",
                        b"[",
                        b"{}",
                        b'""',
                        b"9" * 25,
                        b"0x1",
                        b"\xff",
                        b"\0",
                        b"\n",
                        b"\r",
                    ]
                ),
            )
        )
        data[at:to] = more
    return bytes(data)


@pytest.mark.parametrize("kind", FILES)
def test_readers_of_files(kind: str, probed: Measured, tmp_path: Path) -> None:
    name, whole, reader = FILES[kind]
    whole = whole or probed.to_json().encode()
    path = tmp_path / name
    path.write_bytes(whole)
    reader(path)

    @seed(0)
    @settings(max_examples=150, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(damage(whole))
    def damaged(content: bytes) -> None:
        path.write_bytes(content)
        try:
            reader(path)
        except BadInput as error:
            assert str(error)

    damaged()


def checkpoint() -> bytes:
    with tempfile.TemporaryDirectory() as folder, sky.init() as comm:
        sky.Checkpoint(folder).save(comm, 1, {"x": np.arange(5.0), "y": np.ones((2, 2), np.int8)})
        (file,) = Path(folder).iterdir()
        return file.read_bytes()


def test_checkpoints_with_a_checksum_that_fits() -> None:
    """Damaged content whose checksum is in the file's name, as if another program had written it."""

    @seed(0)
    @settings(max_examples=300, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(damage(checkpoint()))
    @example(b"")
    @example(b"PK\x05\x06" + b"\0" * 18)  # an empty archive
    def damaged(content: bytes) -> None:
        checksum = hashlib.blake2b(content, digest_size=16).hexdigest()
        with tempfile.TemporaryDirectory() as folder, sky.init() as comm:
            Path(folder, f"iteration-7.rank-0-of-1.{checksum}.npz").write_bytes(content)
            found = sky.Checkpoint(folder).restore(comm)
            assert found is None or all(isinstance(array, np.ndarray) for array in found.state.values())

    damaged()
