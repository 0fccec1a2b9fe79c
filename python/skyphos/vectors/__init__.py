"""Vectors: the sparse vector, and the kinds of other libraries that collectives take and return."""
