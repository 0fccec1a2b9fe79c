"""Columns of an edge list: which are source, target and weight, by known names or by the caller.

Names are compared without case, blanks and punctuation, so ``Source ID``, ``source_id`` and ``sourceId`` are the same.
The known names are those of NetworkX and Gephi (Source, Target, Weight), igraph (from, to), Spark's GraphFrames and
cuGraph (src, dst), Neo4j's exports (:START_ID, :END_ID; _start, _end), SNAP (FromNodeId, node_1, id_1) and matrices
(row, col, value).
Columns without a known name are never guessed: the error lists their names and the setting that assigns roles.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import BadInput

__all__ = ["Columns", "Roles", "roles_by_name"]

_ENDS = ("", "id", "node", "nodeid", "vertex", "vertexid")
_SOURCES = ("source", "src", "from", "start", "origin", "u", "row", "sender", "citing", "follower")
_TARGETS = ("target", "dst", "dest", "destination", "to", "end", "v", "col", "column", "receiver", "cited", "followee")
_SOURCE_NAMES = frozenset(name + end for name in _SOURCES for end in _ENDS)
_TARGET_NAMES = frozenset(name + end for name in _TARGETS for end in _ENDS)
_WEIGHT_NAMES = frozenset(
    (
        "weight",
        "weights",
        "w",
        "value",
        "val",
        "edgeweight",
        "strength",
        "capacity",
        "cost",
        "distance",
        "amount",
        "count",
    )
)
# Names of columns that are never weights: edge numbers, labels, times.
_OTHERS = frozenset(
    ("", "id", "edgeid", "index", "unnamed", "key", "label", "type", "relation", "relationship", "reltype", "edgetype")
) | frozenset(("timeset", "time", "timestamp", "date", "datetime", "year", "name", "color", "colour", "directed"))
_ROLES = ("source", "target", "weight")
_HINT = "name them: --columns source=…,target=…,weight=… (columns= in Python)"


@dataclass(frozen=True)
class Roles:
    """Numbers of the columns, from 0."""

    source: int
    target: int
    weight: int | None = None


@dataclass(frozen=True)
class Columns:
    """Columns as the caller gives them: by a name in the first line, or by a number from 1, as ``cut -f`` counts."""

    source: str
    target: str
    weight: str | None = None

    @classmethod
    def of(cls, given: str | Mapping[str, str | int] | Columns | None) -> Columns | None:
        """Read ``source=a,target=b,weight=c``, or a mapping of the same.

        Examples
        --------
        >>> from skyphos.graph.columns import Columns
        >>> Columns.of("source=a, target=b"), Columns.of({"source": 1, "target": 3, "weight": "w"})
        (Columns(source='a', target='b', weight=None), Columns(source='1', target='3', weight='w'))
        """
        if given is None or isinstance(given, Columns):
            return given
        pairs: list[tuple[str, str]] = []
        if isinstance(given, str):
            for part in given.split(","):
                role, equals, name = part.partition("=")
                if not equals:
                    raise BadInput(f"columns {given!r}: {part!r} is not role=column: write source=…,target=…,weight=…")
                pairs.append((role.strip().lower(), name.strip()))
        elif isinstance(given, Mapping):
            pairs = [(str(role), str(name)) for role, name in given.items()]
        else:
            raise BadInput(f"columns must be text or a mapping, such as source=…,target=…,weight=…, not {given!r}")
        named = dict(pairs)
        for role, name in pairs:
            if role not in _ROLES or not name:
                raise BadInput(f"columns: {role}={name}: the roles are source, target and weight, each =column")
        if len(named) != len(pairs) or not {"source", "target"} <= named.keys():
            raise BadInput(f"columns {given!r}: must name source and target once each, and weight at most once")
        return cls(**named)

    def find(self, names: Sequence[str] | None, count: int, where: str) -> Roles:
        """The column numbers in a file with ``count`` columns; ``names`` are those in its first line, if it has any."""
        found = [None if name is None else _number(name, names, count, where) for name in self._all()]
        used = [number for number in found if number is not None]
        if len(set(used)) != len(used):
            raise BadInput(f"{where}: source, target and weight are three columns, not one twice")
        source, target, weight = found
        assert source is not None and target is not None
        return Roles(source, target, weight)

    def are_numbers(self) -> bool:
        """True if every column is given as a number, not by a name."""
        return all(name is None or (name.isascii() and name.isdigit()) for name in self._all())

    def _all(self) -> tuple[str, str, str | None]:
        return self.source, self.target, self.weight


def _number(name: str, names: Sequence[str] | None, count: int, where: str) -> int:
    for fold in (str, str.lower):
        found = [column for column, known in enumerate(names or ()) if fold(known) == fold(name)]
        if len(found) == 1:
            return found[0]
        if found:
            raise BadInput(
                f"{where}: {len(found)} columns are called {name}: {_listed(names)}; give the number of one, from 1"
            )
    if name.isascii() and name.isdigit() and 1 <= int(name) <= count:
        return int(name) - 1
    listed = f"{count} columns without names" if names is None else f"the columns {_listed(names)}"
    raise BadInput(f"{where}: no column {name!r} among {listed}")


def roles_by_name(names: Sequence[str], where: str, *, weights: bool) -> Roles:
    """Columns found by known names.

    Parameters
    ----------
    names : sequence of str
        The file's first line.
    where : str
        File and line, for errors.
    weights : bool
        Whether weights are wanted.

    Raises
    ------
    BadInput
        If the names do not determine source and target, or if another column may be a weight.

    Examples
    --------
    >>> from skyphos.graph.columns import roles_by_name
    >>> roles_by_name(["Id", "Target", "Source", "Weight"], "e.csv, line 1", weights=True)
    Roles(source=2, target=1, weight=3)
    """
    plain = [_plain(name) for name in names]
    source, target = (_only(plain, known) for known in (_SOURCE_NAMES, _TARGET_NAMES))
    if source is None and target is None:
        source, target = _numbered_pair(plain)
    if source is None or target is None:
        raise BadInput(f"{where}: which column is source, which target? They are {_listed(names)}; {_HINT}")
    if not weights:
        return Roles(source, target)
    weight = plain.index("weight") if plain.count("weight") == 1 else _only(plain, _WEIGHT_NAMES)
    left = [
        name for column, name in enumerate(names) if column not in (source, target) and plain[column] not in _OTHERS
    ]
    if weight is None and left:
        raise BadInput(
            f"{where}: is {' or '.join(map(repr, left))} the weight? The columns are {_listed(names)}; {_HINT}; for "
            "edges without weights leave weight out, or say --unweighted (weights=False)"
        )
    return Roles(source, target, weight)


def _numbered_pair(plain: Sequence[str]) -> tuple[int, int] | tuple[None, None]:
    """The only two columns whose names differ in a final 1 and 2; in a file of two columns also a and b, x and y, …"""
    ends = (("1", "2"), *((("a", "b"), ("x", "y"), ("i", "j")) if len(plain) == 2 else ()))
    pairs = [
        (column, plain.index(name[:-1] + after))
        for column, name in enumerate(plain)
        for first, after in ends
        if name.endswith(first) and plain.count(name) == plain.count(name[:-1] + after) == 1
    ]
    return pairs[0] if len(pairs) == 1 else (None, None)


def _plain(name: str) -> str:
    """A name without case, punctuation, Neo4j's types (``weight:float``) and spaces of ids (``:START_ID(Person)``)."""
    name = re.sub(r"\(.*\)$", "", name.strip())
    if not name.startswith(":"):
        name = name.partition(":")[0]
    return re.sub(r"[\W_]+", "", name).lower()


def _only(plain: Sequence[str], known: frozenset[str]) -> int | None:
    """The only column with a known name; None if there is none, or several."""
    found = [column for column, name in enumerate(plain) if name in known]
    return found[0] if len(found) == 1 else None


def _listed(names: Sequence[str] | None) -> str:
    return ", ".join(repr(name) for name in names or ())
