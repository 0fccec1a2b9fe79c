"""Slurm's host lists: ``node[03-07,9],login1``.

Hosts are listed in the order in which Slurm numbers them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..errors import BadInput

__all__ = ["expand_hostlist", "first_host", "tasks_on_node"]


def expand_hostlist(text: str) -> Iterator[str]:
    """Yield the hosts of a Slurm host list, in order.

    Parameters
    ----------
    text : str
        Names split by commas; each may hold any number of bracketed parts of numbers and ranges. A range
        keeps the width of its first number (``[08-11]`` gives 08, 09, 10, 11).

    Yields
    ------
    str
        One host name.

    Raises
    ------
    BadInput
        If a bracket is not closed or a range runs backwards.

    Examples
    --------
    >>> from skyphos.launch.hostlist import expand_hostlist
    >>> list(expand_hostlist("node[03-05,9],login1"))
    ['node03', 'node04', 'node05', 'node9', 'login1']
    >>> list(expand_hostlist("r[1-2]n[7,8]"))
    ['r1n7', 'r1n8', 'r2n7', 'r2n8']
    """
    for name in _split_outside_brackets(text):
        yield from _expand_name(name)


def first_host(text: str) -> str:
    """Return the first host of a Slurm host list: where rank 0 runs.

    Raises
    ------
    BadInput
        If the list is empty or malformed.

    Examples
    --------
    >>> from skyphos.launch.hostlist import first_host
    >>> first_host("node[0003-9999]")
    'node0003'
    """
    for host in expand_hostlist(text):
        return host
    raise BadInput(f"the Slurm host list {text!r} names no host")


def tasks_on_node(text: str, node: int) -> int:
    """Return how many tasks Slurm placed on a node, from ``SLURM_STEP_TASKS_PER_NODE`` (``4(x2),3``).

    Raises
    ------
    BadInput
        If the text is malformed or has no such node.

    Examples
    --------
    >>> from skyphos.launch.hostlist import tasks_on_node
    >>> [tasks_on_node("4(x2),3", node) for node in range(3)]
    [4, 4, 3]
    """
    end = 0  # number of nodes in the parts so far
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if match is None:
            break
        end += int(match[2] or 1)
        if node < end:
            return int(match[1])
    raise BadInput(f"the Slurm list of tasks per node {text!r} says nothing of node {node}")


def _split_outside_brackets(text: str) -> Iterator[str]:
    depth, start = 0, 0
    for at, char in enumerate(text):
        depth += (char == "[") - (char == "]")
        if depth not in (0, 1):
            raise BadInput(f"the Slurm host list {text!r} has brackets that do not match")
        if char == "," and depth == 0:
            if text[start:at].strip():
                yield text[start:at].strip()
            start = at + 1
    if depth:
        raise BadInput(f"the Slurm host list {text!r} has brackets that do not match")
    if text[start:].strip():
        yield text[start:].strip()


def _expand_name(name: str) -> Iterator[str]:
    head, bracket, rest = name.partition("[")
    if not bracket:
        yield name
        return
    inside, _, tail = rest.partition("]")
    for number in _expand_numbers(inside, name):
        for end in _expand_name(tail):
            yield head + number + end


def _expand_numbers(inside: str, name: str) -> Iterator[str]:
    for part in inside.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if match is None:
            raise BadInput(f"the Slurm host {name!r} holds {part!r}, which is neither a number nor a range")
        low, high = match[1], match[2] or match[1]
        if int(high) < int(low):
            raise BadInput(f"the Slurm host {name!r} holds the range {part!r}, which runs backwards")
        for number in range(int(low), int(high) + 1):
            yield f"{number:0{len(low)}d}"
