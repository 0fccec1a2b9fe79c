"""Probe: measures the network and the machines of a group (``skyphos probe``).

Messages use the group's own connections and frames, because the planner predicts these. The measurements are those of
the papers: time by message size (*Kylix*, Fig. 2), the parameters of LogGP (Alexandrov et al. 1997; with
overheads measured as by Kielmann et al. 2000), the slowdown when several ranks send to one, latency and rate of each
pair, and the times of the kernels.
"""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _skyphos as native
from ..collectives.agreement import collective
from ..comm import Comm
from ..errors import BadInput
from ..launch.local import cores as usable_cores
from ..planning.loggp import LogGP, fit_line, half_rate_bytes, incast_share
from ..planning.planner import Profile
from ..planning.profile_choice import host_and_address
from ..planning.profile_file import Host, Measured, Point
from ..planning.topology import Topology, groups, racks
from .pairings import Pairs, across, incast_flows, message_sizes, neighbours, pair_rounds, ring, tournament

__all__ = ["measure_machine", "probe"]

Numbers = npt.NDArray[np.float64]
Report = Callable[[str, float], None]

# Seconds for which matrix products are timed: many time slices.
_PRODUCTS_S = 0.15

#: Bytes of a frame, and of the largest message.
_FRAME, _LARGEST = 128 * 1024, 4 << 20
#: Bytes of a segment, in which streams are sent; arrays are sent in whole frames.
_SEGMENT = 32 * 1024
#: Message sizes from which the overheads of a frame and of a byte are fitted.
_OVERHEAD_SIZES = (1, 1024, 8192, _SEGMENT)
#: A rank that used more than this part of its share of a core did not wait for the network.
_BUSY = 0.8
# A rank is slow if its kernels take this many times as long as the median rank's; less is noise.
_SLOW = 1.5
#: Shares of the total time: pairs, curves, streams, all at once, incast.
_PAIRS, _CURVES, _STREAMS, _TOGETHER, _INCAST = 0.25, 0.3, 0.08, 0.1, 0.17
#: Ranks to which each rank sends at once, bytes of such a message, and repetitions.
_FAN, _FAN_BYTES, _FANS = 16, 64, 50
_TEXT_BYTES = 512
#: Number of messages in a stream of small ones; a late receiver buffers all of them.
_SMALL = 2000
#: Number of measurements of each pair's latency.
_TURNS = 3
#: Upper bound on the messages of a stream; its time limit ends it first.
_STREAM_MESSAGES = 1 << 30
#: Rounds in which each message size is measured, and seconds for which ranks sleep before each round.
_ROUNDS, _PAUSE_S = 5, 0.01


@collective()
def probe(comm: Comm, *, seconds: float = 10.0, report: Report | None = None) -> Measured:
    """Measure the network between the ranks, and their machines. Collective.

    Parameters
    ----------
    comm : Comm
        At least two ranks.
    seconds : float, default 10.0
        Approximate total time, at least 0.5; the same on all ranks. A longer time gives more stable numbers. Ranks that
        share cores, and links below 100 Mbit/s, take somewhat longer.
    report : callable, optional
        Called with the name of the next measurement and the completed share, from 0 to 1.

    Returns
    -------
    Measured
        The results, the same on all ranks. ``measured.profile`` is for :func:`skyphos.init` and the planner.

    Raises
    ------
    BadInput
        For a group of one, or a time that is too short.
    PeerLost, Timeout
        On all other ranks, if a rank ended or is missing.

    Examples
    --------
    >>> import skyphos as sky
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> from skyphos.probe import probe
    >>> with ThreadPoolExecutor(2) as pool:  # two ranks of this process; `skyphos probe` starts real ones
    ...     mine, theirs = pool.map(lambda comm: probe(comm, seconds=0.5), sky.local(2))
    >>> mine.profile == theirs.profile, mine.ranks, mine.curve[0].size
    (True, 2, 1)
    """
    if comm.size < 2:
        raise BadInput("a probe measures between ranks, and this is a group of one: start at least two")
    if not 0.5 <= seconds <= 3600:
        raise BadInput(f"a probe takes from 0.5 to 3600 seconds, not {seconds:g}")
    return _Probe(comm, seconds, report or (lambda _words, _share: None)).run()


class _Probe:
    """One measurement on one rank."""

    def __init__(self, comm: Comm, seconds: float, report: Report) -> None:
        self._comm, self._native, self._seconds, self._progress = comm, comm._native, seconds, report
        self._done = 0.0

    def run(self) -> Measured:
        comm, begin = self._comm, time.perf_counter()
        self._report("hosts", 0.0)
        hosts = self._hosts()
        ranks = [list(host.ranks) for host in hosts]
        # The pair that is measured in detail: on two hosts if there are several.
        pair = (ranks[0][0], ranks[1][0] if len(ranks) > 1 else ranks[0][1])
        self._stream(neighbours(ranks), 0.02 * self._seconds)  # warms up: opens the windows of the connections
        round_s = self._barrier_round_s()
        self._report("pairs", _PAIRS)
        latency, rate = self._pairs(pair_rounds(ranks))
        self._report("message sizes", _CURVES)
        curve, medians = self._curve(pair, tournament(range(comm.size))[0])
        self._report("machine", 0.05)
        kernels, share, machine = measure_machine(comm)
        self._report("overheads and streams", 0.05 + _STREAMS)
        frame_s, byte_s, array_byte_s, loggp = self._loggp(pair, curve)
        self._report("all at once", _TOGETHER)
        in_racks = racks(ranks, latency, rate)
        streams = neighbours(across(ranks, in_racks))
        all_rate, ring_gain = self._together(streams, ring([ranks[host] for rack in in_racks for host in rack]))
        busy = [self._busy_byte_s(streams, size, share) for size in (_SEGMENT, _FRAME)]
        # The planner counts a frame for each 128 KB in addition to the bytes.
        byte_s, array_byte_s = (
            max(0.0, of_pair if np.isnan(of_all) else of_all - frame_s / _FRAME)
            for of_pair, of_all in zip((byte_s, array_byte_s), busy, strict=True)
        )
        self._report("many to one", _INCAST)
        incast = self._incast(incast_flows(ranks))
        self._report("one to many", 0.03)
        if len(hosts) > 1:
            waits = self._waits(round_s, 2 * frame_s / share)
        else:
            waits = self._turns(curve[0].seconds, frame_s, share)
        profile = Profile(
            rate=all_rate,
            ring_gain=ring_gain,
            incast=incast_share([k for k, _ in incast], [reached for _, reached in incast]),
            cores=share,
            frame_s=frame_s,
            byte_s=byte_s,
            array_byte_s=array_byte_s,
            **waits,
            **kernels,
        )
        halves = [half_rate_bytes([p.size for p in curve], of_round, 1 / loggp.G_s) for of_round in medians]
        measured = Measured(
            profile=profile,
            hosts=hosts,
            ranks=comm.size,
            transport=comm.transport,
            measured=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            seconds=time.perf_counter() - begin,
            topology=Topology([list(host) for host in ranks], in_racks, latency, rate),
            loggp=loggp,
            curve=curve,
            half_rate_bytes=float(np.median(halves)),
            half_rate_low_bytes=min(halves),
            half_rate_high_bytes=max(halves),
            shared_memory=bool(self._all([float(_has_shared_memory())]).max()),
            incast=incast,
            machine=machine,
        )
        return Measured.from_text(self._of_rank_0(measured.to_json()), "rank 0's measurements")

    def _report(self, stage: str, share: float) -> None:
        self._progress(stage, min(1.0, self._done))
        self._done += share

    def _all(self, numbers: Sequence[float] | Numbers) -> Numbers:
        """Gather the numbers of all ranks, one row per rank."""
        return np.asarray(self._comm.allgather(np.asarray(numbers, np.float64)), np.float64)

    def _texts(self, text: str) -> list[str]:
        """Gather a short text of each rank."""
        block = np.zeros(_TEXT_BYTES, np.uint8)
        coded = text.encode()[:_TEXT_BYTES]
        block[: len(coded)] = np.frombuffer(coded, np.uint8)
        rows = np.asarray(self._comm.allgather(block))
        return [bytes(row).rstrip(b"\0").decode(errors="replace") for row in rows]

    def _of_rank_0(self, text: str) -> str:
        """Rank 0's text, on all ranks: each rank's own times would differ in the last digits."""
        coded = np.frombuffer(text.encode(), np.uint8)
        length = int(self._all([float(len(coded))])[0, 0])
        block = np.zeros(length, np.uint8)
        if self._comm.rank == 0:
            block[:] = coded
        return bytes(np.asarray(self._comm.allgather(block))[0]).decode()

    def _hosts(self) -> list[Host]:
        """The hosts and their ranks; ranks share a host if :func:`_machine` gives them the same identifier."""
        machines = self._texts(_machine())
        found = []
        for ranks in groups(machines):
            name, address = host_and_address(self._comm.address(ranks[0]))
            found.append(Host(name, address, tuple(ranks)))
        return found

    def _ping(self, pairs: Pairs, size: int, limit_s: float, rounds: int = 2000) -> list[float]:
        """One-way times, in seconds, of the pair in which this rank is first, if any; the first two rounds warm up."""
        times = native.ping(self._native, pairs, size, rounds, limit_s)
        return times[2:] if len(times) > 6 else times[-1:]

    def _stream(self, flows: Pairs, limit_s: float) -> list[native.ReceivedFlow]:
        """The flows to this rank; the first third of the time does not count."""
        return native.stream(self._native, flows, _FRAME, _STREAM_MESSAGES, limit_s, limit_s / 3).received

    def _barrier_round_s(self) -> float:
        """Seconds until a small message arrives while all ranks exchange them: the time of a round of a barrier."""
        rounds, times = max(1, (self._comm.size - 1).bit_length()), []
        until = time.perf_counter() + 0.03 * self._seconds
        go_on = True
        while go_on:
            for _ in range(20):
                start = time.perf_counter()
                self._comm.barrier()
                times.append((time.perf_counter() - start) / rounds)
            go_on = bool(self._all([float(time.perf_counter() < until)])[0, 0])
        return float(np.median(self._all([float(np.median(times))])))

    def _fans(self) -> tuple[float, float | None]:
        """Seconds of an exchange of small messages with one other rank, and the increase for each further rank.

        Times are those of the slowest rank, and medians of several exchanges.
        """
        others = min(_FAN, self._comm.size - 1)
        took = [
            float(np.median(self._all(native.fan(self._native, k, _FAN_BYTES, _FANS)).max(axis=0)))
            for k in sorted({1, others})
        ]
        return took[0], max(0.0, took[-1] - took[0]) / (others - 1) if others > 1 else None

    def _waits(self, round_s: float, frames_s: float) -> dict[str, float]:
        """Costs of a message between hosts without its bytes; the known processor time ``frames_s`` is subtracted."""
        _, more_s = self._fans()
        return {"latency_s": round_s, "message_s": max(0.0, (more_s or 0.0) - frames_s)}

    def _turns(self, latency_s: float, frame_s: float, share: float) -> dict[str, float]:
        """Costs of a message between ranks that share cores and run in turn; ``latency_s`` is that of a single pair."""
        one_s, more_s = self._fans()
        wake_s = Profile.one_host(1, share).wake_s if more_s is None else max(0.0, more_s * share - 2 * frame_s)
        call_s = one_s - (2 * frame_s + wake_s) / share - latency_s
        return {"latency_s": latency_s, "wake_s": wake_s, "call_s": max(1e-6, call_s)}

    def _pairs(self, rounds: list[Pairs]) -> tuple[Numbers, Numbers]:
        """Latency in seconds, and rate in bytes a second, of each measured pair; NaN for the others."""
        size, me = self._comm.size, self._comm.rank
        latency, rate = np.full((size, size), np.nan), np.full((size, size), np.nan)
        each_s = _PAIRS * self._seconds / len(rounds) / 2
        # The best of several measurements counts: other programs only add time, and may run for a while.
        for pairs in rounds * _TURNS:
            small = self._ping(pairs, 8, each_s / _TURNS)
            for first, second in pairs:
                if first == me:
                    latency[first, second] = np.fmin(latency[first, second], np.quantile(small, 0.25))
                    latency[second, first] = latency[first, second]
        for pairs in rounds:
            received = self._stream(pairs, each_s)
            for first, second in pairs:
                if second == me and received[0].seconds > 0:
                    rate[first, second] = rate[second, first] = received[0].bytes / received[0].seconds
        every = [self._all(table.ravel()).reshape(size, size, size) for table in (latency, rate)]
        return np.fmin.reduce(every[0]), np.fmin.reduce(every[1])

    def _curve(self, pair: tuple[int, int], together: Pairs) -> tuple[list[Point], list[list[float]]]:
        """Times of messages of each size: of one pair while the others wait, and of all ranks at once. Also the medians
        of the single pair, by round and size.

        All sizes are measured in each of several rounds, between which ranks sleep. Other load, and whether a waiting
        rank polls or sleeps, change slowly, and would otherwise determine the result of a whole probe.
        """
        sizes = message_sizes(_LARGEST)
        each_s = _CURVES * self._seconds / len(sizes) / 2 / _ROUNDS
        found: list[list[list[float]]] = [[[], []] for _ in sizes]
        medians: list[list[float]] = []
        for turn in range(_ROUNDS):
            medians.append([])
            time.sleep(_PAUSE_S)
            for position, size in enumerate(sizes):
                for which, pairs in enumerate(([pair], together)):
                    times = self._ping(pairs, size, each_s)
                    found[position][which] += times
                    if which == 0:
                        median = self._all([float(np.median(times)) if times else np.nan])[pair[0], 0]
                        medians[-1].append(float(median))
                # If this size took so long, larger ones give no further information.
                if turn == 0 and medians[-1][-1] > 4 * each_s * _ROUNDS:
                    del sizes[position + 1 :]
                    break
        points = []
        for size, rows in zip(sizes, found, strict=False):
            quartiles = [np.quantile(row, [0.25, 0.5, 0.75]) if row else np.full(3, np.nan) for row in rows]
            every = self._all(np.concatenate(quartiles))
            low, middle, high = every[pair[0], :3]
            points.append(Point(size, middle, low, high, float(np.nanmedian(every[:, 4]))))
        return points, medians

    def _loggp(self, pair: tuple[int, int], curve: list[Point]) -> tuple[float, float, float, LogGP]:
        """Processor times of a frame, and of a byte in segments and in arrays; LogGP's parameters."""
        seconds = {point.size: point.seconds for point in curve}
        sending, receiving = [], []
        for size in (*_OVERHEAD_SIZES, _FRAME):
            near = min(seconds, key=lambda known: abs(known - size))
            gap_s = 0.1e-3 + 3 * seconds[near]
            times = int(np.clip(0.05 * self._seconds / (len(_OVERHEAD_SIZES) + 1) / gap_s, 5, 100))
            took = native.overhead(self._native, [pair], size, times, gap_s)
            # The lower quartile, because interrupted or sleeping processors take longer.
            every = self._all([float(np.quantile(took, 0.25)) if took else np.nan])
            sending.append(every[pair[0], 0])
            receiving.append(every[pair[1], 0])
        both = (np.asarray(sending) + np.asarray(receiving)) / 2
        frame_s, _ = fit_line(_OVERHEAD_SIZES, both[:-1].tolist())
        byte_s, array_byte_s = (
            max(0.0, took / size - frame_s / _FRAME) for took, size in ((both[-2], _SEGMENT), (both[-1], _FRAME))
        )
        gaps = []
        for _ in range(5):
            # The time of the whole stream: a receiver that shares the sender's core starts late, and gets all at once.
            report = native.stream(self._native, [pair], 1, _SMALL, 1.0 + self._seconds, 0.0)
            gaps.append(report.seconds / _SMALL)
        every = self._all([float(np.median(gaps))])
        g_s = max(every[pair[0], 0], every[pair[1], 0])
        rate = self._rates([pair], _STREAMS * self._seconds)[0]
        latency_s = max(0.0, curve[0].seconds - sending[0] - receiving[0])
        return frame_s, byte_s, array_byte_s, LogGP(latency_s, sending[0], receiving[0], g_s, 1 / rate)

    def _busy_byte_s(self, flows: Pairs, size: int, share: float) -> float:
        """Processor time per byte, at either end, of streams between all ranks.

        NaN if these wait for the network and not for the processors, because polling is not a cost.
        """
        limit_s = _TOGETHER / 4 * self._seconds
        report = native.stream(self._native, flows, size, _STREAM_MESSAGES, limit_s, 0.0)
        total = self._all([float(report.sent_bytes), report.seconds, report.cpu_s]).sum(axis=0)
        is_cpu_bound = total[2] > _BUSY * share * total[1]
        return float(total[2] / (2 * total[0])) if is_cpu_bound and total[0] > 0 else np.nan

    def _rates(self, flows: Pairs, limit_s: float) -> list[float]:
        """Bytes a second received by each rank from all its senders together."""
        received = self._stream(flows, limit_s)
        took_s = max((flow.seconds for flow in received), default=0.0)
        mine = sum(flow.bytes for flow in received) / took_s if took_s > 0 else np.nan
        reached: list[float] = self._all([mine])[:, 0].tolist()
        to = sorted({receiver for _, receiver in flows})
        if not all(np.isfinite(reached[rank]) and reached[rank] > 0 for rank in to):
            raise BadInput(f"a probe of {self._seconds:g} s is too short for this network: pass more seconds")
        return [reached[rank] for rank in to]

    def _together(self, streams: Pairs, around: Pairs) -> tuple[float, float]:
        """A rank's bytes a second if all send to other hosts; and if each sends to the next rank, relative to that."""
        each_s = _TOGETHER / 2 * self._seconds / (1 if streams == around else 2)
        far = float(np.median(self._rates(streams, each_s)))
        # A ring is as fast as its slowest part.
        return far, 1.0 if streams == around else max(0.1, float(np.min(self._rates(around, each_s))) / far)

    def _incast(self, steps: list[Pairs]) -> list[tuple[int, float]]:
        """Number of simultaneous senders, and their total rate in bytes a second."""
        each_s = _INCAST * self._seconds / len(steps)
        return [(len(flows), self._rates(flows, each_s)[0]) for flows in steps]


def measure_machine(comm: Comm) -> tuple[dict[str, float], float, dict[str, float]]:
    """Measure the machines while all ranks compute. Collective.

    Returns
    -------
    kernels : dict
        Processor seconds of each kernel, as in :class:`skyphos.planning.Profile`; medians over the ranks.
    share : float
        Share of a core that a rank has, at most 1: the median over the ranks. If the slowest rank's kernels take over
        1.5 times as long as the median rank's, divided by that factor, because a call ends when its last rank does.
    machine : dict
        Usable ``cores`` of a host; ``copy_rate``, the rate of copies in bytes a second; ``float32_gflops`` and
        ``float64_gflops`` of matrix products.
    """
    times, share = native.kernel_times(comm._native)
    found = [seconds for _, seconds in times] + [share]
    for dtype in (np.float32, np.float64):
        found.append(_gemm_gflops(comm, dtype))
    found.append(float(usable_cores()))
    each = np.asarray(comm.allgather(np.asarray(found)))
    *kernel_s, share, float32, float64, cores = np.median(each, axis=0).tolist()
    kernels = {name: seconds for (name, _), seconds in zip(times, kernel_s, strict=True)}
    copy_rate = share / kernels["dense_byte_s"]
    slowness = float(_slowness(each[:, : len(times)]).max())
    share /= slowness if slowness > _SLOW else 1.0
    machine = {"cores": cores, "copy_rate": copy_rate, "float32_gflops": float32, "float64_gflops": float64}
    return kernels, share, machine


def _slowness(kernel_s: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Times of each rank's kernels relative to the median rank's: the geometric mean over kernels."""
    known_s = kernel_s[:, (kernel_s > 0).all(axis=0)]
    ratios: npt.NDArray[np.float64] = np.exp(np.log(known_s / np.median(known_s, axis=0)).mean(axis=1))
    return ratios


def _gemm_gflops(comm: Comm, dtype: Any, n: int = 512) -> float:
    """10^9 operations a second of NumPy's product of n × n matrices, while all ranks do the same.

    Many products are timed, because a single one may fit into a time slice in which other ranks of the core wait.
    """
    a = np.ones((n, n), dtype)
    out = a @ a
    comm.barrier()
    start, products, seconds = time.perf_counter(), 0, 0.0
    while seconds < _PRODUCTS_S:
        np.matmul(a, a, out=out)
        products, seconds = products + 1, time.perf_counter() - start
    return float(2e-9 * n**3 * products / seconds)


def _has_shared_memory() -> bool:
    """True if this process exchanges messages with ranks of its host through shared memory."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
            return "/memfd:skyphos" in file.read()
    except OSError:
        return False


def _machine() -> str:
    """An identifier of the machine, by which the transport distinguishes machines too."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/net')}"
    except OSError:
        return os.uname().nodename
