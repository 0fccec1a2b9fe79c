"""TLS settings: the files that a rank needs, from arguments or variables.

``docs/threat-model.md`` says what they protect, and what not. ``skyphos certificates`` makes them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Union

from ..errors import BadInput
from ..inputs import variables

__all__ = ["TLS"]

PathName = Union[str, "os.PathLike[str]"]

#: Variables that name the files, in the order of :class:`TLS`.
_VARIABLES = ("SKYPHOS_TLS_AUTHORITY", "SKYPHOS_TLS_CERTIFICATE", "SKYPHOS_TLS_KEY")


@dataclass(frozen=True)
class TLS:
    """PEM files with which a rank encrypts its messages to the other ranks.

    All ranks of a group have such files, or none.

    Attributes
    ----------
    authority : path
        Certificates of the authorities that have signed those of all ranks.
    certificate : path
        This rank's certificate, for the name ``skyphos``, followed by intermediate certificates if there are any.
    key : path
        Its private key, not encrypted. Only the user that runs the ranks should be able to read it.

    Examples
    --------
    >>> import skyphos as sky
    >>> tls = sky.TLS(authority="keys/authority.pem", certificate="keys/a.pem", key="keys/a.key")
    >>> sky.init(tls=tls)
    Traceback (most recent call last):
    ...
    skyphos.errors.BadInput: TLS of rank 0: the file keys/authority.pem: No such file or directory (os error 2)
    """

    authority: PathName
    certificate: PathName
    key: PathName

    def __post_init__(self) -> None:
        for name in ("authority", "certificate", "key"):
            path = getattr(self, name)
            if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
                raise BadInput(f"TLS: {name} must be the path of a file, not {path!r}")


def files(tls: TLS | None, environ: Mapping[str, str] | None = None) -> tuple[str, str, str] | None:
    """Paths of authority, certificate and key: from the argument, else from the environment; None without encryption.

    Examples
    --------
    >>> from skyphos.launch.tls import files
    >>> files(None, {})
    >>> files(None, {"SKYPHOS_TLS_AUTHORITY": "ca.pem"})
    Traceback (most recent call last):
    ...
    skyphos.errors.BadInput: SKYPHOS_TLS_AUTHORITY is set but SKYPHOS_TLS_CERTIFICATE and SKYPHOS_TLS_KEY are not: set \
all three, or none for a group without encryption
    """
    if tls is None:
        named = [variables.text(name, environ) or "" for name in _VARIABLES]
        if not any(named):
            return None
        if not all(named):
            here = [name for name, path in zip(_VARIABLES, named, strict=True) if path]
            absent = [name for name in _VARIABLES if name not in here]
            raise BadInput(
                f"{_and(here)} set but {_and(absent)} not: set all three, or none for a group without encryption"
            )
        tls = TLS(*named)
    if not isinstance(tls, TLS):
        raise BadInput(f"tls must be skyphos.TLS(authority=, certificate=, key=), not {tls!r}")
    return os.fspath(tls.authority), os.fspath(tls.certificate), os.fspath(tls.key)


def _and(names: list[str]) -> str:
    return " and ".join(names) + (" is" if len(names) == 1 else " are")
