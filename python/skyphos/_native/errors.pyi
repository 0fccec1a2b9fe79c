"""Errors as bytes."""

# The error that other ranks raise if Ctrl-C or sys.exit() ends this rank's call; cause says which.
def wire_of_leaving(rank: int, cause: str) -> bytes: ...
