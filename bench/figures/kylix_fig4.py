"""*Kylix*, Fig. 4: density against the scaling factor of a power law, for several exponents.

    f(λ) = 1/n sum over r = 1..n of (1 - exp(-λ r^-α))                 (Proposition 4.1)

drawn against λ/λ_0.9, where f(λ_0.9) = 0.9. The union of K ranks' sets has the factor Kλ, so the curve is what
`skyphos.planning.union_entries` gives for (fractional) numbers of ranks. Beside it: unions of random index
sets, each index r with probability 1 - exp(-λ r^-α), in a space that fits memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from skyphos.planning import union_entries

from .style import COLOURS, MARKERS, Log, new

TITLE = "Kylix Fig. 4: density against scaling factor"
NEEDS_ROOT = False
N = 60_000_000
DRAWN_N = 100_000
ALPHAS = (0.5, 1.0, 1.5, 2.0)
REFERENCE = 0.9
CONFIDENCE = 4.5  # standard errors: a correct model exceeds this at any point in less than one of 1,000 runs
#: λ/λ_0.9 of one set, and the number of united sets.
SMALLEST, SETS = 0.002, (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


def density(scaled: npt.ArrayLike, n: int, alpha: float) -> npt.NDArray[np.float64]:
    """f at multiples of λ_0.9."""
    multiples = np.atleast_1d(np.asarray(scaled, np.float64)).tolist()
    return np.asarray(union_entries(multiples, n, REFERENCE * n, model="power_law", alpha=alpha)) / n


def factor(alpha: float, n: int) -> float:
    """λ_0.9 by bisection of the exact sum."""
    low, high = -50.0, 50.0 + 3 * alpha * float(np.log(n))
    powers = np.arange(1, n + 1, dtype=np.float64) ** -alpha
    for _ in range(80):
        middle = (low + high) / 2
        found = float(-np.expm1(-np.exp(middle) * powers).mean())
        low, high = (middle, high) if found < REFERENCE else (low, middle)
    return float(np.exp((low + high) / 2))


def measure(quick: bool, log: Log) -> dict[str, Any]:
    """The curves, and the densities of unions of drawn sets beside those that the model predicts."""
    n, sets = (2_000, SETS[:6]) if quick else (DRAWN_N, SETS)
    rng = np.random.default_rng(4)
    grid = np.geomspace(1e-4, 2, 120)
    found = []
    for alpha in ALPHAS:
        chances = -np.expm1(-SMALLEST * factor(alpha, n) * np.arange(1, n + 1, dtype=np.float64) ** -alpha)
        drawn = [_drawn(rng, chances, count, alpha) for count in sets]
        found.append(
            {
                "alpha": alpha,
                "curve": density(grid, N, alpha).tolist(),
                "small_curve": density(grid, n, alpha).tolist(),
                "drawn": drawn,
            }
        )
        worst = max(abs(p["drawn"] - p["model"]) / p["spread"] for p in drawn)
        log(f"α = {alpha:g}: {len(sets)} unions, at most {worst:.1f} standard errors from the curve")
    return {"n": N, "drawn_n": n, "scaled": grid.tolist(), "exponents": found}


def _drawn(rng: np.random.Generator, chances: npt.NDArray[np.float64], sets: int, alpha: float) -> dict[str, Any]:
    """The union of ``sets`` random sets; raises if it is too far from the model."""
    n = len(chances)
    union = np.zeros(n, np.bool_)
    for _ in range(sets):
        union |= rng.random(n) < chances
    held = 1 - (1 - chances) ** sets
    spread = float(np.sqrt((held * (1 - held)).sum())) / n
    scaled = SMALLEST * sets
    model, got = float(density(scaled, n, alpha)[0]), float(union.mean())
    if abs(got - model) > CONFIDENCE * spread:
        raise RuntimeError(f"α = {alpha:g}, {sets} sets: density {got:.6f}, not {model:.6f}")
    return {"sets": sets, "scaled": scaled, "model": model, "drawn": got, "spread": spread}


def draw(entry: dict[str, Any]) -> Any:
    """All densities on the left; low densities on the right, with both axes logarithmic."""
    figure, axes = new(2, width=10.5, height=4.8)
    grid = np.asarray(entry["scaled"])
    for number, found in enumerate(entry["exponents"]):
        look = {"color": COLOURS[2 * number], "zorder": 3}
        for each in axes:
            each.plot(grid, found["curve"], linewidth=1.5, label=f"α = {found['alpha']:g}", **look)
            each.plot(grid, found["small_curve"], linewidth=1, linestyle=":", **look)
            each.plot(
                [p["scaled"] for p in found["drawn"]],
                [p["drawn"] for p in found["drawn"]],
                MARKERS[number],
                markersize=6,
                markerfacecolor="none",
                **look,
            )
    axes[0].set_xlim(0, 1.1)
    axes[0].set_ylim(0, 1)
    axes[1].set_xscale("log")
    axes[1].set_yscale("log")
    axes[1].set_xlim(1e-3, 0.3)
    axes[1].set_ylim(1e-3, 1)
    axes[1].set_title("low densities, logarithmic", fontsize=10)
    axes[0].set_title("all densities", fontsize=10)
    for each in axes:
        each.set_xlabel(r"$\lambda / \lambda_{0.9}$")
        each.set_ylabel(r"density $f(\lambda)$")
    handles, names = axes[0].get_legend_handles_labels()
    small = f"n = {entry['drawn_n']:,}"
    (dotted,) = axes[0].plot([], [], color="black", linewidth=1, linestyle=":")
    (mark,) = axes[0].plot([], [], "o", color="black", markerfacecolor="none", markersize=6)
    figure.legend(
        handles=[*handles, dotted, mark],
        labels=[*(f"{name}, n = {entry['n'] // 10**6} M" for name in names), small, f"drawn sets, {small}"],
        loc="outside lower center",
        ncols=3,
        fontsize=8.5,
        frameon=False,
    )
    figure.suptitle(TITLE, fontsize=12, fontweight="bold")
    return figure
