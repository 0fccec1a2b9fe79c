"""Text for people: quantities with units, and characters that any stream can carry."""
