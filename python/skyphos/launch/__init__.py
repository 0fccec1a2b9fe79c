"""Launch: starting the ranks of a group, here or over ssh, and how a process finds its rank and its group."""

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .bootstrap import Bootstrap, discover
    from .hosts import SSH, run_hosts
    from .local import HostRanks, command_line, cores, rank_environment, run_local, start_ranks

__all__ = [
    "SSH",
    "Bootstrap",
    "HostRanks",
    "command_line",
    "cores",
    "discover",
    "rank_environment",
    "run_hosts",
    "run_local",
    "start_ranks",
]

_MODULES = {"Bootstrap": "bootstrap", "discover": "bootstrap", "SSH": "hosts", "run_hosts": "hosts"}


def __getattr__(name: str) -> Any:
    """Import the launcher when one of its names is used: ranks that were started need only :mod:`.bootstrap`."""
    if name == "Place":
        warnings.warn(
            "skyphos.launch.Place is HostRanks now; the next version drops the old name", DeprecationWarning, 2
        )
        name = "HostRanks"
    if name in __all__:
        return getattr(import_module(f".{_MODULES.get(name, 'local')}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
