"""Errors as bytes."""

# The error that other ranks raise if a rank leaves a call without an error of its program.
def wire_of_leaving(rank: int, cause: str) -> bytes: ...
