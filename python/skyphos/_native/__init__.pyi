"""Stubs of the native half, one for each of its source files. At run time all names are in ``skyphos._skyphos``."""
