"""An encoder and a decoder of two LSTM cells each, with attention of the decoder to all of the encoder's outputs.

Attention is Luong's (2015, sections 3.1 and 3.3): at each step the decoder's state h weighs the encoder's outputs S,
a = softmax(h W S), and tanh(V [a S; h]) gives the next word. It is also an input of the next step, so that the
decoder knows its previous attention.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from text import PAD, padded

__all__ = ["Attentive", "Memory", "targets", "until_end"]

#: Numbers of the words that begin and end the decoder's output, in every vocabulary of targets.
BEGIN, END = 2, 3

#: The encoder's output at each element, the mask of padding, and its last states.
Memory = tuple[Tensor, Tensor, tuple[Tensor, Tensor]]


class Attentive(nn.Module):
    """Outputs a sequence of words, given another sequence.

    Parameters
    ----------
    source : torch.nn.Module
        Turns each element of the input sequence into ``embedding`` numbers.
    targets : int
        Size of the output vocabulary, with padding, ``BEGIN`` and ``END``.
    hidden, embedding : int
    """

    def __init__(self, source: nn.Module, targets: int, hidden: int, embedding: int) -> None:
        super().__init__()
        self.source = source
        self.targets = nn.Embedding(targets, embedding, padding_idx=PAD)
        self.encoder = nn.LSTM(embedding, hidden, num_layers=2, batch_first=True, dropout=0.2)
        self.first = nn.LSTMCell(embedding + hidden, hidden)
        self.second = nn.LSTMCell(hidden, hidden)
        self.weigh = nn.Linear(hidden, hidden, bias=False)
        self.mix = nn.Linear(2 * hidden, hidden)
        self.word = nn.Linear(hidden, targets)
        self.dropout = nn.Dropout(0.2)

    def forward(self, given: Tensor, lengths: Tensor, targets: Tensor) -> Tensor:
        """The sum of the losses of all words but the first, ``BEGIN``, each predicted after the true previous words."""
        memory = self._encode(given, lengths)
        embedded = self.dropout(self.targets(targets[:, :-1]))
        mixed, state = self._begin(memory)
        states: list[Tensor] = []
        for place in range(embedded.shape[1]):
            mixed, state = self._step(embedded[:, place], mixed, state, memory)
            states.append(mixed)
        words = self.word(self.dropout(torch.stack(states, 1)))
        return cross_entropy(words.mT, targets[:, 1:], ignore_index=PAD, reduction="sum")

    def decode(self, given: Tensor, lengths: Tensor, longest: int) -> Tensor:
        """Greedily decoded words; those after ``END`` have no meaning."""
        memory = self._encode(given, lengths)
        mixed, state = self._begin(memory)
        word = torch.full((len(given),), BEGIN)
        ended = torch.zeros(len(given), dtype=torch.bool)
        words: list[Tensor] = []
        while len(words) < longest and not ended.all():
            mixed, state = self._step(self.targets(word), mixed, state, memory)
            word = self.word(mixed).argmax(1)
            ended |= word == END
            words.append(word)
        return torch.stack(words, 1)

    def _encode(self, given: Tensor, lengths: Tensor) -> Memory:
        embedded = self.dropout(self.source(given))
        packed = pack_padded_sequence(embedded, lengths, batch_first=True, enforce_sorted=False)
        encoded, state = self.encoder(packed)
        encoded, _ = pad_packed_sequence(encoded, batch_first=True)
        padding = torch.arange(encoded.shape[1]) >= lengths[:, None]
        return encoded, padding, state

    def _begin(self, memory: Memory) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The decoder starts with the encoder's last states, layer by layer, and without attention."""
        hidden, cell = memory[2]
        return torch.zeros_like(hidden[0]), (hidden[0], cell[0], hidden[1], cell[1])

    def _step(
        self, embedded: Tensor, mixed: Tensor, state: tuple[Tensor, ...], memory: Memory
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        encoded, padding, _ = memory
        first = self.first(torch.cat([embedded, mixed], 1), state[:2])
        second = self.second(self.dropout(first[0]), state[2:])
        scores = torch.bmm(encoded, self.weigh(second[0])[:, :, None])[:, :, 0]
        weights = scores.masked_fill(padding, -torch.inf).softmax(1)
        context = torch.bmm(weights[:, None], encoded)[:, 0]
        return torch.tanh(self.mix(torch.cat([context, second[0]], 1))), (*first, *second)


def targets(rows: Sequence[Sequence[int]]) -> Tensor:
    """The decoder's target sequences, from ``BEGIN`` to ``END``."""
    return padded([[BEGIN, *row, END] for row in rows])


def until_end(row: list[int]) -> list[int]:
    """The words before ``END``."""
    return row[: row.index(END)] if END in row else row
