"""``python -m skyphos.cli``: the way the command starts itself as a group."""

from . import main

main(prog_name="skyphos")
