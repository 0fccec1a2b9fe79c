#!/usr/bin/env python3
"""The layers of the project: which files import which, and whether all arrows point down.

Reads the imports of all Rust crates and of the Python package. Fails on a circle among the files of a crate or of the
package, and on an arrow from a lower layer to a higher one. ``tools/layers.toml`` lists the layers, top first.

Run ``python tools/layers.py`` from the project's root. ``--map`` prints the layers as ARCHITECTURE.md shows them;
``--arrows FILE`` prints what one file imports, and who imports it.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from imports import Graph, circles, python_imports, rust_imports  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent


def layers_of(path: Path) -> list[list[dict[str, str]]]:
    """Layers from the top down; each has rooms with ``path`` and ``about``."""
    with path.open("rb") as file:
        return [layer["rooms"] for layer in tomllib.load(file)["layer"]]


def room_of(file: str, rooms: dict[str, int]) -> str | None:
    """The longest room path that contains a file."""
    inside = [room for room in rooms if file == room or file.startswith(room.rstrip("/") + "/")]
    return max(inside, key=len, default=None)


def arrows_up(graph: Graph, layers: list[list[dict[str, str]]]) -> list[str]:
    """Imports from a lower layer to a higher one, and files that belong to no room."""
    rank = {room["path"]: level for level, rooms in enumerate(layers) for room in rooms}
    found = []
    for file, targets in sorted(graph.items()):
        room = room_of(file, rank)
        if room is None:
            found.append(f"{file} is in no layer of tools/layers.toml")
            continue
        for target in sorted(targets):
            other = room_of(target, rank)
            if other is not None and rank[other] < rank[room]:
                found.append(f"{file} imports {target}: up from {room} to {other}")
    return found


def as_map(layers: list[list[dict[str, str]]]) -> str:
    """The layers as text, top first."""
    width = max(len(room["path"]) for rooms in layers for room in rooms)
    blocks = ["\n".join(f"{room['path']:<{width}}  {room['about']}" for room in rooms) for rooms in layers]
    return "\n\n".join(blocks)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--map", action="store_true", help="print the layers and stop")
    parser.add_argument("--arrows", metavar="FILE", help="print what FILE imports and what imports it, and stop")
    options = parser.parse_args()
    layers = layers_of(ROOT / "tools/layers.toml")
    if options.map:
        print(as_map(layers))
        return 0
    graph = {**rust_imports(ROOT), **python_imports(ROOT)}
    if options.arrows:
        print("imports:", *sorted(graph.get(options.arrows, ())), sep="\n  ")
        print("imported by:", *sorted(file for file, to in graph.items() if options.arrows in to), sep="\n  ")
        return 0
    faults = [" <-> ".join(circle) for circle in circles(graph)]
    faults = [f"circle of {line.count('<->') + 1} files: {line}" for line in faults] + arrows_up(graph, layers)
    print(*faults, sep="\n")
    print(f"{len(graph)} files, {sum(map(len, graph.values()))} imports, {len(faults)} faults")
    return min(len(faults), 1)


if __name__ == "__main__":
    sys.exit(main())
