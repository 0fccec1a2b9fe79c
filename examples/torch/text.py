"""Words as numbers, and sentences as tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

__all__ = ["PAD", "Vocabulary", "padded"]

#: Number of the padding after a sentence's end. Losses ignore it (`ignore_index`).
PAD = 0


class Vocabulary:
    """Words and their numbers: the padding, then the words in ``named``, then the others by frequency.

    Parameters
    ----------
    sentences : iterable of sequences of str
    named : sequence of str
        Words with the numbers 1, 2, …; the first stands for unknown words.
    at_least : int
        Least occurrences of a word that gets a number.

    Examples
    --------
    >>> words = Vocabulary([["a", "b", "a"]], ["<unk>"], at_least=2)
    >>> words.numbers(["b", "a"]), words.words([2])
    ([1, 2], ['a'])
    """

    def __init__(self, sentences: Iterable[Sequence[str]], named: Sequence[str], at_least: int = 1) -> None:
        counts = Counter(word for sentence in sentences for word in sentence)
        # Equally frequent words are sorted by name, for the same numbers on all ranks and in all runs.
        known = sorted((word for word in counts if counts[word] >= at_least), key=lambda word: (-counts[word], word))
        self._words = ["<pad>", *named, *(word for word in known if word not in named)]
        self._numbers = {word: number for number, word in enumerate(self._words)}

    def __len__(self) -> int:
        return len(self._words)

    def numbers(self, words: Sequence[str]) -> list[int]:
        """Numbers of words."""
        return [self._numbers.get(word, 1) for word in words]

    def words(self, numbers: Sequence[int]) -> list[str]:
        """Words of numbers."""
        return [self._words[number] for number in numbers]


def padded(rows: Sequence[Sequence[int]]) -> Tensor:
    """Rows of numbers as one tensor, padded with `PAD`."""
    found = torch.full((len(rows), max(map(len, rows))), PAD)
    for number, row in enumerate(rows):
        found[number, : len(row)] = torch.tensor(row)
    return found
