"""Quantisation of an allreduce."""

from typing import final

@final
class Quantize:
    def __new__(cls, bits: int, bucket: int, where: str, scale: str, seed: int) -> Quantize: ...
