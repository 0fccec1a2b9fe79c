"""``OuterLinear`` and ``OuterAttention``: layers that exchange the factors of their weight gradients.

Each class replaces its base class: parameters, names and results are the same. In backward a weight gets the output
gradients and inputs instead of their product.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import BadInput
from .exchange import Weight

__all__ = ["OuterAttention", "OuterLayer", "OuterLinear"]


class OuterLayer(nn.Module):
    """Base class of these layers: knows which of their weights are exchanged."""

    #: Weights by the parameter's name in the layer. None in copies of a model, which are ordinary.
    outer_weights: dict[str, Weight | None]

    @staticmethod
    def weights_of(module: Any) -> list[str]:
        """Names of the parameters of an original module that can be exchanged. Empty if it cannot be replaced."""
        raise NotImplementedError

    def outer(self, name: str) -> Weight | None:
        """The weight, if this use of it is exchanged. None for an ordinary use."""
        weight = self.outer_weights.get(name)
        if weight is None or not torch.is_grad_enabled():
            return None
        parameter = self.get_parameter(name)
        if parameter is not weight.parameter:
            raise BadInput(f"{weight.name} was replaced by another parameter after outer_product was called")
        return weight if parameter.requires_grad else None

    def is_chosen(self) -> bool:
        """Whether any weight of the layer is exchanged. In a copied model none is."""
        return any(weight is not None for weight in self.outer_weights.values())

    def is_outer(self) -> bool:
        """Whether any weight is exchanged in this use."""
        return any(self.outer(name) is not None for name in self.outer_weights)


class _Linear(torch.autograd.Function):
    """x Wᵀ + bias, with some rows of W or (None) all."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Tensor, bias: Tensor | None, use: tuple[Weight, slice | None]) -> Tensor:
        ctx.save_for_backward(x, matrix)
        ctx.weight, ctx.rows = _, rows = use
        result: Tensor = F.linear(x, matrix if rows is None else matrix[rows], bias)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        ctx.weight.refuse_double_backward()
        x, matrix = ctx.saved_tensors
        wants_x, wants_matrix, wants_bias, *_ = ctx.needs_input_grad
        a = gradient.reshape(-1, gradient.shape[-1])
        part = matrix if ctx.rows is None else matrix[ctx.rows]
        of_matrix = None
        if wants_matrix:
            whole = a
            if ctx.rows is not None:
                whole = a.new_zeros(len(a), len(matrix))
                whole[:, ctx.rows] = a
            of_matrix = ctx.weight.gradient(whole, x.reshape(-1, x.shape[-1]).to(a.dtype))
        return (
            gradient @ part.to(gradient.dtype) if wants_x else None,
            of_matrix,
            a.sum(0) if wants_bias else None,
            None,
        )


def _linear(layer: OuterLayer, name: str, x: Tensor, bias: Tensor | None, rows: slice | None = None) -> Tensor:
    """``F.linear`` with some rows of a layer's weight, exchanged or ordinary."""
    weight, parameter = layer.outer(name), layer.get_parameter(name)
    result: Tensor
    if weight is None:
        result = F.linear(x, parameter if rows is None else parameter[rows], bias)
    else:
        result = _Linear.apply(x, parameter, bias, (weight, rows))
    return result


class OuterLinear(OuterLayer, nn.Linear):
    """:class:`torch.nn.Linear` that exchanges factors: a pair of rows for each row of the input."""

    @staticmethod
    def weights_of(module: Any) -> list[str]:
        return ["weight"]

    def forward(self, input: Tensor) -> Tensor:
        return _linear(self, "weight", input, self.bias)


class OuterAttention(OuterLayer, nn.MultiheadAttention):
    """:class:`torch.nn.MultiheadAttention` whose projections exchange factors.

    If query, key and value are one tensor, the packed projection is one use of its weight. Otherwise it is a use for
    each, padded with zeros, so the factors are longer than necessary.
    """

    @staticmethod
    def weights_of(module: Any) -> list[str]:
        if module.bias_k is not None or module.add_zero_attn:
            return []
        packed = module.in_proj_weight is not None
        inner = ["in_proj_weight"] if packed else ["q_proj_weight", "k_proj_weight", "v_proj_weight"]
        return [*inner, "out_proj.weight"]

    def forward(  # noqa: PLR0917  (as PyTorch's)
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        if not self.is_outer():
            ordinary: tuple[Tensor, Tensor | None] = super().forward(
                query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
            )
            return ordinary
        if is_causal and attn_mask is None:
            raise BadInput("is_causal=True describes attn_mask: pass that too")
        unbatched = query.dim() == 2
        # each of shape (batch, head, position, number)
        q, k, v = (self._heads(each, unbatched) for each in self._projected(query, key, value))
        mask = self._mask(q, k, key_padding_mask, attn_mask)
        dropout = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            scores = (q * self.head_dim**-0.5) @ k.transpose(-2, -1)
            weights = F.dropout(F.softmax(scores if mask is None else scores + mask, -1), dropout)
            found = weights @ v
        else:
            found = F.scaled_dot_product_attention(q, k, v, mask, dropout)
        found = found.transpose(1, 2).flatten(2)
        if not self.batch_first and not unbatched:
            found = found.transpose(0, 1)
        result = _linear(self, "out_proj.weight", found[0] if unbatched else found, self.out_proj.bias)
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        return result, weights[0] if unbatched and weights is not None else weights

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        """The projections of query, key and value."""
        size = self.embed_dim
        thirds = [slice(at * size, (at + 1) * size) for at in range(3)]
        biases = [None if self.in_proj_bias is None else self.in_proj_bias[part] for part in thirds]
        if self.in_proj_weight is None:
            names = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
            parts = zip(names, (query, key, value), biases, strict=True)
            return [_linear(self, name, x, bias) for name, x, bias in parts]
        if query is key and key is value:
            return list(_linear(self, "in_proj_weight", query, self.in_proj_bias).chunk(3, -1))
        first = _linear(self, "in_proj_weight", query, biases[0], thirds[0])
        if key is value:
            bias = None if self.in_proj_bias is None else self.in_proj_bias[size:]
            return [first, *_linear(self, "in_proj_weight", key, bias, slice(size, 3 * size)).chunk(2, -1)]
        rest = [_linear(self, "in_proj_weight", x, biases[at], thirds[at]) for at, x in ((1, key), (2, value))]
        return [first, *rest]

    def _heads(self, x: Tensor, unbatched: bool) -> Tensor:
        """Split into heads: (batch, head, position, number)."""
        if unbatched:
            x = x.unsqueeze(0)
        elif not self.batch_first:
            x = x.transpose(0, 1)
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def _mask(self, q: Tensor, k: Tensor, padding: Tensor | None, attention: Tensor | None) -> Tensor | None:
        """Both masks as one, which is added to scores of shape (batch, head, query, key)."""
        shapes = (q.shape[0], 1, 1, k.shape[2]), (-1, self.num_heads, q.shape[2], k.shape[2])
        found: Tensor | None = None
        for mask, shape in ((padding, shapes[0]), (attention, shapes[1])):
            if mask is None:
                continue
            if mask.dtype != torch.bool and not mask.is_floating_point():
                raise BadInput(f"an attention mask has bool or floats, not {mask.dtype}")
            added: Tensor = mask
            if mask.dtype == torch.bool:
                added = torch.zeros_like(mask, dtype=q.dtype).masked_fill_(mask, float("-inf"))
            added = added[None, None] if mask is attention and added.dim() == 2 else added.reshape(shape)
            found = added if found is None else found + added
        return found
