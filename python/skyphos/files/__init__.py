"""Files: compressed input, and output that is written whole or not at all."""
