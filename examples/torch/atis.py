"""ATIS: intents and slots of travellers' questions, by an encoder and a decoder of two LSTM cells.

    torchrun --nproc-per-node 2 examples/torch/atis.py --compress topk --preset short --out topk.json
    skyphos run -n 2 examples/torch/atis.py
    python examples/torch/atis.py --preset smoke

The network of *SparCML*, section 8.3: k = 2 of 512 entries, values not quantised; preset ``full`` has 20 million
parameters (80 MB), batches of 560 words on all ranks together and 20 epochs (its Table 3). CNTK's script for ATIS, on
which the paper builds, has batches of 70 words: eight ranks make 560. CNTK's optimiser is a kind of AdaGrad; ours is
SGD with momentum, as in the paper's Algorithm 2: SGD applies gradients that waited in a residual in full, while an
optimiser that divides by their size applies less of them the longer they waited.

Data: lines ``BOS words EOS<TAB>tags``, the last tag of which, at EOS, is the intent. An utterance may have several
("a#b"): the model learns the more frequent one, and any of them counts as right (Liu and Lane, 2016).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from batches import share
from options import Choices, Settings, options
from scores import f1, span_counts
from text import PAD, Vocabulary, padded
from training import Task, train

_COMMON = Settings(epochs=20, batch=560, lr=1.0, milestones=(0.7, 0.9), clip=5.0, k=2)
PRESETS = {
    "full": replace(_COMMON, model={"hidden": 800, "embedding": 300}),
    "short": replace(_COMMON, density_warm_up=2, model={"hidden": 160, "embedding": 100}),
    "smoke": replace(_COMMON, epochs=2, batch=280, limit=240, model={"hidden": 32, "embedding": 32}),
}

#: Weight of the intent's loss: an utterance has one intent and a dozen tags, and both matter equally.
INTENT_WEIGHT = 5
#: Size of a tag's embedding.
TAG_EMBEDDING = 64


@dataclass(frozen=True)
class Utterance:
    """Words, a tag for each, and intents."""

    words: list[str]
    tags: list[str]
    intents: list[str]


def read(path: Path) -> list[Utterance]:
    """The utterances of a file. All digits become 0, because the presence of a time matters, not its value."""
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        left, _, right = line.partition("\t")
        words, tags = left.split(), right.split()
        if len(words) != len(tags) or len(words) < 3 or (words[0], words[-1]) != ("BOS", "EOS"):
            raise click.ClickException(f"{path}, line {number}: expected BOS, words, EOS, a tab, and as many tags")
        words = [re.sub(r"\d", "0", word) for word in words[1:-1]]
        found.append(Utterance(words, tags[1:-1], tags[-1].split("#")))
    return found


class Tagger(nn.Module):
    """An encoder that reads the words, and a decoder that outputs a tag for each of them.

    The decoder starts in the encoder's last state, which depends on all words. At each word it gets the encoder's
    output, the word and the previous tag. The intent is computed from the encoder's last state.
    """

    def __init__(self, words: int, tags: int, intents: int, hidden: int, embedding: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, embedding, padding_idx=PAD)
        self.tags = nn.Embedding(tags, TAG_EMBEDDING, padding_idx=PAD)
        self.encoder = nn.LSTM(embedding, hidden, num_layers=2, batch_first=True, dropout=0.3)
        input_size = hidden + embedding + TAG_EMBEDDING
        self.decoder = nn.LSTM(input_size, hidden, num_layers=2, batch_first=True, dropout=0.3)
        self.dropout = nn.Dropout(0.3)
        self.tag = nn.Linear(hidden, tags)
        self.intent = nn.Linear(hidden, intents)

    def encode(self, words: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Each word with the encoder's output at it, and the encoder's last state."""
        lengths, embedded = (words != PAD).sum(1), self.dropout(self.words(words))
        packed = pack_padded_sequence(embedded, lengths, batch_first=True, enforce_sorted=False)
        encoded, state = self.encoder(packed)
        return torch.cat([embedded, self.dropout(pad_packed_sequence(encoded, batch_first=True)[0])], 2), state

    def forward(self, words: Tensor, tags: Tensor, intents: Tensor) -> Tensor:
        """The sum of the losses of all tags and, times `INTENT_WEIGHT`, of the intents."""
        seen, state = self.encode(words)
        before = self.tags(nn.functional.pad(tags[:, :-1], (1, 0), value=PAD))
        decoded, _ = self.decoder(torch.cat([seen, before], 2), state)
        tag_loss = cross_entropy(self.tag(self.dropout(decoded)).mT, tags, ignore_index=PAD, reduction="sum")
        intent_loss = cross_entropy(self.intent(self.dropout(state[0][-1])), intents, reduction="sum")
        return tag_loss + INTENT_WEIGHT * intent_loss

    def decode(self, words: Tensor) -> tuple[Tensor, Tensor]:
        """The best intent, and greedily decoded tags."""
        seen, state = self.encode(words)
        intents = self.intent(state[0][-1]).argmax(1)
        tag = torch.full((len(words), 1), PAD)
        found = []
        for place in range(words.shape[1]):
            decoded, state = self.decoder(torch.cat([seen[:, place : place + 1], self.tags(tag)], 2), state)
            logits = self.tag(decoded)
            logits[..., PAD] = -torch.inf
            tag = logits.argmax(2)
            found.append(tag)
        return intents, torch.cat(found, 1)


class Atis(Task):
    """The task: utterances and their metrics."""

    name = "atis"
    headline = ("intent_accuracy", "slot_f1")

    def __init__(self, folder: Path, settings: Settings) -> None:
        self._train = read(folder / "atis.train.w-intent.iob")[: settings.limit]
        self._test = read(folder / "atis.test.w-intent.iob")[: settings.test_limit]
        self._settings = settings
        # Words that occur once count as unknown, which trains the embedding of unknown words.
        self._words = Vocabulary([one.words for one in self._train], ["<unk>"], at_least=2)
        self._tags = Vocabulary([one.tags for one in self._train], ["O"])
        counts = Counter(intent for one in self._train for intent in one.intents)
        self._intents = sorted(counts)
        self._intent = [self._intents.index(max(one.intents, key=lambda name: counts[name])) for one in self._train]
        self.counts = self.lengths = [len(one.words) for one in self._train]

    def model(self) -> nn.Module:
        """The network."""
        return Tagger(len(self._words), len(self._tags), len(self._intents), **self._settings.model)

    def units(self, samples: Sequence[int]) -> int:
        """Number of tags, including the intent."""
        return sum(self.counts[sample] + 1 for sample in samples)

    def batch(self, samples: Sequence[int], epoch: int) -> tuple[Tensor, ...]:
        """Words, tags and intents."""
        words = padded([self._words.numbers(self._train[sample].words) for sample in samples])
        tags = padded([self._tags.numbers(self._train[sample].tags) for sample in samples])
        return words, tags, torch.tensor([self._intent[sample] for sample in samples])

    def sums(self, model: nn.Module, rank: int, size: int) -> Mapping[str, float]:
        """Spans and intents over a share of the test utterances."""
        assert isinstance(model, Tagger)
        sums: Counter[str] = Counter(utterances=0, intents_right=0, spans_found=0, spans_true=0, spans_right=0)
        mine = share(sorted(self._test, key=lambda one: len(one.words)), rank, size)
        for start in range(0, len(mine), 64):
            some = mine[start : start + 64]
            intents, tags = model.decode(padded([self._words.numbers(one.words) for one in some]))
            for one, intent, row in zip(some, intents.tolist(), tags.tolist(), strict=True):
                sums.update(span_counts(self._tags.words(row[: len(one.words)]), one.tags))
                sums.update(utterances=1, intents_right=int(self._intents[intent] in one.intents))
        return sums

    def metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Accuracy and F1, in percent."""
        return {"intent_accuracy": 100 * sums["intents_right"] / sums["utterances"], "slot_f1": f1(sums)}


@click.command()
@options
def main(choices: Choices) -> None:
    """Train on ATIS: intent and slots."""
    run, folder = choices.run(PRESETS), choices.where("atis")
    train(lambda: Atis(folder, run.settings), run)


if __name__ == "__main__":
    main()
