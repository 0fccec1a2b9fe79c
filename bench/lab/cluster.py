"""Hosts on one machine: network namespaces on a switch, each link shaped to a rate in both directions.

A namespace `skylab-PID-sw` holds a bridge for each rack. One more bridge joins several racks, over links that are
shaped too. `skylab-PID-hI` holds host I with one interface `eth0`, 10.99.0.(I + 1).
`tc tbf` shapes what leaves a host, and what leaves the switch for it. Names contain the process id, so that
clusters do not collide, and the next run can remove the namespaces of a killed one.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

_PREFIX = "skylab"
_NAMED = re.compile(rf"{_PREFIX}-(\d+)-(?:sw|h\d+)$")
# Longest time of a frame in a shaper before it is dropped; longer than any queue of a collective.
_LATENCY = "100ms"


class NoCluster(RuntimeError):
    """Namespaces cannot be made here; the text has the reason."""


class Loopback:
    """No cluster: all ranks on 127.0.0.1, without shaping, without root."""

    interface = "lo"

    def __init__(self, hosts: int) -> None:
        self.hosts = hosts

    def __enter__(self) -> Loopback:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        return None

    def address(self, host: int) -> str:
        """The address of a host."""
        return "127.0.0.1"

    def command(self, host: int, arguments: Sequence[str]) -> list[str]:
        """The command line that runs a command on a host."""
        return list(arguments)


class Cluster:
    """A cluster of namespaces; as a context manager it is removed at the end, also after errors."""

    interface = "eth0"

    def __init__(
        self, hosts: int, rate: str, burst: str, port_buffer: int | None = None, *, racks: int = 1, uplink: str = "none"
    ) -> None:
        """``port_buffer``: bytes that the switch buffers for a host; None: without limit. Hosts are assigned
        round-robin to ``racks``, each with ``uplink`` in both directions."""
        self.hosts, self.rate, self.burst, self.port_buffer = hosts, rate, burst, port_buffer
        self.racks, self.uplink = racks, uplink
        self.name = f"{_PREFIX}-{os.getpid()}"

    def address(self, host: int) -> str:
        """The address of a host."""
        return f"10.99.{host // 250}.{host % 250 + 1}"

    def command(self, host: int, arguments: Sequence[str]) -> list[str]:
        """The command line that runs a command on a host."""
        return ["ip", "netns", "exec", self._host(host), *arguments]

    def environment(self, rank: int, size: int, port: int, token: str) -> dict[str, str]:
        """The environment of a rank; the group's rendezvous is at a port of host 0."""
        return os.environ | {
            "SKYPHOS_RANK": str(rank),
            "SKYPHOS_WORLD_SIZE": str(size),
            "SKYPHOS_RENDEZVOUS": f"{self.address(0)}:{port}",
            "SKYPHOS_TOKEN": token,
        }

    def cut(self, host: int) -> None:
        """Cut a host off silently, as if its cable were pulled at the switch."""
        _ip("-n", f"{self.name}-sw", "link", "set", f"p{host}", "nomaster")

    def heal(self, host: int) -> None:
        """Undo :meth:`cut`."""
        _ip("-n", f"{self.name}-sw", "link", "set", f"p{host}", "master", self._bridge(host))

    def __enter__(self) -> Cluster:
        reason = unavailable()
        if reason is not None:
            raise NoCluster(reason)
        _remove_abandoned()
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def _host(self, host: int) -> str:
        return f"{self.name}-h{host}"

    def _bridge(self, host: int) -> str:
        return f"br{host % self.racks}"

    def _shape(self, namespace: str, device: str, rate: str, queue: Sequence[str] = ("latency", _LATENCY)) -> None:
        if rate != "none":
            shaper = ("root", "tbf", "rate", rate, "burst", self.burst, *queue)
            _check("tc", "-n", namespace, "qdisc", "add", "dev", device, *shaper)

    def _make_switch(self, switch: str) -> None:
        """Make a bridge for each rack; if there are several, also one that joins them."""
        racks = [f"br{rack}" for rack in range(self.racks)]
        for bridge in racks if self.racks == 1 else [*racks, "core"]:
            _ip("-n", switch, "link", "add", bridge, "type", "bridge")
            _ip("-n", switch, "link", "set", bridge, "up")
        for rack, bridge in enumerate(racks if self.racks > 1 else []):
            ends = ((f"up{rack}", bridge), (f"down{rack}", "core"))
            _ip("-n", switch, "link", "add", ends[0][0], "type", "veth", "peer", "name", ends[1][0])
            for device, master in ends:
                _ip("-n", switch, "link", "set", device, "master", master, "up")
                self._shape(switch, device, self.uplink)

    def _make(self) -> None:
        switch = f"{self.name}-sw"
        _ip("netns", "add", switch)
        self._make_switch(switch)
        for host in range(self.hosts):
            name, port = self._host(host), f"p{host}"
            _ip("netns", "add", name)
            _ip("link", "add", "eth0", "netns", name, "type", "veth", "peer", "name", port, "netns", switch)
            _ip("-n", name, "addr", "add", f"{self.address(host)}/16", "dev", "eth0")
            for namespace, device in ((name, "lo"), (name, "eth0"), (switch, port)):
                _ip("-n", namespace, "link", "set", device, "up")
            _ip("-n", switch, "link", "set", port, "master", self._bridge(host))
            self._shape(name, "eth0", self.rate)
            queue = ("latency", _LATENCY) if self.port_buffer is None else ("limit", str(self.port_buffer))
            self._shape(switch, port, self.rate, queue)

    def _remove(self) -> None:
        with _undisturbed():
            for name in _namespaces():
                if name.startswith(f"{self.name}-"):
                    _ip("netns", "del", name)


def unavailable() -> str | None:
    """The reason why a cluster cannot be made here; None if it can."""
    if os.geteuid() != 0:
        return "a cluster of network namespaces needs root: run it with sudo"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"a cluster of network namespaces needs `{tool}`: install iproute2"
    return None


def _namespaces() -> list[str]:
    lines = subprocess.run(["ip", "netns", "list"], check=True, capture_output=True, text=True).stdout.splitlines()
    return [line.split()[0] for line in lines if line]


def _remove_abandoned() -> None:
    """Remove the namespaces of runs whose process has ended."""
    for name in _namespaces():
        found = _NAMED.match(name)
        if found and not Path(f"/proc/{found[1]}").exists():
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def _ip(*arguments: str) -> None:
    _check("ip", *arguments)


def _check(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoCluster(f"`{' '.join(command)}` failed: {done.stderr.strip()}")


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Defer Ctrl-C to the end of the block."""
    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN) if main else None
    try:
        yield
    finally:
        if main:
            signal.signal(signal.SIGINT, before)
