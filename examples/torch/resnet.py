"""Residual networks for pictures of 32 by 32 (He et al., 2015).

A block is two convolutions, each with its batch norm, and a shortcut around them. If a stage halves the picture and
doubles the channels, the shortcut either takes every other pixel and adds channels of zeros (the paper's option A, for
CIFAR-10) or is a convolution of one pixel (option B, as in ResNet-18).
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad, relu

__all__ = ["ResNet"]


class ResNet(nn.Module):
    """A residual network; called with pictures and classes, it returns the sum of their losses.

    Parameters
    ----------
    blocks : list of int
        Blocks of each stage.
    channels : int
        Channels of the first stage; each further stage has twice as many.
    projected : bool
        Option B instead of A.
    """

    def __init__(self, blocks: list[int], channels: int, *, projected: bool) -> None:
        super().__init__()
        layers: list[nn.Module] = [_convolution(3, channels), nn.BatchNorm2d(channels), nn.ReLU()]
        channels_in = channels
        for stage, count in enumerate(blocks):
            for block in range(count):
                channels_out, stride = channels << stage, 2 if stage and not block else 1
                layers.append(Block(channels_in, channels_out, stride, projected=projected))
                channels_in = channels_out
        self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels_in, 10))

    def forward(self, pictures: Tensor, classes: Tensor) -> Tensor:
        """The sum of the losses."""
        return cross_entropy(self.layers(pictures), classes, reduction="sum")


class Block(nn.Module):
    """Two convolutions and the shortcut around them."""

    def __init__(self, channels_in: int, channels_out: int, stride: int, *, projected: bool) -> None:
        super().__init__()
        self.first, self.first_norm = _convolution(channels_in, channels_out, stride), nn.BatchNorm2d(channels_out)
        self.second, self.second_norm = _convolution(channels_out, channels_out), nn.BatchNorm2d(channels_out)
        self.stride, self.added_channels = stride, channels_out - channels_in
        self.around: nn.Module = nn.Identity()
        if projected and self.added_channels:
            self.around = nn.Sequential(
                _convolution(channels_in, channels_out, stride, size=1), nn.BatchNorm2d(channels_out)
            )

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        y = self.second_norm(self.second(relu(self.first_norm(self.first(x)))))
        if self.added_channels and isinstance(self.around, nn.Identity):
            x = pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.added_channels))
        return relu(y + self.around(x))


def _convolution(channels_in: int, channels_out: int, stride: int = 1, size: int = 3) -> nn.Conv2d:
    found = nn.Conv2d(channels_in, channels_out, size, stride, padding=size // 2, bias=False)
    nn.init.kaiming_normal_(found.weight, mode="fan_out")
    return found
