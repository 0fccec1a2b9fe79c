"""A group of Ray actors: ``sky.ray.run(fn, num_workers=4)``.

Actors are placed together (a placement group: all or none, so that two runs cannot block each other). Rank 0's actor
opens a port, and the driver passes its address to the others. An actor that dies is not restarted.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ..errors import BadInput, Timeout
from ..text.plain_text import one_line
from ._meeting import Member, Outcome, Outcomes, failed, listen, package, settings_of, take_part

__all__ = ["run"]


def run(
    fn: Callable[..., Any],
    *args: Any,
    num_workers: int,
    num_cpus: float = 1,
    resources: Mapping[str, float] | None = None,
    strategy: str = "PACK",
    timeout: float = 300.0,
    init_options: Mapping[str, Any] | None = None,
) -> list[Any]:
    """Run ``fn(comm, *args)`` on Ray actors that form a group, and return the results by rank.

    Parameters
    ----------
    fn, *args : callable, objects
        Called on each rank with its :class:`skyphos.Comm` and ``args``; an ``ObjectRef`` is replaced by its value.
    num_workers, num_cpus, resources : int, float and mapping
        Number of ranks, and the resources of each: CPUs, and others such as ``{"GPU": 1}``.
    strategy : {"PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"}
        Placement of actors on nodes by Ray.
    timeout, init_options : float and mapping, optional
        Seconds to wait for resources, and for progress in a call; further arguments of :func:`skyphos.init`.

    Raises
    ------
    BadInput, Timeout, RankFailed, PeerLost
        If Ray is not installed or its nodes have too few resources even when idle; if resources are in use for longer
        than ``timeout``; if ``fn`` raised on a rank (the exception is the cause); if an actor's process ended.

    Examples
    --------
    >>> import numpy as np, skyphos as sky
    >>> sky.ray.run(lambda comm, x: comm.allreduce(np.array([x]))[0], 0.5, num_workers=2)  # doctest: +SKIP
    [np.float64(1.0), np.float64(1.0)]
    """
    settings = settings_of(fn, num_workers, timeout, init_options)
    need = {name: value for name, value in {"CPU": num_cpus, **(resources or {})}.items() if value}
    if not need or min(need.values()) < 0:
        raise BadInput(f"each worker needs some CPU or another resource, not {need}")
    ray, util = package("ray", "ray"), package("ray.util", "ray")
    if not ray.is_initialized():
        ray.init()
    _check_room(ray.nodes(), need, num_workers)
    group = util.placement_group([need] * num_workers, strategy=strategy)
    actors: list[Any] = []
    try:
        if not group.wait(timeout):
            raise Timeout(f"no room for {num_workers} workers of {need} within {timeout:g} s: others use Ray's nodes")
        custom = {name: value for name, value in need.items() if name not in ("CPU", "GPU")}
        needs = {"num_cpus": num_cpus, "num_gpus": need.get("GPU", 0), "resources": custom}
        for index in range(num_workers):
            where = util.scheduling_strategies.PlacementGroupSchedulingStrategy(group, index)
            actors.append(ray.remote(_Worker).options(scheduling_strategy=where, **needs).remote())
        # Large arguments are stored once, instead of once per actor.
        given = [one if isinstance(one, ray.ObjectRef) else ray.put(one) for one in (fn, *args)]
        rendezvous, token = None, secrets.token_hex(16)
        if num_workers > 1:
            rendezvous = _collect_outcomes(ray, [actors[0].listen.remote()]).results()[0]
        member = Member(0, num_workers, rendezvous, token, settings)
        parts = [one.take_part.remote(replace(member, rank=rank), num_cpus, *given) for rank, one in enumerate(actors)]
        return _collect_outcomes(ray, parts).results()
    finally:
        for actor in actors:
            ray.kill(actor)
        util.remove_placement_group(group)


def _check_room(nodes: list[Any], need: Mapping[str, float], num_workers: int) -> None:
    there = [node["Resources"] for node in nodes if node["Alive"]]
    available = sum(int(min(have.get(name, 0) / value for name, value in need.items())) for have in there)
    if available < num_workers:
        each = ", ".join(f"{name} {value:g}" for name, value in need.items())
        raise BadInput(
            f"num_workers={num_workers}, but Ray has room for {available} workers of {each} each "
            f"(nodes: {len(there)}): ask for fewer or smaller ones (num_cpus=), or add nodes first"
        )


def _collect_outcomes(ray: Any, tasks: list[Any]) -> Outcomes:
    outcomes = Outcomes(len(tasks))
    while awaited := {tasks[rank]: rank for rank in outcomes.awaited}:
        for task in ray.wait(list(awaited), timeout=1.0)[0]:
            try:
                outcomes.add(ray.get(task))
            except ray.exceptions.RayActorError as error:
                outcomes.lose(awaited[task], one_line(error))
            except Exception as error:  # an argument or result that could not be transferred
                outcomes.add(failed(awaited[task], error, ray.cloudpickle.dumps))
    return outcomes


class _Worker:
    _listener: socket.socket | None = None

    def listen(self) -> Outcome:
        self._listener, address = listen(package("ray.util", "ray").get_node_ip_address())
        return Outcome(0, socket.gethostname(), address)

    def take_part(self, member: Member, cpus: float, fn: Callable[..., Any], *args: Any) -> Outcome:
        pickler = package("ray.cloudpickle", "ray")
        return take_part(member, fn, args, listener=self._listener, cpus=cpus, dumps=pickler.dumps)
