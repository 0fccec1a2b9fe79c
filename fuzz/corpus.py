#!/usr/bin/env python3
"""The corpora of the fuzz targets: one packed file a target in the repository, one file an input while libFuzzer runs.

A packed file, ``corpus/TARGET.txt``, is a header line and then one input a line in hexadecimal digits, sorted. The line
of an empty input is empty.

    fuzz/corpus.py unpack TARGET FOLDER     # each input to a file in FOLDER, named by its SHA-1 as libFuzzer does
    fuzz/corpus.py pack TARGET FOLDER       # all files in FOLDER to the packed file
"""

import hashlib
import sys
from pathlib import Path

PACKED = Path(__file__).resolve().parent / "corpus"


def unpack(target: str, folder: Path) -> int:
    """Write each input to a file of its own; returns how many there are."""
    folder.mkdir(parents=True, exist_ok=True)
    _, *lines = (PACKED / f"{target}.txt").read_text().splitlines()
    for line in lines:
        data = bytes.fromhex(line)
        (folder / hashlib.sha1(data).hexdigest()).write_bytes(data)
    return len(lines)


def pack(target: str, folder: Path) -> int:
    """Replace the packed file by the inputs in a folder, each once; returns how many there are."""
    lines = sorted({file.read_bytes().hex() for file in folder.iterdir() if file.is_file()})
    header = f"# {target}: {len(lines)} inputs in hexadecimal digits, one a line, sorted (fuzz/corpus.py)"
    (PACKED / f"{target}.txt").write_text("\n".join([header, *lines]) + "\n")
    return len(lines)


def main() -> None:
    match sys.argv[1:]:
        case ["unpack", target, folder]:
            print(f"{target}: {unpack(target, Path(folder))} inputs unpacked into {folder}")
        case ["pack", target, folder]:
            print(f"{target}: {pack(target, Path(folder))} inputs packed")
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
