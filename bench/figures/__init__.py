"""Figures of the papers, measured again: ours beside theirs. `docs/reproduction.md` discusses the results.

Each figure is a module with `measure` (its points, as plain values) and `draw` (a picture of such points), so that a
picture can be drawn again from its record. `style` has their common code. Measurements use the lab.
"""
