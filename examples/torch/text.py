"""Words as numbers, and sentences as tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

__all__ = ["PAD", "Vocabulary", "padded"]

#: What fills a tensor after a sentence's end. Losses leave it out (`ignore_index`).
PAD = 0


class Vocabulary:
    """Words and their numbers, the first being those named here, in this order, after the padding.

    Parameters
    ----------
    sentences : iterable of sequences of str
    named : sequence of str
        Words that have numbers 1, 2, …; the first is what stands for any word that is not known.
    at_least : int
        How often a word must be there to get a number.

    Examples
    --------
    >>> words = Vocabulary([["a", "b", "a"]], ["<unk>"], at_least=2)
    >>> words.numbers(["b", "a"]), words.words([2])
    ([1, 2], ['a'])
    """

    def __init__(self, sentences: Iterable[Sequence[str]], named: Sequence[str], at_least: int = 1) -> None:
        counts = Counter(word for sentence in sentences for word in sentence)
        # By name where equally frequent: the same numbers on all ranks and in all runs.
        known = sorted((word for word in counts if counts[word] >= at_least), key=lambda word: (-counts[word], word))
        self._words = ["<pad>", *named, *(word for word in known if word not in named)]
        self._numbers = {word: number for number, word in enumerate(self._words)}

    def __len__(self) -> int:
        return len(self._words)

    def numbers(self, words: Sequence[str]) -> list[int]:
        """The words' numbers."""
        return [self._numbers.get(word, 1) for word in words]

    def words(self, numbers: Sequence[int]) -> list[str]:
        """The numbers' words."""
        return [self._words[number] for number in numbers]


def padded(rows: Sequence[Sequence[int]]) -> Tensor:
    """Rows of numbers as one tensor, filled up with `PAD`."""
    found = torch.full((len(rows), max(map(len, rows))), PAD)
    for number, row in enumerate(rows):
        found[number, : len(row)] = torch.tensor(row)
    return found
