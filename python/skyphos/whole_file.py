"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from .errors import BadInput

__all__ = ["replacing"]


@contextmanager
def replacing(path: str) -> Iterator[BinaryIO]:
    """Open a file that takes its name only when it is complete; after an error nothing is left of it.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from skyphos.whole_file import replacing
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(folder + "/a.txt") as file:
    ...         _ = file.write(b"all of it")
    ...     pathlib.Path(folder, "a.txt").read_bytes()
    b'all of it'
    """
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.{secrets.token_hex(4)}")
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}") from None
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)
