"""User input: arrays, settings, sizes and environment variables, each checked and named in its error."""
