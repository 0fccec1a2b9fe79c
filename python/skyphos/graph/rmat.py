"""R-MAT: random graphs with the degrees of real ones (Chakrabarti, Zhan, Faloutsos 2004), with
the parameters of Graph500.

An edge is placed by choosing one quarter of the adjacency matrix ``scale`` times over, with probabilities a,
b, c and d = 1 - a - b - c for upper left, upper right, lower left and lower right. Edges come in blocks, each
with a random stream of its own, so a graph depends on the seed alone and not on the number of ranks.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..errors import BadInput
from ..inputs.settings import real, truth, whole
from .edges import Edges, Ids

__all__ = ["rmat"]

# Edges that share one random stream: a block's random numbers (256 KB) stay in a core's cache.
_BLOCK = 1 << 16


def rmat(
    scale: int,
    edge_factor: int = 16,
    *,
    seed: int = 0,
    a: float = 0.57,
    b: float = 0.19,
    c: float = 0.19,
    scramble: bool = True,
    part: int = 0,
    parts: int = 1,
) -> Edges:
    """Make an R-MAT graph, or one share of it.

    Parameters
    ----------
    scale : int
        The graph has ids from 0 to 2^scale - 1, not all of them used.
    edge_factor : int
        Edges per id: ``edge_factor * 2**scale`` in all, duplicates and self loops among them.
    seed : int
        Seed of the graph.
    a, b, c : float
        Probabilities of three of the four quarters.
    scramble : bool
        Whether to permute the ids, as Graph500 does; without it hubs have the smallest ids.
    part, parts : int
        Make only share ``part`` of ``parts``; the shares in order make up the whole graph.

    Returns
    -------
    Edges
        The edges, duplicates not merged.

    Raises
    ------
    BadInput
        If the scale or the chances are out of range.

    Examples
    --------
    >>> from skyphos.graph import rmat
    >>> edges = rmat(10, 8, seed=1)
    >>> len(edges), int(edges.source.max()) < 1024
    (8192, True)
    """
    wide = (-(2**63), 2**63 - 1)
    scale, edge_factor = whole(scale, "scale", *wide), whole(edge_factor, "edge_factor", *wide)
    part, parts, seed = whole(part, "part", *wide), whole(parts, "parts", *wide), whole(seed, "seed", 0, 2**128)
    a, b, c = real(a, "a"), real(b, "b"), real(c, "c")
    scramble = truth(scramble, "scramble")
    if not 1 <= scale <= 40 or edge_factor < 1 or not 0 <= part < parts:
        raise BadInput(f"no R-MAT graph of scale {scale}, edge factor {edge_factor}, part {part} of {parts}")
    if min(a, b, c) < 0 or a + b + c > 1:
        raise BadInput(f"chances a={a}, b={b}, c={c} must not be negative nor sum to more than 1")
    total = edge_factor << scale
    first, last = total * part // parts, total * (part + 1) // parts
    source, target = np.empty(last - first, np.int64), np.empty(last - first, np.int64)
    for block in range(first // _BLOCK, -(-last // _BLOCK)):
        rows, columns = _block(np.random.default_rng([seed, block]), scale, a, b, c)
        # The range of the block that is in this share.
        low, high = max(first, block * _BLOCK), min(last, (block + 1) * _BLOCK)
        inside, here = slice(low - block * _BLOCK, high - block * _BLOCK), slice(low - first, high - first)
        source[here], target[here] = rows[inside], columns[inside]
    if scramble:
        names = np.random.default_rng([seed, 1 << 40]).permutation(1 << scale)
        source, target = names.take(source), names.take(target)
    return Edges(source, target)


def _block(random: np.random.Generator, scale: int, a: float, b: float, c: float) -> tuple[Ids, Ids]:
    rows: npt.NDArray[np.int64] = np.zeros(_BLOCK, np.int64)
    columns: npt.NDArray[np.int64] = np.zeros(_BLOCK, np.int64)
    for _ in range(scale):
        chance = random.random(_BLOCK, dtype=np.float32)
        lower = chance >= a + b
        right = (chance >= a) ^ lower ^ (chance >= a + b + c)
        rows += rows
        rows += lower
        columns += columns
        columns += right
    return rows, columns
