"""What all reports share: numbers for people, and pieces of SVG for pages that need nothing but themselves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

__all__ = [
    "CLAY", "CUP", "FAINT", "INK", "LINE", "PALE", "STYLE",
    "bar", "human_bytes", "human_seconds", "stroke", "svg", "text",
]  # fmt: skip

INK, CLAY, PALE, CUP = "#2b2320", "#b4532a", "#e3b495", "#f4e6d8"
LINE, FAINT = "#d9cdbf", "#8a7b70"


def human_bytes(count: float) -> str:
    """Return bytes for people.

    Examples
    --------
    >>> from skyphos.pages.page import human_bytes
    >>> human_bytes(0), human_bytes(1536), human_bytes(3_400_000)
    ('0 B', '1.54 kB', '3.40 MB')
    """
    power = min(4, int(math.log(count, 1000))) if count >= 1 else 0
    unit = ("B", "kB", "MB", "GB", "TB")[power]
    if power == 0:
        return f"{count:.0f} B"
    number = count / 1000**power
    digits = 2 if number < 9.995 else 1 if number < 99.95 else 0
    return f"{number:.{digits}f} {unit}"


def human_seconds(seconds: float) -> str:
    """Return seconds for people.

    Examples
    --------
    >>> from skyphos.pages.page import human_seconds
    >>> human_seconds(0.00042), human_seconds(0.0123), human_seconds(0.25), human_seconds(75)
    ('0.42 ms', '12.3 ms', '250 ms', '75.0 s')
    """
    if seconds < 0.09995:
        return f"{seconds * 1e3:.{2 if seconds < 0.009995 else 1}f} ms"
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.1f} s" if seconds >= 10 else f"{seconds:.2f} s"


def svg(width: float, height: float, parts: Sequence[str], name: str) -> str:
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(name)}">'
        f"<title>{escape(name)}</title>{''.join(parts)}</svg>"
    )


def bar(x: float, y: float, size: tuple[float, float], colour: str, tip: str = "") -> str:
    width, height = size
    box = f'<rect x="{x:.2f}" y="{y:.2f}" width="{max(width, 0):.2f}" height="{height:.2f}" fill="{colour}"'
    return f"{box}><title>{escape(tip)}</title></rect>" if tip else f"{box}/>"


def stroke(start: tuple[float, float], end: tuple[float, float], colour: str = INK, dashes: str = "") -> str:
    (x1, y1), (x2, y2) = start, end
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"{dashed}/>'


def text(x: float, y: float, words: str, anchor: str, kind: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">{escape(words)}</text>'


STYLE = f""" :root {{ color: {INK}; background: #fbf7f0; font: 16px/1.5 Georgia, "Times New Roman", serif;
}} body {{ max-width: 940px; margin: 0 auto; padding: 40px 24px 64px; }} h1 {{ font-size: 32px; font-weight:
normal; margin: 0 0 4px; }} h1 b {{ color: {CLAY}; font-weight: normal; }} h2 {{ font-size: 20px;
font-weight: normal; margin: 44px 0 4px; border-bottom: 1px solid {LINE}; padding-bottom: 6px; }} dl {{
display: grid; grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); gap: 10px 24px; margin: 24px 0
0; }} dt, .note, th, p.lead {{ color: {FAINT}; }} dt {{ font-size: 13px; }} dd {{ margin: 0; overflow-wrap:
anywhere; }} svg {{ width: 100%; height: auto; display: block; margin-top: 18px; }} svg text {{ font: 14px
Georgia, serif; fill: {INK}; }} svg text.note {{ font-size: 12.5px; fill: {FAINT}; }} p.key {{ font-size:
14px; color: {FAINT}; margin: 10px 0 0; }} p.key b {{ font-weight: normal; color: {INK}; }} p.key i {{
display: inline-block; width: 13px; height: 13px; margin: 0 6px 0 18px; vertical-align: -1px; }} p.key
i:first-child {{ margin-left: 0; }} p.key i.tick {{ width: 0; border-left: 1.5px solid {INK}; }} p.lead {{
margin: 6px 0 0; font-size: 15px; }} table {{ border-collapse: collapse; width: 100%; margin-top: 14px;
font-variant-numeric: tabular-nums; }} td, th {{ text-align: right; padding: 3px 14px 3px 0; font-weight:
normal; }} td:first-child {{ color: {FAINT}; width: 28px; }} td.bar, th.bar {{ width: 52%; padding-right:
0; }} td.bar i {{ display: block; height: 12px; background: {CLAY}; }} @media print {{ body {{ max-width:
none; padding: 0; }} h2 {{ break-after: avoid; }} }}
"""
