"""The native half: checked against the binary by ``mypy.stubtest``."""

from typing import Any, final

import numpy as np
import numpy.typing as npt

__all__ = ["Comm", "Plan", "allreduce", "allreduce_dense", "connect_tcp", "local"]

_Shared = tuple[int | None, int, list[int] | None, bool, float | None]

_Array = npt.NDArray[Any]

def allreduce(
    comm: Comm,
    n: int,
    width: int,
    indices: _Array | None,
    values: _Array,
    present: _Array | None,
    op: Any,
    identity: Any,
    settings: tuple[str, list[int] | None, str, int],
) -> tuple[_Array | None, _Array, _Array | None]: ...
def allreduce_dense(comm: Comm, values: _Array, out: _Array, op: Any, identity: Any, algorithm: str) -> None: ...
def local(size: int, timeout: float, threads: int) -> list[Comm]: ...
def connect_tcp(
    rank: int,
    world_size: int,
    rendezvous: str,
    token: str | None,
    timeout: float,
    threads: int,
    listen_fd: int | None,
    socket_buffer: int | None,
) -> Comm: ...

@final
class Comm:
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def transport(self) -> str: ...
    @property
    def closed(self) -> bool: ...
    def address(self, rank: int) -> str: ...
    def barrier(self) -> None: ...
    def split(self, color: int | None, key: int) -> Comm | None: ...
    def close(self) -> None: ...
    def fail_call(self, message: str) -> Exception: ...
    def configure(
        self, contribute: npt.NDArray[np.integer[Any]], want: npt.NDArray[np.integer[Any]], shared: _Shared
    ) -> Plan: ...
    def configure_reduce(
        self,
        contribute: npt.NDArray[np.integer[Any]],
        want: npt.NDArray[np.integer[Any]],
        values: npt.NDArray[Any],
        out: npt.NDArray[Any],
        op: Any,
        identity: Any,
        shared: _Shared,
    ) -> Plan: ...

@final
class Plan:
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
        self, values: npt.NDArray[Any], out: npt.NDArray[Any], op: Any, identity: Any, arrival: bool
    ) -> None: ...
    def volume(self) -> list[tuple[int, int, bool, int, int, int, int, float]]: ...
    def stats(self) -> tuple[float, float, float]: ...
