"""LocalGroup: the ranks of a group inside one process, and a function run on all of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import SkyphosError

if TYPE_CHECKING:
    from ..comm import Comm

__all__ = ["LocalGroup"]

T = TypeVar("T")

#: Seconds to wait for the other ranks after one raised an error that a collective may have raised on all of them.
_AGREED_S = 1.0


class LocalGroup(list["Comm"]):
    """The Comms of a group inside one process, by rank; :func:`skyphos.local` returns it."""

    def run(self, function: Callable[..., T], *arguments: Any) -> list[T]:
        """Run a function on every rank, each in a thread of its own.

        Parameters
        ----------
        function : callable
            Called with a rank's Comm, and ``arguments``.

        Returns
        -------
        list
            Results of the function, by rank.

        Raises
        ------
        Exception
            The first exception that the function raised on any rank. The group is then closed, so that no other rank
            waits for that one. It stays open if all ranks raised (:class:`BadInput` of a collective).

        Examples
        --------
        >>> import numpy as np, skyphos as sky
        >>> sky.local(3).run(lambda comm: comm.allreduce(comm.rank))
        [3, 3, 3]
        """
        results: list[Any] = [None] * len(self)
        errors: list[tuple[int, BaseException]] = []
        ended = threading.Condition()
        running = len(self)

        def body(process: int, comm: Comm) -> None:
            nonlocal running
            failed: BaseException | None = None
            try:
                results[process] = function(comm, *arguments)
            except BaseException as error:
                failed = error
            with ended:
                running -= 1
                if failed is not None:
                    errors.append((process, failed))
                ended.notify_all()
                all_ended = isinstance(failed, SkyphosError) and ended.wait_for(lambda: not running, _AGREED_S)
            if failed is not None and not all_ended:
                comm.close()

        threads = [threading.Thread(target=body, args=pair, name=f"rank {pair[0]}") for pair in enumerate(self)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except BaseException:  # Ctrl-C, which the other threads do not see
            self.close()
            for thread in threads:
                thread.join()
            raise
        if errors:
            process, error = errors[0]
            if hasattr(error, "add_note"):
                error.add_note(f"on rank {process} of {len(self)}")
            raise error
        return results

    def close(self) -> None:
        """Close all Comms."""
        for comm in self:
            comm.close()
