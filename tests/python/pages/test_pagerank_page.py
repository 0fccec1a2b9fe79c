"""The page about a run of PageRank: well-formed, self-contained, and suitable for any run."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyphos.pages.pagerank import Layer, Report, render
from skyphos.text.quantities import human_bytes, human_seconds

VOID = {"meta", "br", "rect", "line", "circle", "polyline", "polygon"}


class Checker(HTMLParser):
    """Checks that tags are closed in order; collects the text, and attributes that could load something."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href", "srcset", "data")]
        if tag in ("script", "link", "iframe", "object"):
            self.loads.append(tag)
        if tag not in VOID or self.get_starttag_text() is None:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in VOID

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data + "\n"


def check(report: Report) -> Checker:
    page = render(report)
    checker = Checker()
    checker.feed(page)
    checker.close()
    assert checker.open == []
    assert checker.loads == []
    assert not re.search(r"https?:|url\(|@import|nan|inf\b", page.replace("infinite", ""))
    return checker


def layers(*volumes: int) -> list[Layer]:
    down = [Layer(k, 2, "down", 4, v, v // 3, 1.1 * v) for k, v in enumerate(volumes, 1)]
    return [*down, *(Layer(x.layer, 2, "up", 4, x.sent_bytes, x.kept_bytes, 0.0) for x in reversed(down))]


SECONDS = {
    "load": 0.1,
    "configure": 0.2,
    "compute": 0.3,
    "wait for late peers": 0.0,
    "transfer": 0.1,
    "merge": 0.1,
}
FULL = Report("g.txt", [("ranks", "4")], [0.5, 0.05, 1e-9], 1e-8, layers(900, 400), [SECONDS] * 4, [(7, 0.5), (3, 0.1)])


def test_content_of_a_full_report() -> None:
    page = check(FULL)
    for words in (
        "g.txt",
        "▼ layer 1",
        "▲ layer 2",
        "900 B",
        "4 messages",
        "stop below 1e-08",
        "rank 3",
        "0.50000000",
    ):
        assert words in page.text
    assert page.text.index("▼ layer 1") < page.text.index("▼ layer 2") < page.text.index("▲ layer 2")
    assert page.text.index("▲ layer 2") < page.text.index("▲ layer 1")


def test_bars_are_mirrored_about_one_axis() -> None:
    boxes = re.findall(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)" height="34.00"', render(FULL))
    assert len(boxes) == 8
    assert {round(float(x) + float(width) / 2) for x, width in boxes} == {480}


@pytest.mark.parametrize(
    "changes",
    [
        {"layers": []},
        {"layers": layers(0)},
        {"layers": layers(10**15, 1, 0)},
        {"residuals": []},
        {"residuals": [0.5]},
        {"residuals": [0.0, 0.0], "tol": 0.0},
        {"residuals": [1.0] * 5000},
        {"top": []},
        {"top": [(5, 0.0)]},
        {"seconds": [SECONDS] * 64},
        {"seconds": [dict.fromkeys(SECONDS, 0.0)]},
        {"title": "<script>alert('&')</script>.txt"},
        {"facts": [("a<b", "&c")]},
    ],
)
def test_every_run_has_a_report(changes: dict) -> None:
    check(Report(**(vars(FULL) | changes)))


def test_many_ranks_are_shown_as_mean_and_slowest() -> None:
    slow = SECONDS | {"compute": 9.0}
    page = check(Report(**(vars(FULL) | {"seconds": [SECONDS] * 40 + [slow]})))
    assert "rank 40, slowest" in page.text
    assert "mean" in page.text


@given(st.floats(0, 1e16))
def test_numbers_for_people_are_short_and_accurate(value: float) -> None:
    number, unit = human_bytes(value).split()
    assert len(number) <= 6
    factor = 1000 ** ("B", "kB", "MB", "GB", "TB").index(unit)
    assert float(number) * factor == pytest.approx(value, rel=0.01, abs=0.5)
    assert len(human_seconds(value % 1000)) <= 9
