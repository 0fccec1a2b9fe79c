"""What is timed of a call. Here: from the agreed beginning to the result.

Another measure, such as how much of a call hides behind a computation, has its place beside this one.
"""

from __future__ import annotations

import time
from typing import Any

from .contenders import Contender


def latency(contender: Contender, given: Any) -> tuple[float, float, Any]:
    """When the call began and ended on this rank (seconds of the machine's one clock), and its result."""
    begin = time.monotonic()
    result = contender.run(given)
    return begin, time.monotonic(), result
