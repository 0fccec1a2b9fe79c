"""Outer products: layers whose weight gradients are summed over ranks from their factors."""

from .layers import guard, no_sync, outer_product

__all__ = ["guard", "no_sync", "outer_product"]
