"""Host files: hosts, and the number of ranks on each.

A line is one host in any of these forms; ``#`` begins a comment:

- ``node1`` (one rank), ``node1:4`` (MPICH, Hydra), ``[2001:db8::7]:4``;
- ``node1 slots=4 max_slots=8`` (Open MPI; ``max_slots`` has no effect, because slots are never exceeded);
- ``user@node1``, as ssh takes it.

Everything else is refused with its line, so that an unknown setting does not become the name of a host.
"""

from __future__ import annotations

import ipaddress
import re

from ..errors import BadInput

__all__ = ["parse_hostfile"]

_USER = r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*@)?"
_NAME = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?\.?"
_HOST = re.compile(
    rf"(?P<user>{_USER})(?:(?P<name>{_NAME})|\[(?P<inside>[0-9A-Fa-f:.]+(?:%\w+)?)\])(?::(?P<slots>\d+))?"
)
_COUNT = re.compile(r"(?P<name>slots|max_slots|max-slots)=(?P<count>[1-9]\d{0,8})")


def parse_hostfile(path: str) -> list[tuple[str, int]]:
    """Read a host file.

    Returns
    -------
    list of (str, int)
        Hosts in order, each with its number of ranks (default 1); the numbers of a repeated host are added.

    Raises
    ------
    BadInput
        If the file cannot be read, or a line has none of the forms above; names the line.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from skyphos.launch.hostfile import parse_hostfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "hosts")
    ...     _ = file.write_text("a slots=4\\n# spare\\nb\\nc:2\\n")
    ...     parse_hostfile(str(file))
    [('a', 4), ('b', 1), ('c', 2)]
    """
    try:
        with open(path, encoding="utf-8-sig") as lines:
            text = lines.read()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    slots: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        words = line.partition("#")[0].split()
        if words:
            host, count = _line(words, f"{path}, line {number}: {line.strip()!r}")
            slots[host] = slots.get(host, 0) + count
    if not slots:
        raise BadInput(f"{path}: names no host")
    return list(slots.items())


def _line(words: list[str], where: str) -> tuple[str, int]:
    """The host of a line, and its number of ranks."""
    host, count = _host(words[0], where)
    counts: dict[str, int] = {}
    for word in words[1:]:
        found = _COUNT.fullmatch(word)
        if found is None:
            raise BadInput(f"{where}: {word!r} is not understood: a line is 'host', 'host:N' or 'host slots=N'")
        name = found["name"].replace("-", "_")
        if name in counts or (name == "slots" and count is not None):
            raise BadInput(f"{where}: says twice how many ranks the host takes")
        counts[name] = int(found["count"])
    max_slots = counts.get("max_slots")
    count = counts.get("slots", count)
    if count is not None and max_slots is not None and count > max_slots:
        raise BadInput(f"{where}: slots={count} is more than max_slots={max_slots}")
    return host, count or 1


def _host(word: str, where: str) -> tuple[str, int | None]:
    """A host as ssh takes it, and its number of ranks if it ends in a colon and a number."""
    if word.count(":") > 1 and "[" not in word:
        try:
            ipaddress.IPv6Address(word.rpartition("@")[2].partition("%")[0])
        except ValueError:
            pass
        else:
            return word, None
    found = _HOST.fullmatch(word)
    if found is None:
        raise BadInput(f"{where}: {word!r} is no host: a line is 'host', 'host:N' or 'host slots=N'")
    if found["slots"] is not None and not 0 < int(found["slots"]) < 10**9:
        raise BadInput(f"{where}: {found['slots']} ranks: at least one, or leave the host out")
    if found["inside"] is not None:
        try:
            ipaddress.IPv6Address(found["inside"].partition("%")[0])
        except ValueError:
            raise BadInput(f"{where}: {found['inside']!r} is no IPv6 address") from None
    host = found["user"] + (found["name"] or found["inside"])
    return host, None if found["slots"] is None else int(found["slots"])
