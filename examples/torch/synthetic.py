"""Generated sounds that have the difficulties of speech, so that no recordings are needed.

A phone is a path between two points of feature space. An utterance is a Markov chain of phones with varying durations.
Neighbouring phones overlap; each speaker's voice is shifted and has its own tempo; there is noise. The same seed and
number give the same utterance everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

__all__ = ["FEATURES", "PHONES", "Utterance", "utterance"]

PHONES, FEATURES = 32, 20
#: How many phones may follow a phone; after its first phone an utterance has 4 to 11 more; a phone lasts 3 to 6 frames,
#: times the speaker's tempo.
FOLLOWERS, LENGTHS, DURATIONS = 8, (4, 12), (3, 7)
#: Standard deviations of the speaker's shift and of the noise, relative to that of the phones' points.
VOICE, NOISE = 0.3, 0.4


@dataclass(frozen=True)
class Utterance:
    """Phones, and frames of shape (frames, features)."""

    phones: list[int]
    frames: NDArray[np.float32]


@cache
def _language() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Start and end of each phone in feature space, and the phones that may follow it."""
    random = np.random.default_rng(2019)
    paths = random.normal(size=(PHONES, 2, FEATURES))
    return paths, np.array([random.permutation(PHONES)[:FOLLOWERS] for _ in range(PHONES)])


def utterance(seed: int, number: int) -> Utterance:
    """The utterance of this seed and number.

    Examples
    --------
    >>> one = utterance(1, 7)
    >>> one.frames.shape[1], one.phones == utterance(1, 7).phones
    (20, True)
    """
    random = np.random.default_rng([seed, number])
    paths, followers = _language()
    phones = [int(random.integers(PHONES))]
    for _ in range(random.integers(*LENGTHS)):
        phones.append(int(random.choice(followers[phones[-1]])))
    stretch = random.uniform(0.8, 1.25)  # the speaker's tempo
    parts = []
    for phone in phones:
        along = np.linspace(0, 1, max(2, round(stretch * random.integers(*DURATIONS))))[:, None]
        parts.append((1 - along) * paths[phone, 0] + along * paths[phone, 1])
    frames = np.concatenate(parts)
    before, after = np.vstack([frames[:1], frames[:-1]]), np.vstack([frames[1:], frames[-1:]])
    frames = (before + 2 * frames + after) / 4
    frames += random.normal(scale=VOICE, size=FEATURES) + random.normal(scale=NOISE, size=frames.shape)
    return Utterance(phones, frames.astype(np.float32))
