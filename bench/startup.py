"""Start-up time: `import skyphos` beyond `import numpy` (at most 40 ms), and a group of 8 local processes (1.5 s).

Modules are compiled before, as by pip; an editable install under PYTHONDONTWRITEBYTECODE compiles each time.
"""

from __future__ import annotations

import compileall
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import skyphos
from common import report

FIRST_BARRIER = """
import time
import skyphos as sky
with sky.init() as comm:
    comm.barrier()
    if comm.rank == 0:
        print(time.time())
    comm.barrier()
"""


def seconds(statement: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True)
    return time.perf_counter() - start


def first_barrier_s(script: str) -> float:
    """Seconds from the command's start until every rank has passed the first barrier."""
    start = time.time()
    command = [sys.executable, "-m", "skyphos.cli", "run", "-n", "8", script]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(output.split()[-1]) - start


def main() -> None:
    compileall.compile_dir(Path(skyphos.__file__).parent, quiet=1)
    pairs = [(seconds("import numpy"), seconds("import numpy, skyphos")) for _ in range(15)]
    beyond = [both - numpy for numpy, both in pairs]
    numpy_s, both_s = [a for a, _ in pairs], [b for _, b in pairs]
    title = "import skyphos, beyond import numpy"
    report(title, {"import numpy": numpy_s, "import numpy, skyphos": both_s}, median(beyond) / 0.040, 1)
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "first_barrier.py")
        script.write_text(FIRST_BARRIER)
        times = [first_barrier_s(str(script)) for _ in range(6)][1:]
    report("skyphos run -n 8, until all are past the first barrier", {"first barrier": times}, median(times) / 1.5, 1)


if __name__ == "__main__":
    main()
