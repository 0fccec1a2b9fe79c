"""Output files that appear complete or not at all.

A regular file is written under a temporary name in the same folder and renamed, with the mode and, if the system allows
it, the owner of the file that it replaces. A link is followed: its target is replaced, and the link stays. FIFOs,
devices, open descriptors (``/dev/stdout``) and files in folders that take no new names cannot be replaced by renaming;
they are written in place, when the content is complete.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO, cast

from ..errors import BadInput

__all__ = ["is_special", "replacing"]

_DESCRIPTOR = re.compile(r"/dev/fd/(\d+)|/proc/self/fd/(\d+)|/dev/std(?:in|out|err)")
_MAX_LINKS = 40
# Errors of making or renaming the temporary file after which the file itself may still be writable.
_IN_PLACE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY)


@contextmanager
def replacing(path: str) -> Iterator[BinaryIO]:
    """Open a file that gets its name only when it is complete; after an error nothing is left of it.

    Raises
    ------
    BadInput
        If it cannot be written; names the file.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from skyphos.files.whole_file import replacing
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(folder + "/a.txt") as file:
    ...         _ = file.write(b"all of it")
    ...     pathlib.Path(folder, "a.txt").read_bytes()
    b'all of it'
    """
    temporary = None
    try:
        target, number = _end_of_links(path)
        before = _stat(target) if number is None else None
        if before is not None and stat.S_ISREG(before.st_mode) and not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        file: BinaryIO | None = None
        if number is None and (before is None or stat.S_ISREG(before.st_mode)):
            folder, name = os.path.split(target)
            temporary = os.path.join(folder, f".{name}.{secrets.token_hex(4)}")
            file = _create(temporary, may_fail=before is not None)
        if file is None:
            with tempfile.TemporaryFile() as spooled:
                yield cast(BinaryIO, spooled)
                _copy(cast(BinaryIO, spooled), target, number)
            return
        with file:
            yield file
            file.flush()
            if before is not None:
                _copy_owner_and_mode(file.fileno(), before)
            os.fsync(file.fileno())
        assert temporary is not None
        try:
            os.replace(temporary, target)
        except OSError as error:
            if before is None or error.errno not in _IN_PLACE:
                raise
            with open(temporary, "rb") as whole:
                _copy(cast(BinaryIO, whole), target, None)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}") from None
    finally:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)


def is_special(path: str) -> bool:
    """True if a name is that of an existing special file: a FIFO, a device, an open descriptor.

    Examples
    --------
    >>> from skyphos.files.whole_file import is_special
    >>> is_special("/dev/null"), is_special("/dev/stdout"), is_special("/etc/passwd")
    (True, True, False)
    """
    try:
        target, number = _end_of_links(path)
    except OSError:
        return False
    found = _stat(target) if number is None else None
    return number is not None or (found is not None and not stat.S_ISREG(found.st_mode))


def _end_of_links(path: str) -> tuple[str, int | None]:
    """The target of a name after all links, and its number if it is an open descriptor of this process."""
    for _ in range(_MAX_LINKS):
        found = _DESCRIPTOR.fullmatch(os.path.abspath(path))
        if found is not None:
            standard = {"/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2}
            digits = found[1] or found[2]
            return path, standard[found[0]] if digits is None else int(digits)
        if not os.path.islink(path):
            return path, None
        path = os.path.join(os.path.dirname(path), os.readlink(path))
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


def _create(path: str, *, may_fail: bool) -> BinaryIO | None:
    try:
        return open(path, "xb")
    except OSError as error:
        if may_fail and error.errno in _IN_PLACE:
            return None
        raise


def _copy_owner_and_mode(file: int, before: os.stat_result) -> None:
    """Give a file the owner and mode of the one that it replaces."""
    for owner in ((before.st_uid, before.st_gid), (-1, before.st_gid)):
        with suppress(OSError):
            os.fchown(file, *owner)
            break
    with suppress(OSError):
        os.fchmod(file, stat.S_IMODE(before.st_mode))


def _copy(whole: BinaryIO, path: str, number: int | None) -> None:
    """Write all of a file to a special file, in place."""
    whole.flush()
    whole.seek(0)
    if number is None:
        with open(path, "wb") as file:
            shutil.copyfileobj(whole, file)
        return
    for stream in (sys.stdout, sys.stderr):  # what was printed before comes first
        if stream is not None:
            stream.flush()
    with os.fdopen(os.dup(number), "wb") as file:
        shutil.copyfileobj(whole, file)
