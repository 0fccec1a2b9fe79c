"""The native half: checked against the binary by ``mypy.stubtest``."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, final

import numpy as np
import numpy.typing as npt

__all__ = [
    "BlockExchange",
    "Comm",
    "Connected",
    "KeyTable",
    "Plan",
    "SimulatedPhase",
    "Work",
    "add_product",
    "allgather",
    "allreduce",
    "allreduce_dense",
    "allreduce_plain",
    "alltoall",
    "alltoall_uneven",
    "auto_may_take",
    "begin_with",
    "broadcast",
    "connect_mpi",
    "connect_tcp",
    "default_profile",
    "dequantise",
    "exchange_blocks",
    "fail_send",
    "fan",
    "gather",
    "get_profile",
    "greedy_degrees",
    "kernel_times",
    "key_places",
    "list_of",
    "local",
    "move_arrays",
    "mpi_end",
    "mpi_is_there",
    "mpi_prepare_end",
    "outer_factors",
    "outer_product_sum",
    "overhead",
    "ping",
    "predict_agreement",
    "predict_plans",
    "predict_reductions",
    "probe",
    "probe_now",
    "recv",
    "reduce",
    "reduce_arrays",
    "reduce_scatter",
    "send",
    "set_profile",
    "simulate",
    "simulated_collectives",
    "simulated_hosts",
    "sparse_outer_factors",
    "sparse_outer_product_sum",
    "stream",
    "strings_of",
    "topk_allreduce",
    "topk_put_back",
    "topk_quantise",
    "topk_take",
    "topk_take_layers",
    "union_entries",
    "wire_of_leaving",
    "words_of",
]

# Bytes sent and received, messages, rounds, processor seconds, seconds.
_Stage = tuple[float, float, float, float, float, float]

_Shared = tuple[int | None, int, list[int] | None, bool, float | None, int | None]

_Array = npt.NDArray[Any]

_Bytes = npt.NDArray[np.uint8]

_Strings = tuple[npt.NDArray[np.int64], _Bytes]

_Keys = npt.NDArray[np.uint64] | _Strings

_Places = npt.NDArray[np.uint32]

_Quantised = tuple[int, int, str, str, int]

_Settings = tuple[str, list[int] | None, str, int, _Quantised | None, int | None, Sequence[int] | None]

_Parts = tuple[_Array | None, _Array, _Array | None]

def allreduce(
    comm: Comm,
    n: int,
    width: int,
    vector: _Parts,
    op: Any,
    identity: Any,
    settings: _Settings,
    tell_sent: bool,
    explain: bool,
    async_op: bool,
) -> Any: ...
def topk_take(
    residual: _Array | None, gradient: _Array, choice: tuple[int | None, int | None, _Array | None]
) -> tuple[_Array, _Array]: ...
def topk_take_layers(
    residual: _Array,
    gradient: _Array,
    layers: list[tuple[int, int, int, int]],
    scale: float | None,
    velocity: _Array | None,
    momentum: float,
) -> tuple[_Array, _Array, int | None]: ...
def topk_quantise(values: _Array, how: tuple[int, int, int], place: tuple[int, int]) -> None: ...
def dequantise(packed: _Array, how: tuple[int, int], values: _Array) -> None: ...
def topk_allreduce(comm: Comm, n: int, vector: _Parts, k: int, op: Any, async_op: bool) -> Any: ...
def topk_put_back(residual: _Array, indices: _Array, picked: _Array, sent: _Array) -> None: ...
def reduce_scatter(
    comm: Comm,
    n: int,
    width: int,
    vector: _Parts,
    op: Any,
    identity: Any,
    degrees: list[int] | None,
    expected_nnz: int | None,
    explain: bool,
    async_op: bool,
) -> Any: ...
def reduce(
    comm: Comm, n: int, width: int, vector: _Parts, op: Any, identity: Any, root: int, async_op: bool
) -> Any: ...
def allgather(comm: Comm, n: int, width: int, vector: _Parts, schedule: str, async_op: bool) -> Any: ...
def gather(comm: Comm, n: int, width: int, vector: _Parts, root: int, async_op: bool) -> Any: ...
def alltoall(
    comm: Comm, n: int, width: int, vectors: list[_Parts], root: int | None, like: _Array, async_op: bool
) -> Any: ...
def move_arrays(
    comm: Comm, what: str, values: _Array, out: _Array, root: int, schedule: str, async_op: bool
) -> Any: ...
def alltoall_uneven(
    comm: Comm, values: _Array, out: _Array, sends: list[int], receives: list[int], async_op: bool
) -> Any: ...
def broadcast(
    comm: Comm,
    parts: list[_Array] | None,
    root: int,
    algorithm: str,
    chunk_bytes: int | None,
    ack_timeout: float | None,
    async_op: bool,
) -> Any: ...
def send(comm: Comm, dest: int, tag: int, parts: list[_Array], async_op: bool) -> Any: ...
def wire_of_leaving(rank: int, cause: str) -> bytes: ...
def fail_send(comm: Comm, dest: int, tag: int, message: str, wire: bytes | None = None) -> Exception: ...
def recv(
    comm: Comm,
    source: int | None,
    tag: int | None,
    first: bytes | None,
    out: npt.NDArray[np.uint8] | None,
    async_op: bool,
    beside: Work | None = None,
) -> Any: ...
def probe(comm: Comm, source: int | None, tag: int | None) -> tuple[int, int, int]: ...
def probe_now(comm: Comm, source: int | None, tag: int | None) -> tuple[int, int, int] | None: ...
def reduce_arrays(
    comm: Comm, values: _Array, out: _Array, op: Any, identity: Any, root: int | None, async_op: bool
) -> Any: ...
def allreduce_dense(
    comm: Comm,
    values: _Array,
    out: _Array,
    op: Any,
    identity: Any,
    algorithm: str,
    quantised: _Quantised | None,
    async_op: bool,
) -> Any: ...
def allreduce_plain(comm: Comm, values: npt.NDArray[Any], out: npt.NDArray[Any], op: str) -> bool: ...
def local(size: int, timeout: float, threads: int, replication: int) -> list[Comm]: ...
def connect_tcp(
    rank: int,
    world_size: int,
    rendezvous: str,
    token: str | None,
    timeout: float,
    threads: int,
    listen_fd: int | None,
    socket_buffer: int | None,
    congestion_control: str | None,
    heartbeat: float,
    tls: tuple[str, str, str] | None,
    replication: tuple[int, bool],
    shared_memory: bool,
) -> Connected: ...
def connect_mpi(
    comm: int | None,
    launched: int | None,
    places: list[str],
    timeout: float,
    threads: int | None,
) -> Connected: ...
def mpi_is_there(places: list[str]) -> bool: ...
def mpi_end() -> None: ...
def mpi_prepare_end() -> None: ...

@final
class Connected:
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def address(self, rank: int) -> str: ...
    def group(self) -> Comm: ...
    def replicated(
        self,
        each: int,
        share_hosts: bool,
        profile: Any,
        topology: tuple[list[int], list[int]] | None,
        error: str | None,
    ) -> Comm: ...

_Loss = Literal["left", "ended", "silent"]
_Health = tuple[tuple[int, int, int], str, tuple[_Loss, str] | None, bool, float | None, tuple[int, int]]

@final
class Comm:
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def process(self) -> tuple[int, int]: ...
    @property
    def replica(self) -> int: ...
    @property
    def replication(self) -> int: ...
    def health(self) -> list[_Health]: ...
    @property
    def adapts(self) -> bool: ...
    @property
    def topology(self) -> tuple[list[int], list[int]]: ...
    @property
    def transport(self) -> str: ...
    @property
    def trusted(self) -> bool: ...
    @property
    def closed(self) -> bool: ...
    def address(self, rank: int) -> str: ...
    def barrier(self, async_op: bool) -> Any: ...
    def hold(self) -> None: ...
    def release(self) -> None: ...
    def split(self, color: int | None, key: int, within: bool = False) -> Comm | None: ...
    def group_of(self, ranks: list[int], name: int) -> Comm: ...
    def shrink(self) -> Comm: ...
    def close(self) -> None: ...
    def close_at_exit(self, seconds: float, why: str | None = None) -> None: ...
    def calls_begun(self) -> int: ...
    def note_failure_since(self, first: int) -> None: ...
    def fail_call(self, message: str, wire: bytes | None = None, goes_on: bool = False) -> Exception: ...
    def agree_arguments(self, function: str, arguments: list[tuple[str, str]]) -> None: ...
    def configure(
        self,
        contribute: npt.NDArray[np.integer[Any]],
        want: npt.NDArray[np.integer[Any]],
        shared: _Shared,
        async_op: bool,
    ) -> Any: ...
    def configure_reduce(
        self,
        contribute: npt.NDArray[np.integer[Any]],
        want: npt.NDArray[np.integer[Any]],
        values: npt.NDArray[Any],
        out: npt.NDArray[Any],
        op: Any,
        identity: Any,
        shared: _Shared,
        async_op: bool,
    ) -> Any: ...

@final
class Plan:
    @property
    def considered(
        self,
    ) -> list[
        tuple[
            list[int],
            list[_Stage],
            list[_Stage],
        ]
    ]: ...
    @property
    def n(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def degrees(self) -> list[int]: ...
    @property
    def contribute_len(self) -> int: ...
    @property
    def want_len(self) -> int: ...
    def reduce(
        self, values: npt.NDArray[Any], out: npt.NDArray[Any], op: Any, identity: Any, arrival: bool, async_op: bool
    ) -> Any: ...
    def volume(self) -> list[tuple[int, int, bool, int, int, int, int, float]]: ...
    def stats(self) -> tuple[float, float, float]: ...

def exchange_blocks(comm: Comm, blocks: list[_Bytes], push_bytes: int, fetches: int) -> BlockExchange: ...
def key_places(keys: _Keys, ranks: int, waves: int) -> tuple[_Places, _Places]: ...
def strings_of(strings: list[str] | list[bytes]) -> _Strings: ...
def words_of(text: _Bytes, at: int, most: int) -> tuple[_Strings, int]: ...
def list_of(offsets: npt.NDArray[np.int64], bytes: _Bytes, text: bool) -> list[Any]: ...

@final
class BlockExchange:
    def next_block(self) -> tuple[int, _Bytes] | None: ...
    def fail(self, message: str) -> None: ...
    def finish(self) -> tuple[int, int, int]: ...

@final
class KeyTable:
    def __new__(cls, strings: bool, dtype: str, width: int, op: Any, identity: Any) -> KeyTable: ...
    def __len__(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    def add(self, keys: _Keys, values: _Bytes | None) -> None: ...
    def absorb(self, other: KeyTable) -> None: ...
    def add_block(self, block: _Bytes) -> None: ...
    def places(self, ranks: int, waves: int) -> tuple[_Places, _Places]: ...
    def blocks(self, to: _Places, blocks: int) -> list[_Bytes]: ...
    def keys(self) -> Any: ...
    def take(self) -> tuple[Any, _Array, npt.NDArray[np.uint64] | None]: ...

@final
class Work:
    @property
    def name(self) -> str: ...
    def done(self) -> bool: ...
    def wait(self, timeout: float | None) -> bool: ...
    def advance(self) -> None: ...
    def withdraw(self) -> None: ...
    def note_failure(self) -> None: ...
    def take(self) -> Any: ...

@final
class SimulatedPhase:
    name: str
    algorithm: str
    chunk_bytes: int | None
    degrees: list[int]
    seconds: list[float]
    rounds: list[tuple[str, float, float, int, int, int]]
    timeline: list[tuple[int, list[tuple[str, float, float]]]]
    busy: list[tuple[int, list[tuple[float, float]]]]
    trace: str

def simulate(
    network: Any, asked: Any, traced: bool, progress: Callable[[str, int, float], None] | None
) -> list[SimulatedPhase]: ...
def simulated_collectives() -> list[str]: ...
def simulated_hosts(network: Any, seed: int) -> list[int]: ...
def default_profile(ranks: int, cores: float, rate: float | None) -> list[tuple[str, float]]: ...
def union_entries(
    n: int, model: tuple[str, float, float, list[tuple[float, float]]], ranks: list[float]
) -> list[float]: ...
def auto_may_take(algorithm: str, ranks: int, entries: float, row_bytes: int) -> bool: ...
def predict_agreement(ranks: int, profile: Any) -> _Stage: ...
def predict_reductions(
    ranks: int,
    n: int,
    row_bytes: int,
    model: tuple[str, float, float, list[tuple[float, float]]],
    profile: Any,
    to_parts: bool,
) -> list[tuple[str, list[int], list[_Stage]]]: ...
def predict_plans(
    ranks: int,
    n: int,
    row_bytes: int,
    model: tuple[str, float, float, list[tuple[float, float]]],
    profile: Any,
) -> list[
    tuple[
        list[int],
        list[_Stage],
        list[_Stage],
    ]
]: ...
def greedy_degrees(
    ranks: int, n: int, entries: float, row_bytes: float, alpha: float, min_packet_bytes: float
) -> list[int]: ...
def ping(comm: Comm, pairs: list[tuple[int, int]], size: int, most: int, limit: float) -> list[float]: ...
def overhead(comm: Comm, pairs: list[tuple[int, int]], size: int, times: int, gap: float) -> list[float]: ...
def stream(
    comm: Comm, flows: list[tuple[int, int]], size: int, most: int, limit: float, settle: float
) -> tuple[list[tuple[int, int, int, float]], int, float, float]: ...
def kernel_times(comm: Comm) -> tuple[list[tuple[str, float]], float]: ...
def fan(comm: Comm, k: int, bytes: int, times: int) -> list[float]: ...
def begin_with(comm: Comm, mine: Any, adapt: bool, topology: tuple[list[int], list[int]] | None) -> Comm: ...
def set_profile(comm: Comm, profile: Any) -> None: ...
def get_profile(comm: Comm) -> list[tuple[str, float]] | None: ...

_OuterSettings = tuple[str, str | None, str | None, tuple[int, int] | None, bool, bool]
_OuterShape = tuple[int, int, int]
_OuterEntries = tuple[npt.NDArray[np.uint64], npt.NDArray[Any]]

def outer_product_sum(
    comm: Comm, a: _Array, b: _Array, out: _Array, of: _OuterShape, settings: _OuterSettings, async_op: bool
) -> Any: ...
def outer_factors(
    comm: Comm, a: _Array, b: _Array, of: _OuterShape, settings: _OuterSettings, async_op: bool
) -> Any: ...
def sparse_outer_product_sum(
    comm: Comm, a: _OuterEntries, b: _OuterEntries, of: _OuterShape, settings: _OuterSettings, async_op: bool
) -> Any: ...
def sparse_outer_factors(
    comm: Comm, a: _OuterEntries, b: _OuterEntries, of: _OuterShape, settings: _OuterSettings, async_op: bool
) -> Any: ...
def add_product(a: _Array, b: _Array, out: _Array, of: _OuterShape, scale: float, threads: int) -> None: ...
