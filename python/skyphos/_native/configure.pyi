"""Index sets and settings of ``configure``."""

from typing import Any, final

import numpy as np
import numpy.typing as npt

@final
class IndexSets:
    def __new__(cls, contribute: npt.NDArray[np.integer[Any]], want: npt.NDArray[np.integer[Any]]) -> IndexSets: ...

@final
class ConfigureOptions:
    def __new__(
        cls,
        n: int | None = None,
        width: int = 1,
        *,
        degrees: list[int] | None = None,
        missing_identity: bool = False,
        min_packet_bytes: float | None = None,
        expected_nnz: int | None = None,
    ) -> ConfigureOptions: ...
    @property
    def width(self) -> int: ...
