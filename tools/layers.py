#!/usr/bin/env python3
"""Layer check: reads all imports, and fails on circles and on imports from a lower layer to a higher one.

Covers the files of each Rust crate and of the Python package. ``tools/layers.toml`` lists the layers, top first;
ARCHITECTURE.md shows the same list.

Run ``python tools/layers.py`` from anywhere. ``--map`` prints the layers; ``--write-map`` puts them into
ARCHITECTURE.md; ``--arrows FILE`` prints what a file imports, and what imports it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from imports import Graph, circles, python_imports, read_toml, rust_imports

ROOT = Path(__file__).resolve().parent.parent
ARCHITECTURE = ROOT / "ARCHITECTURE.md"

#: What comes before the map and after it in ARCHITECTURE.md.
_BEGIN, _END = "<!-- Written by `python tools/layers.py --write-map`. -->\n\n```text\n", "\n```\n"

#: Layers from the top down. A room is a folder or a file: its ``path``, and a text that says what it is ``about``.
Layers = list[list[dict[str, str]]]


def room_of(file: str, rooms: dict[str, int]) -> str | None:
    """The longest room path that contains a file."""
    inside = [room for room in rooms if file == room or file.startswith(room.rstrip("/") + "/")]
    return max(inside, key=len, default=None)


def arrows_up(graph: Graph, layers: Layers) -> list[str]:
    """Imports from a lower layer to a higher one, and files that belong to no room."""
    level = {room["path"]: k for k, rooms in enumerate(layers) for room in rooms}
    found = []
    for file, targets in sorted(graph.items()):
        room = room_of(file, level)
        if room is None:
            found.append(f"{file} is in no room of tools/layers.toml")
            continue
        for target in sorted(targets):
            other = room_of(target, level)
            if other is not None and level[other] < level[room]:
                found.append(f"{file} imports {target}: up from {room} to {other}")
    return found


def as_map(layers: Layers) -> str:
    """The layers as text, top first, each with its number."""
    width = max(len(room["path"]) for rooms in layers for room in rooms)
    lines = []
    for number, rooms in enumerate(layers, 1):
        for k, room in enumerate(rooms):
            lines.append(f"{number if k == 0 else '':>2}  {room['path']:<{width}}  {room['about']}")
    return "\n".join(lines)


def with_map(text: str, layers: Layers) -> str:
    """ARCHITECTURE.md's text with the map of these layers."""
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end):
        raise SystemExit(f"ARCHITECTURE.md has no place for the map: it begins with\n{_BEGIN}")
    return before + _BEGIN + as_map(layers) + _END + after


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--map", action="store_true", help="print the layers and stop")
    parser.add_argument("--write-map", action="store_true", help="put the layers into ARCHITECTURE.md and stop")
    parser.add_argument("--arrows", metavar="FILE", help="print what FILE imports and what imports it, and stop")
    options = parser.parse_args()
    layers: Layers = [layer["rooms"] for layer in read_toml(ROOT / "tools/layers.toml")["layer"]]
    if options.map:
        print(as_map(layers))
        return 0
    architecture = ARCHITECTURE.read_text()
    if options.write_map:
        ARCHITECTURE.write_text(with_map(architecture, layers))
        return 0
    graph = rust_imports(ROOT) | python_imports(ROOT)
    if options.arrows:
        print("imports:", *sorted(graph.get(options.arrows, ())), sep="\n  ")
        print("imported by:", *sorted(file for file, targets in graph.items() if options.arrows in targets), sep="\n  ")
        return 0
    faults = [f"circle of {len(circle)} files: {' <-> '.join(circle)}" for circle in circles(graph)]
    faults += arrows_up(graph, layers)
    if with_map(architecture, layers) != architecture:
        faults.append("ARCHITECTURE.md shows other layers than tools/layers.toml: run tools/layers.py --write-map")
    for fault in faults:
        print(fault)
    print(f"{len(graph)} files, {sum(map(len, graph.values()))} imports, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
