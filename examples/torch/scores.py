"""Metrics of sequences, as counts that can be added up over ranks: spans, n-grams, edits."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

__all__ = ["bleu", "bleu_counts", "edits", "f1", "span_counts", "spans"]

#: Longest n-grams that BLEU counts.
_LONGEST = 4


def spans(tags: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """Kind, start and end of each span that tags B-kind, I-kind and O make, as conlleval reads them.

    An I- tag that does not continue a span of its kind begins one.

    Examples
    --------
    >>> list(spans(["B-city", "I-city", "O", "I-day"]))
    [('city', 0, 2), ('day', 3, 4)]
    """
    kind, start = "", 0
    for place, tag in enumerate([*tags, "O"]):
        if kind and tag != f"I-{kind}":
            yield kind, start, place
            kind = ""
        if not kind and tag != "O":
            kind, start = tag[2:], place


def span_counts(found: Sequence[str], true: Sequence[str]) -> dict[str, int]:
    """Numbers of found spans, true spans, and spans in both (same kind, start and end) of a sentence."""
    ours, theirs = set(spans(found)), set(spans(true))
    return {"spans_found": len(ours), "spans_true": len(theirs), "spans_right": len(ours & theirs)}


def f1(sums: Mapping[str, float]) -> float:
    """Harmonic mean of precision and recall, in percent."""
    return 200 * sums["spans_right"] / max(1, sums["spans_found"] + sums["spans_true"])


def bleu_counts(found: Sequence[str], true: Sequence[str]) -> dict[str, int]:
    """Counts for BLEU of one sentence: lengths, and n-grams that were found and are in the reference."""
    counts = {"found_words": len(found), "true_words": len(true)}
    for n in range(1, _LONGEST + 1):
        ours, theirs = _ngrams(found, n), _ngrams(true, n)
        counts[f"ngrams_{n}"] = sum(ours.values())
        counts[f"matches_{n}"] = sum((ours & theirs).values())
    return counts


def bleu(sums: Mapping[str, float]) -> float:
    """BLEU of a corpus with one reference (Papineni et al., 2002, section 2.3), in percent, unsmoothed.

    The geometric mean of precisions p_n, n ≤ 4, times exp(1 - r/c) where the c words found are fewer than the
    references' r.
    """
    matches = [sums[f"matches_{n}"] for n in range(1, _LONGEST + 1)]
    if not all(matches):
        return 0.0
    logs = sum(math.log(match / sums[f"ngrams_{n}"]) for n, match in enumerate(matches, 1)) / _LONGEST
    return 100 * math.exp(logs + min(0.0, 1 - sums["true_words"] / sums["found_words"]))


def _ngrams(words: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[start : start + n]) for start in range(len(words) - n + 1))


def edits(found: Sequence[object], true: Sequence[object]) -> int:
    """Fewest insertions, deletions and replacements that turn one into the other (Levenshtein).

    Examples
    --------
    >>> edits("sitting", "kitten")
    3
    """
    row = list(range(len(true) + 1))
    for i, ours in enumerate(found, 1):
        before, row[0] = row[0], i
        for j, theirs in enumerate(true, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (ours != theirs))
    return row[-1]
