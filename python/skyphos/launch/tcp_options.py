"""Settings of one process that joins a group over TCP; the native library reads them by name."""

from __future__ import annotations

from dataclasses import dataclass

from .tls import TLS

__all__ = ["TcpOptions"]


@dataclass(frozen=True)
class TcpOptions:
    """Settings of ``connect_tcp``; :func:`skyphos.init` documents them. The defaults are those of a group of one."""

    timeout: float
    threads: int
    socket_buffer: int | None
    congestion_control: str | None
    heartbeat: float
    tls: TLS | None
    rank: int = 0
    world_size: int = 1
    rendezvous: str = ""
    token: str | None = None
    listen_fd: int | None = None
    replication: int = 1
    share_hosts: bool = False
    shared_memory: bool = False
