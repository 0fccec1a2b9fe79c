"""Optimizers, averaging of parameters, skipped steps and consistency checks."""
