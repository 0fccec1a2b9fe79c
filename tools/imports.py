"""Imports between the files of the project, read from the text of Rust and Python sources.

A graph maps each file to the files that it imports, as paths from the project's root. Tests inside files
(``#[cfg(test)]``) and imports for type checkers alone (``if TYPE_CHECKING``) do not count: they are not in the product.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Graph = dict[str, set[str]]


def read_toml(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return tomllib.load(file)


# Rust


def _without_comments(text: str) -> str:
    """Rust source without comments and string literals; braces inside of those would mislead."""
    pattern = r'//[^\n]*|/\*.*?\*/|b?r(#*)".*?"\1|b?"(?:\\.|[^"\\])*"|\'(?:\\.|[^\\\'])\''
    return re.sub(pattern, " ", text, flags=re.DOTALL)


def _without_tests(text: str) -> str:
    """Rust source without items under ``#[cfg(test)]``."""
    while (found := re.search(r"#\[cfg\((?:test|all\(test[^\]]*)\)\]", text)) is not None:
        end = _end_of_item(text, found.end())
        text = text[: found.start()] + text[end:]
    return text


def _end_of_item(text: str, start: int) -> int:
    """Where the item that begins at ``start`` ends: at its semicolon, or at the brace that closes its body."""
    depth = 0
    for place in range(start, len(text)):
        match text[place]:
            case "{" | "(" | "[":
                depth += 1
            case "}" | ")" | "]":
                depth -= 1
                if depth == 0 and text[place] == "}":
                    return place + 1
            case ";" if depth == 0:
                return place + 1
    return len(text)


def _leaves(tree: str) -> Iterator[tuple[list[str], str]]:
    """Each path of a ``use`` tree, with the name that it has in the importing file."""
    tree = tree.strip()
    head, brace, rest = tree.partition("{")
    if not brace:
        path, _, alias = tree.partition(" as ")
        parts = [part.strip() for part in path.split("::") if part.strip()]
        name = alias.strip() or (parts[-2] if parts[-1:] == ["self"] and len(parts) > 1 else parts[-1] if parts else "")
        yield (parts[:-1] if parts[-1:] == ["self"] else parts), name
        return
    depth, start, inside = 0, 0, rest[: rest.rindex("}")]
    pieces = []
    for place, letter in enumerate(inside):
        depth += (letter == "{") - (letter == "}")
        if letter == "," and depth == 0:
            pieces.append(inside[start:place])
            start = place + 1
    for piece in [*pieces, inside[start:]]:
        if piece.strip():
            for parts, name in _leaves(piece):
                prefix = [part.strip() for part in head.split("::") if part.strip()]
                yield prefix + parts, name or prefix[-1]


class _Crate:
    """The modules of one crate, and the names that each brings into scope."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.modules: dict[tuple[str, ...], Path] = {}
        self.texts: dict[Path, str] = {}
        self.uses: dict[tuple[str, ...], dict[str, list[str]]] = {}
        for file in sorted((folder / "src").rglob("*.rs")):
            parts = file.relative_to(folder / "src").with_suffix("").parts
            module = () if parts in (("lib",), ("main",)) else parts[:-1] if parts[-1] == "mod" else parts
            self.modules[module] = file
        declared = {module for module in self.modules if self._is_product(module)}
        self.modules = {module: file for module, file in self.modules.items() if module in declared}
        for module, file in self.modules.items():
            self.uses[module] = {}
            for use in re.finditer(r"\buse\s+([^;]+);", self._text(file)):
                for path, local in _leaves(use[1]):
                    self.uses[module].setdefault(local, path)

    def _text(self, file: Path) -> str:
        if file not in self.texts:
            self.texts[file] = _without_tests(_without_comments(file.read_text()))
        return self.texts[file]

    def _is_product(self, module: tuple[str, ...]) -> bool:
        """Whether a module, and each module that contains it, is declared outside of tests."""
        if not module:
            return True
        parent = self.modules.get(module[:-1])
        return parent is None or (
            re.search(rf"\bmod\s+{module[-1]}\s*[;{{]", self._text(parent)) is not None
            and self._is_product(module[:-1])
        )

    def paths(self, module: tuple[str, ...]) -> Iterator[list[str]]:
        """All paths that a module names, from ``crate``, ``self``, ``super`` or another crate's name on.

        A re-export (``pub use``) makes a name known and uses nothing, so it is no import.
        """
        text = self._text(self.modules[module])
        for use in re.finditer(r"(?<!pub )(?<!\) )\buse\s+([^;]+);", text):
            yield from (parts for parts, _ in _leaves(use[1]))
        body = re.sub(r"\buse\s+[^;]+;", " ", text)
        for found in re.finditer(r"\b(?:[a-z_]\w*)(?:::\w+)+", body):
            yield found[0].split("::")

    def absolute(self, module: tuple[str, ...], parts: list[str]) -> list[str] | None:
        """A path from the crate's root; None if it leads to another crate."""
        match parts:
            case ["crate", *rest]:
                return rest
            case ["self", *rest]:
                return [*module, *rest]
            case ["super", *rest]:
                return self.absolute(module[:-1], ["self", *rest])
            case [first, *_] if (*module, first) in self.modules:
                return [*module, *parts]
            case [first, *rest] if first in self.uses[module] and self.uses[module][first][:1] != [first]:
                return self.absolute(module, [*self.uses[module][first], *rest])
        return None

    def file_of(self, path: list[str], depth: int = 0) -> Path | None:
        """The file that defines what an absolute path names; re-exports are followed."""
        module: tuple[str, ...] = ()
        while len(module) < len(path) and (*module, path[len(module)]) in self.modules:
            module = (*module, path[len(module)])
        rest = path[len(module) :]
        if rest and depth < 8 and rest[0] in self.uses[module]:
            origin = self.absolute(module, self.uses[module][rest[0]])
            if origin is not None and origin != path:
                return self.file_of([*origin, *rest[1:]], depth + 1)
        if rest and depth < 8 and "*" in self.uses[module]:
            origin = self.absolute(module, self.uses[module]["*"][:-1])
            if origin is not None:
                return self.file_of([*origin, *rest], depth + 1)
        return self.modules.get(module)


def rust_imports(root: Path) -> Graph:
    """Imports between the sources of all crates."""
    crates = {}
    for manifest in sorted((root / "crates").glob("*/Cargo.toml")):
        read = read_toml(manifest)
        name = read.get("lib", {}).get("name", read["package"]["name"].replace("-", "_"))
        crates[name] = _Crate(manifest.parent, name)
    graph: Graph = {}
    for crate in crates.values():
        for module, file in crate.modules.items():
            targets = set()
            for parts in crate.paths(module):
                absolute = crate.absolute(module, parts)
                if absolute is not None:
                    targets.add(crate.file_of(absolute))
                elif parts[0] in crates and parts[0] != crate.name:
                    targets.add(crates[parts[0]].file_of(parts[1:]))
            graph[str(file.relative_to(root))] = {
                str(target.relative_to(root)) for target in targets if target is not None and target != file
            }
    return graph


# Python


class _Imports(ast.NodeVisitor):
    """Modules that a file imports, whether at its head or inside of a function."""

    def __init__(self, module: list[str], is_package: bool) -> None:
        self.here = module if is_package else module[:-1]
        self.found: list[list[str]] = []

    def visit_If(self, node: ast.If) -> None:
        if not (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        self.found += [alias.name.split(".") for alias in node.names]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = self.here[: len(self.here) - node.level + 1] if node.level else []
        base = base + (node.module.split(".") if node.module else [])
        self.found += [[*base, alias.name] for alias in node.names]


def python_imports(root: Path) -> Graph:
    """Imports between the modules of the Python package."""
    package = root / "python"
    modules: dict[tuple[str, ...], Path] = {}
    for file in sorted(package.rglob("*.py*")):
        if file.suffix not in (".py", ".pyi"):
            continue
        parts = file.relative_to(package).with_suffix("").parts
        modules[parts[:-1] if parts[-1] == "__init__" else parts] = file
    graph: Graph = {}
    for module, file in modules.items():
        visitor = _Imports(list(module), file.name == "__init__.py")
        visitor.visit(ast.parse(file.read_text()))
        targets = set()
        for found in visitor.found:
            path = tuple(found)
            while path and path not in modules:
                path = path[:-1]
            # Importing a module does not count as an import of the packages that contain it.
            if path and modules[path] != file:
                targets.add(modules[path])
        graph[str(file.relative_to(root))] = {str(target.relative_to(root)) for target in targets}
    return graph


# Circles


def circles(graph: Graph) -> list[list[str]]:
    """Groups of files that import each other, directly or by way of others (Tarjan's strongly connected components)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(start: str) -> None:
        work = [(start, iter(sorted(graph.get(start, ()))))]
        number[start] = low[start] = len(number)
        stack.append(start)
        while work:
            node, targets = work[-1]
            for target in targets:
                if target not in number:
                    number[target] = low[target] = len(number)
                    stack.append(target)
                    work.append((target, iter(sorted(graph.get(target, ())))))
                    break
                if target in stack:
                    low[node] = min(low[node], number[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == number[node]:
                    group = stack[stack.index(node) :]
                    del stack[stack.index(node) :]
                    if len(group) > 1:
                        found.append(sorted(group))

    for file in sorted(graph):
        if file not in number:
            visit(file)
    return found
