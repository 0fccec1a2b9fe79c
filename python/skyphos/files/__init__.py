"""Files: compressed input, and output files that appear complete or not at all."""
