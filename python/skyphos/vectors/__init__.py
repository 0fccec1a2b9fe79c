"""Vectors: the sparse vector, and conversions of other libraries' vectors, which collectives take and return."""
