"""The timed part of a call: from the agreed start to the result.

Other measures, such as the overlap of a call with a computation, belong in this module.
"""

from __future__ import annotations

import time
from typing import Any

from .contenders import Contender


def latency(contender: Contender, given: Any) -> tuple[float, float, Any]:
    """Start and end of the call on this rank (seconds of the machine's clock), and its result."""
    begin = time.monotonic()
    result = contender.run(given)
    return begin, time.monotonic(), result
