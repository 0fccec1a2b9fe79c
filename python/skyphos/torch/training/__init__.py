"""Training loops: optimizers, averaging, skipped steps."""
