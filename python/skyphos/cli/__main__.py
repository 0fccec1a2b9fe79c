"""``python -m skyphos.cli``: how the command starts its own ranks."""

from . import main

main(prog_name="skyphos")
