"""``python -m skyphos.cli``: how the command starts itself as a group."""

from . import main

main(prog_name="skyphos")
