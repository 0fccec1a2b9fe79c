"""A chart in SVG, drawn shape by shape.

A colour is the name of a class in ``templates/style.css``, which has a value for light pages and one for dark ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from markupsafe import Markup, escape

__all__ = ["Chart", "Point", "scale"]

#: Coordinates: x to the right, y down.
Point = tuple[float, float]


def scale(low: float, high: float, start: float, end: float, *, log: bool = False) -> Callable[[float], float]:
    """Return the function that maps ``low`` to ``start`` and ``high`` to ``end``, linearly or logarithmically.

    Examples
    --------
    >>> from skyphos.pages.chart import scale
    >>> scale(0, 10, 100, 200)(5), scale(1, 100, 0, 200, log=True)(10)
    (150.0, 100.0)
    """
    along = math.log if log else float
    span = max(along(high) - along(low), 1e-12)
    return lambda value: start + (end - start) * ((along(value) - along(low)) / span)


class Chart:
    """A chart of a given width; its height is given when it is complete.

    Examples
    --------
    >>> from skyphos.pages.chart import Chart
    >>> chart = Chart("Bytes by layer")
    >>> chart.bar(0, 4, 120, 20, "clay", tip="layer 1")
    >>> "<title>layer 1</title>" in chart.svg(28)
    True
    """

    def __init__(self, name: str, width: float = 900) -> None:
        self._name, self._width = name, width
        self._shapes: list[str] = []

    def _add(self, tag: str, inside: str = "", **attributes: str | float) -> None:
        pairs = ((name.replace("_", "-").strip("-"), value) for name, value in attributes.items() if value != "")
        words = " ".join(f'{name}="{v}"' if isinstance(v, str) else f'{name}="{v:.2f}"' for name, v in pairs)
        self._shapes.append(f"<{tag} {words}>{inside}</{tag}>" if inside else f"<{tag} {words}/>")

    def bar(
        self, x: float, y: float, width: float, height: float, colour: str, tip: str = "", *, strength: float = 1
    ) -> None:
        """Draw a filled rectangle; ``strength`` below 1 makes it translucent."""
        title = f"<title>{escape(tip)}</title>" if tip else ""
        opacity = "" if strength == 1 else strength
        self._add("rect", title, x=x, y=y, width=max(width, 0), height=height, class_=colour, fill_opacity=opacity)

    def frame(self, x: float, y: float, width: float, height: float, stroke: float) -> None:
        """Draw the outline of a rectangle, ``stroke`` wide."""
        self._add("rect", x=x, y=y, width=width, height=height, class_="outline ink", stroke_width=stroke)

    def line(self, start: Point, end: Point, colour: str = "ink", dashes: str = "") -> None:
        """Draw a straight line."""
        (x1, y1), (x2, y2) = start, end
        self._add("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=colour, stroke_dasharray=dashes)

    def path(self, points: Iterable[Point], colour: str, dashes: str = "") -> None:
        """Draw a curve through points."""
        self._add("polyline", points=_joined(points), class_=colour, stroke_dasharray=dashes)

    def area(self, points: Iterable[Point], colour: str) -> None:
        """Fill the polygon that points enclose."""
        self._add("polygon", points=_joined(points), class_=colour)

    def dot(self, at: Point, colour: str, radius: float = 3.2) -> None:
        """Draw a filled circle."""
        self._add("circle", cx=at[0], cy=at[1], r=radius, class_=colour)

    def text(self, x: float, y: float, words: str, anchor: str = "start", kind: str = "") -> None:
        """Write a line of text; ``kind`` is a class: ``note``, ``lit`` or ``dim``."""
        self._add("text", str(escape(words)), x=x, y=y, text_anchor=anchor, class_=kind)

    def svg(self, height: float) -> Markup:
        """Return the chart as an element of a page."""
        name, shapes = escape(self._name), "".join(self._shapes)
        box = f'viewBox="0 0 {self._width:.0f} {height:.0f}" role="img" aria-label="{name}"'
        return Markup(f'<figure class="chart"><svg {box}><title>{name}</title>{shapes}</svg></figure>')


def _joined(points: Iterable[Point]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
