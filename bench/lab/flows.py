"""Plain TCP flows between the lab's hosts: times of simultaneous transfers, and TCP's time-outs.

A process on each host (`python -m lab.flows HOST FLOWS TCP`) holds ``FLOWS`` connections to each other host and
executes the commands on its standard input, one per line. Time-outs are the kernel's own count for each connection
(`struct tcp_info`, Linux 6.7 and later). ``TCP`` is ``today``: the kernel's cubic; or ``plain``: cubic without tail
loss probes and without RACK (`tcp_early_retrans`, `tcp_recovery`), which Linux did not have when the papers were
written.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .cluster import Cluster, NoCluster

PORT = 29_500
_TCP_INFO_BYTES = 248
_SYSTEM = Path("/proc/sys/net/ipv4")
#: Seconds from the command for a transfer to its agreed start.
_AHEAD_S = 0.05
#: Send buffer of a connection. The kernel's 4 MB, times the connections, would stay queued for longer than a time-out
#: on the lab's slow links.
_QUEUED_BYTES = 16 << 10
_CHUNK = bytes(1 << 16)


@dataclass(frozen=True)
class Turn:
    """Result of simultaneous transfers.

    Attributes
    ----------
    seconds : float
        Until the last receiver had everything.
    late_s : list of float
        For each flow: seconds for which TCP waited for time-outs.
    retransmitted : int
        Retransmitted packets of all flows.
    """

    seconds: float
    late_s: list[float]
    retransmitted: int


class Flows:
    """The processes of all hosts: a context manager that ends them."""

    def __init__(self, cluster: Cluster, flows: int, tcp: str) -> None:
        self.cluster = cluster
        self.arguments = [str(flows), tcp]
        self.running: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Flows:
        folder = Path(__file__).resolve().parent.parent
        try:
            for host in range(self.cluster.hosts):
                command = [sys.executable, "-m", "lab.flows", str(host), *self.arguments]
                self.running.append(
                    subprocess.Popen(
                        self.cluster.command(host, command),
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        text=True,
                        cwd=folder,
                    )
                )
            self._answers()  # all listen
            addresses = [self.cluster.address(host) for host in range(self.cluster.hosts)]
            self._ask([addresses] * len(self.running))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.running:
            process.kill()
        for process in self.running:
            process.communicate()

    def turn(self, targets: Sequence[Sequence[int]], flows: int, size: int) -> Turn:
        """Every host sends ``size`` bytes over ``flows`` connections to each of its targets, all at once."""
        begin = time.monotonic() + _AHEAD_S
        words = []
        for host in range(self.cluster.hosts):
            senders = [other for other, receivers in enumerate(targets) if host in receivers]
            words.append({"begin": begin, "to": list(targets[host]), "from": senders, "flows": flows, "size": size})
        found = self._ask(words)
        return Turn(
            max(one["end"] for one in found) - begin,
            [late for one in found for late in one["late_s"]],
            sum(one["retransmitted"] for one in found),
        )

    def _ask(self, words: Sequence[Any]) -> list[Any]:
        """Send a command to each host; return the answers."""
        for process, word in zip(self.running, words, strict=True):
            assert process.stdin is not None
            process.stdin.write(json.dumps(word) + "\n")
            process.stdin.flush()
        return self._answers()

    def _answers(self) -> list[Any]:
        answers = []
        for process in self.running:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise NoCluster("a host's flows ended: its error is above")
            answers.append(json.loads(line))
        return answers


class _Host:
    """Connections of one host: it sends over those that it opened, and receives over those that other hosts opened."""

    def __init__(self, host: int, flows: int, tcp: str) -> None:
        self.host, self.flows = host, flows
        (_SYSTEM / "tcp_limit_output_bytes").write_text(str(_QUEUED_BYTES))
        if tcp == "plain":
            for name in ("tcp_early_retrans", "tcp_recovery"):
                (_SYSTEM / name).write_text("0")
        self.listener = socket.create_server(("0.0.0.0", PORT), backlog=1024)
        self.out: dict[int, list[socket.socket]] = {}
        self.into: dict[int, list[socket.socket]] = {}

    def connect(self, addresses: list[str]) -> None:
        others = [host for host in range(len(addresses)) if host != self.host]
        for other in others:
            for _ in range(self.flows):
                opened = socket.create_connection((addresses[other], PORT))
                opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
                opened.sendall(bytes([self.host]))
                opened.setblocking(False)
                self.out.setdefault(other, []).append(opened)
        for _ in range(self.flows * len(others)):
            accepted, _ = self.listener.accept()
            self.into.setdefault(accepted.recv(1)[0], []).append(accepted)
            accepted.setblocking(False)

    def turn(self, word: dict[str, Any]) -> dict[str, Any]:
        """Send and receive as the command says."""
        flows, size = word["flows"], word["size"]
        sending = {one.fileno(): one for other in word["to"] for one in self.out[other][:flows]}
        receiving = {one.fileno(): one for other in word["from"] for one in self.into[other][:flows]}
        before = {number: _waits(connection) for number, connection in sending.items()}
        to_send, to_receive = dict.fromkeys(sending, size), dict.fromkeys(receiving, size)
        poll = select.epoll()
        for number in sending:
            poll.register(number, select.EPOLLOUT)
        for number in receiving:
            poll.register(number, select.EPOLLIN)
        time.sleep(max(0.0, word["begin"] - time.monotonic()))
        end = word["begin"]
        while to_send or to_receive:
            for number, _ in poll.poll():
                if number in to_send:
                    to_send[number] -= sending[number].send(_CHUNK[: to_send[number]])
                    left = to_send
                else:
                    to_receive[number] -= len(receiving[number].recv(min(1 << 18, to_receive[number])))
                    end, left = time.monotonic(), to_receive
                if not left[number]:
                    del left[number]
                    poll.unregister(number)
        waits = [(before[number], _settled(connection)) for number, connection in sending.items()]
        return {
            "end": end,
            "late_s": [after.stood_still_s(since) for since, after in waits],
            "retransmitted": sum(after.retransmitted - since.retransmitted for since, after in waits),
        }


@dataclass(frozen=True)
class _Waits:
    """Time-outs of a connection since its start; ``recoveries`` counts those that did not follow another time-out."""

    unacknowledged: int
    retransmitted: int
    time_outs: int
    recoveries: int
    time_out_s: float

    def stood_still_s(self, since: _Waits) -> float:
        """Seconds of waiting: a first time-out lasts ``time_out_s``, each following one at least twice as long."""
        first = self.recoveries - since.recoveries
        following = self.time_outs - since.time_outs - first
        return since.time_out_s * (first + 2 * following)


def _waits(connection: socket.socket) -> _Waits:
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 512)
    if len(info) < _TCP_INFO_BYTES:
        raise RuntimeError("this kernel does not count a connection's time-outs: Linux 6.7 and later do")
    rto_us, unacknowledged = struct.unpack_from("=I", info, 8)[0], struct.unpack_from("=I", info, 24)[0]
    (retransmitted,) = struct.unpack_from("=I", info, 100)
    time_outs, recoveries = struct.unpack_from("=HH", info, 240)
    return _Waits(unacknowledged, retransmitted, time_outs, recoveries, rto_us / 1e6)


def _settled(connection: socket.socket) -> _Waits:
    """Wait until all sent data have been acknowledged."""
    while (waits := _waits(connection)).unacknowledged:
        time.sleep(0.001)
    return waits


def main() -> None:
    """Execute the commands on standard input, one per line."""
    host = _Host(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    _reply("listening")
    host.connect(json.loads(sys.stdin.readline()))
    _reply("connected")
    for line in sys.stdin:
        _reply(host.turn(json.loads(line)))


def _reply(word: Any) -> None:
    print(json.dumps(word), flush=True)


if __name__ == "__main__":
    main()
