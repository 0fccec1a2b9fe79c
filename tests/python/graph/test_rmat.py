"""The R-MAT generator: the same graph in any number of shares, and edges in the matrix's quarters by their chances."""

from __future__ import annotations

import numpy as np
import pytest

from skyphos.errors import BadInput
from skyphos.graph import rmat


@pytest.mark.parametrize("parts", [2, 3, 7])
def test_shares_make_up_the_same_graph(parts: int) -> None:
    whole = rmat(14, 9, seed=4)
    shares = [rmat(14, 9, seed=4, part=part, parts=parts) for part in range(parts)]
    assert np.array_equal(np.concatenate([share.source for share in shares]), whole.source)
    assert np.array_equal(np.concatenate([share.target for share in shares]), whole.target)


def test_seeds_differ() -> None:
    assert not np.array_equal(rmat(10, seed=1).source, rmat(10, seed=2).source)


def test_chances_of_the_quarters() -> None:
    edges = rmat(12, 32, seed=1, scramble=False)
    upper, left = edges.source < 2048, edges.target < 2048
    found = [np.mean(upper & left), np.mean(upper & ~left), np.mean(~upper & left), np.mean(~upper & ~left)]
    # 131,072 edges: five standard deviations are below 0.007.
    assert np.allclose(found, [0.57, 0.19, 0.19, 0.05], atol=0.007)


def test_scrambling_only_renames() -> None:
    plain, scrambled = rmat(10, seed=3, scramble=False), rmat(10, seed=3)
    degrees = [np.sort(np.bincount(edges.source, minlength=1024)) for edges in (plain, scrambled)]
    assert np.array_equal(*degrees)
    assert not np.array_equal(plain.source, scrambled.source)


@pytest.mark.parametrize(
    "arguments", [{"scale": 0}, {"scale": 41}, {"edge_factor": 0}, {"a": 0.9}, {"b": -0.1}, {"part": 1}]
)
def test_bad_arguments(arguments: dict) -> None:
    with pytest.raises(BadInput):
        rmat(**({"scale": 4} | arguments))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"scale": 2.5}, "scale must be a whole number"),
        ({"scale": "10"}, "scale must be a whole number"),
        ({"scale": 5, "edge_factor": None}, "edge_factor must be a whole number"),
        ({"scale": 5, "seed": -1}, "seed must be at least 0"),
        ({"scale": 5, "a": "x"}, "a must be a number"),
        ({"scale": 5, "a": float("nan")}, "a must be a number"),
        ({"scale": 5, "scramble": "no"}, "scramble must be True or False"),
        ({"scale": 5, "parts": 1.5}, "parts must be a whole number"),
    ],
)
def test_settings_that_are_not_understood(options: dict, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        rmat(**options)
    assert len(rmat(5.0, np.int64(2))) == 64  # type: ignore[arg-type]
