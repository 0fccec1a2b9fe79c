"""The examples that train: each in the processes that a user starts, and their parts against known values."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "torch"
SHARED = ROOT.parent / "shared" / "data"
sys.path.insert(0, str(EXAMPLES))

import atis  # noqa: E402
import images  # noqa: E402
import multi30k  # noqa: E402
import speech  # noqa: E402
from batches import global_batches, share  # noqa: E402
from scores import bleu, bleu_counts, edits, f1, span_counts, spans  # noqa: E402
from synthetic import FEATURES, utterance  # noqa: E402
from text import padded  # noqa: E402


def run(script: Path, *words: str, ranks: int = 2, launcher: str = "torchrun", cwd: Path = ROOT) -> str:
    """Run an example with a launcher; return its output."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    skyphos = ["-m", "skyphos.cli", "run", "-n", str(ranks)]
    command = [sys.executable, *{"torchrun": torchrun, "skyphos": skyphos, "none": []}[launcher], str(script), *words]
    foreign = ("SKYPHOS_", "SLURM_", "PMI_", "MASTER_", "TORCHELASTIC_", "RANK", "LOCAL_", "WORLD_SIZE")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    environment = clean | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(EXAMPLES)}
    done = subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def folder(name: str) -> Path:
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"the data set {name} is not there: {path.parent} is no part of the project")
    return path


def recorded(path: Path, ranks: int = 2) -> dict[str, Any]:
    """A run's record, checked for what all examples promise."""
    entry: dict[str, Any] = json.loads(path.read_text())
    first, *_, last = entry["epochs"]
    assert entry["ranks"] == ranks and entry["ranks_equal"]
    assert last["train_loss"] < first["train_loss"]
    assert last["elapsed_s"] > first["elapsed_s"] > 0
    for epoch in entry["epochs"]:
        assert all(name in epoch for name in entry["headline"])
        assert abs(sum(epoch["seconds"].values()) - epoch["train_s"]) < 0.5 * epoch["train_s"]
        config, whole = entry["config"], 4 * entry["parameters"] * epoch["steps"]
        if config["outer_products"]:  # factors of some weights' gradients go another way
            assert 0 < epoch["gradient_bytes"] < whole
        else:
            assert epoch["gradient_bytes"] == (0 if config["compress"] == "bmuf" else whole)
        assert 0 < epoch["busy_s"] < epoch["train_s"]
    return entry


VARIANTS = [
    pytest.param("--backend", "gloo", id="gloo"),
    pytest.param("--backend", "skyphos", id="dense"),
    pytest.param("--compress", "topk", id="topk"),
    pytest.param("--compress", "qsgd", id="qsgd"),
    pytest.param("--compress", "bmuf", id="bmuf"),
    pytest.param("--outer-products", id="outer products"),
]


@pytest.mark.parametrize("words", [one.values for one in VARIANTS], ids=[str(one.id) for one in VARIANTS])
def test_atis(words: tuple[str, ...], tmp_path: Path) -> None:
    data = str(folder("atis"))
    run(EXAMPLES / "atis.py", "--preset", "smoke", *words, "--data", data, "--out", str(tmp_path / "a.json"))
    entry = recorded(tmp_path / "a.json")
    assert entry["epochs"][-1]["intent_accuracy"] > 60  # most are flights


@pytest.mark.parametrize("compress", ["dense", "topk"])
def test_multi30k(compress: str, tmp_path: Path) -> None:
    words = ["--preset", "smoke", "--compress", compress, "--data", str(folder("multi30k"))]
    run(EXAMPLES / "multi30k.py", *words, "--out", str(tmp_path / "a.json"))
    recorded(tmp_path / "a.json")


@pytest.mark.parametrize("compress", ["dense", "topk", "bmuf"])
def test_speech(compress: str, tmp_path: Path) -> None:
    run(EXAMPLES / "speech.py", "--preset", "smoke", "--compress", compress, "--out", str(tmp_path / "a.json"))
    recorded(tmp_path / "a.json")


def pictures(path: Path, count: int) -> Path:
    """An archive of pictures, each class in its own colour, with noise."""
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    random = torch.Generator().manual_seed(1)
    with tarfile.open(path, "w:gz") as tar:
        for name in ("train", "test"):
            for label, kind in enumerate(images.CLASSES):
                for number in range(count):
                    noise = torch.randint(0, 60, (32, 32, 3), generator=random)
                    pixels = (noise + 20 * torch.tensor([label, 9 - label, label % 3])).to(torch.uint8)
                    file = io.BytesIO()
                    image.fromarray(pixels.numpy()).save(file, "JPEG", quality=95)
                    member = tarfile.TarInfo(f"{name}/{kind}/{number:04}.jpg")
                    member.size = file.tell()
                    file.seek(0)
                    tar.addfile(member, file)
    return path


@pytest.mark.parametrize(
    "words", [["--compress", "topk"], ["--model", "wide-resnet18", "--compress", "topk"]], ids=["resnet", "wide"]
)
def test_cifar(words: list[str], tmp_path: Path) -> None:
    archive = pictures(tmp_path / "pictures.tar.gz", 20)
    where = ["--data", str(archive), "--cache", str(tmp_path / "cache"), "--out", str(tmp_path / "a.json")]
    run(EXAMPLES / "cifar.py", "--preset", "smoke", *words, *where)
    recorded(tmp_path / "a.json")
    names = [path.name for path in (tmp_path / "cache").iterdir()]
    assert sorted(names) == ["pictures-test.npy", "pictures-train.npy"]  # and nothing half written


@pytest.mark.parametrize(("launcher", "ranks"), [("skyphos", 2), ("none", 1)])
@pytest.mark.parametrize("backend", ["gloo", "skyphos"])
def test_other_launchers(launcher: str, ranks: int, backend: str, tmp_path: Path) -> None:
    words = ["--preset", "smoke", "--backend", backend, "--out", str(tmp_path / "a.json")]
    run(EXAMPLES / "speech.py", *words, ranks=ranks, launcher=launcher)
    recorded(tmp_path / "a.json", ranks)


def test_compare(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    files = [str(tmp_path / name) for name in ("a.json", "b.json")]
    for file, epochs in zip(files, ("2", "3"), strict=True):
        words = ["--preset", "smoke", "--backend", "gloo", "--epochs", epochs, "--out", file]
        run(EXAMPLES / "speech.py", *words, launcher="none")
    out = ["--html", str(tmp_path / "a.html"), "--png", str(tmp_path / "a.png")]
    run(EXAMPLES / "compare.py", *files, *out, launcher="none")
    page = (tmp_path / "a.html").read_text()
    assert page.startswith("<!doctype html>") and page.count("<svg") == 1 and "token error rate" in page
    assert "src=" not in page and "<script" not in page
    assert "epochs 2" in page and "epochs 3" in page  # the setting in which the runs differ
    assert "<text" in page  # text that can be selected
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_the_script_of_the_docs(tmp_path: Path) -> None:
    """The script learns, and saves the state from which a run can resume."""
    (script,) = re.findall(r"```python\n(# train\.py\n.*?)```", (ROOT / "docs" / "torch.md").read_text(), re.S)
    (tmp_path / "train.py").write_text(script)
    lines = run(tmp_path / "train.py", cwd=tmp_path).splitlines()
    right = [float(line.split()[2]) for line in lines]
    assert len(right) == 10 and right[0] < 60 and right[-1] > 85, lines
    kept = [torch.load(tmp_path / f"checkpoint-{rank}.pt") for rank in range(2)]
    assert [one["hook"]["owner"] for one in kept] == [[0, 2, None], [1, 2, None]]
    assert [one["hook"]["steps"] for one in kept] == [10 * 64] * 2


def test_invalid_options(tmp_path: Path) -> None:
    """Invalid options are refused immediately, not after an epoch."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    import compare

    for words, known in (
        (["--compress", "topk", "--k", "600"], "--k 600 is more than a bucket has: 512"),
        (["--out", str(tmp_path / "nowhere" / "a.json")], "no folder"),
        (["--compress", "bmuf", "--outer-products"], "no --outer-products"),
        (["--compress", "dense", "--k", "8"], "--k changes nothing with --compress dense: it is an option of topk"),
        (["--compress", "qsgd", "--density-warm-up", "2"], "--density-warm-up changes nothing"),
        (["--compress", "topk", "--every", "4"], "it is an option of bmuf"),
        (["--compress", "qsgd", "--bits", "32"], "--compress dense"),
    ):
        asked = CliRunner().invoke(speech.main, ["--preset", "smoke", *words])
        assert asked.exit_code == 2 and known in asked.output, asked.output
    for text in ("[]", "{}", "no JSON", '{"epochs": []}'):
        file = tmp_path / "run.json"
        file.write_text(text)
        asked = CliRunner().invoke(compare.main, [str(file), "--png", str(tmp_path / "a.png")])
        assert asked.exit_code == 1 and str(file) in asked.output.replace("\n", ""), asked.output


# A deterministic model, so that the result must not depend on the number of ranks. The last of its batches has one
# sample, so one of two ranks has none.
LINEAR = """
import sys
import torch
from torch import nn
from options import Run, Settings
from training import train

class Line(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(5, 2)
    def forward(self, x, y):
        return (self.line(x) - y).pow(2).sum()

class Lines:
    name, headline = "lines", ("error",)
    counts, lengths = [1] * 41, list(range(41))
    x = torch.randn(41, 5, generator=torch.Generator().manual_seed(1))
    y = x @ torch.arange(10.0).view(5, 2)
    def model(self):
        return Line()
    def units(self, samples):
        return len(samples)
    def batch(self, samples, epoch):
        return self.x[samples], self.y[samples]
    def sums(self, model, rank, size):
        return {"error": float(model(self.x[rank::size], self.y[rank::size]))}
    def metrics(self, sums):
        return {"error": sums["error"] / 41}

settings = Settings(epochs=4, batch=8, lr=0.05, clip=50.0, milestones=(0.5,))
from pathlib import Path
train(Lines, Run(settings, "full", "dense", sys.argv[1], False, 1, 1, Path(sys.argv[2])))
"""


def test_training_does_not_depend_on_the_number_of_ranks(tmp_path: Path) -> None:
    (tmp_path / "lines.py").write_text(LINEAR)
    found = []
    for ranks, backend in ((1, "gloo"), (2, "skyphos")):
        words = [backend, str(tmp_path / f"{ranks}.json")]
        run(tmp_path / "lines.py", *words, ranks=ranks, launcher="torchrun" if ranks > 1 else "none")
        entry = recorded(tmp_path / f"{ranks}.json", ranks)
        found.append([(epoch["train_loss"], epoch["error"], epoch["rate"]) for epoch in entry["epochs"]])
    for alone, together in zip(*found, strict=True):
        assert together == pytest.approx(alone, rel=1e-5)


def test_batches() -> None:
    counts = torch.randint(1, 40, (500,), generator=torch.Generator().manual_seed(1)).tolist()
    first, again, next_epoch = (global_batches(counts, counts, 100, 7, epoch) for epoch in (0, 0, 1))
    assert first == again != next_epoch
    for steps in (first, next_epoch):
        assert sorted(sample for step in steps for sample in step) == list(range(500))
        assert all(sum(counts[sample] for sample in step) <= 100 for step in steps)
    for size in (1, 2, 3, 8):
        parts = [sample for rank in range(size) for sample in share(first[0], rank, size)]
        assert sorted(parts) == sorted(first[0])
    assert global_batches([300, 1], [300, 1], 100, 1, 0) in ([[0], [1]], [[1], [0]])


def test_atis_reader(tmp_path: Path) -> None:
    file = tmp_path / "a.iob"
    file.write_text(
        "BOS at 838 am EOS\tO O B-time I-time atis_flight#atis_airfare\n\nBOS fares EOS\tO O atis_airfare\n"
    )
    one, two = atis.read(file)
    assert one == atis.Utterance(["at", "000", "am"], ["O", "B-time", "I-time"], ["atis_flight", "atis_airfare"])
    assert two.words == ["fares"] and two.intents == ["atis_airfare"]
    file.write_text("BOS fares EOS\tO atis_airfare\n")
    with pytest.raises(Exception, match="line 1"):
        atis.read(file)


def test_atis_is_whole() -> None:
    train, test = (atis.read(folder("atis") / f"atis.{name}.w-intent.iob") for name in ("train", "test"))
    assert (len(train), len(test)) == (4978, 893)
    task = atis.Atis(folder("atis"), atis.PRESETS["full"])
    assert 19e6 < sum(parameter.numel() for parameter in task.model().parameters()) < 21e6
    words, tags, intents = task.batch([3, 5], 0)
    assert words.shape == tags.shape and (words != 0).sum(1).tolist() == (tags != 0).sum(1).tolist()
    assert len(intents) == 2


def test_multi30k_reader() -> None:
    data = folder("multi30k")
    assert [len(multi30k.read(data, name)) for name in ("train", "val", "test_2016_flickr")] == [29000, 1014, 1000]
    english, german = multi30k.read(data, "train")[0]
    assert english[:3] == ["two", "young", ","] and german[:3] == ["zwei", "junge", "weiße"]


def test_pictures(tmp_path: Path) -> None:
    archive = pictures(tmp_path / "a.tar.gz", 3)
    for _ in range(2):  # decoded, and from the cache
        found, classes = images.load(archive, "train", tmp_path / "cache")
        assert found.shape == (30, 3, 32, 32) and classes.tolist() == [*range(10)] * 3
        reds = found[classes == 9].mean((0, 2, 3))
        assert reds[0] > 180 > reds[1]
        archive.write_bytes(b"")
    draws = torch.tensor([[4, 4, 0], [4, 4, 1], [0, 8, 0]]).numpy()
    same, mirrored, moved = images.shifted(found[:3], draws)
    assert (same == found[0]).all() and (mirrored == found[1][:, :, ::-1]).all()
    assert (moved[:, 4:, :-4] == found[2][:, :-4, 4:]).all() and not moved[:, :4].any()


def test_synthetic_speech() -> None:
    one, again, other = utterance(1, 5), utterance(1, 5), utterance(1, 6)
    assert one.phones == again.phones and (one.frames == again.frames).all()
    assert one.frames.shape[1] == FEATURES and len(one.frames) >= 2 * len(one.phones)
    assert one.frames.shape != other.frames.shape or (one.frames != other.frames).any()


def test_spans_and_f1() -> None:
    assert list(spans(["O", "I-a", "I-a", "B-a", "I-b", "O", "B-b"])) == [
        ("a", 1, 3),
        ("a", 3, 4),
        ("b", 4, 5),
        ("b", 6, 7),
    ]
    sums = Counter(span_counts(["B-a", "I-a", "O", "B-b"], ["B-a", "I-a", "O", "B-c"]))
    sums.update(span_counts(["B-a", "O"], ["B-a", "I-a"]))
    assert f1(sums) == pytest.approx(100 / 3)
    assert f1(span_counts(["O"], ["O"])) == 0


def test_bleu_is_sacrebleus() -> None:
    said = ["the cat sat on the mat today", "a dog runs in the green park", "he said that it was late"]
    true = ["the cat sat on a mat", "the dog runs in the green park quickly", "he said it was very late"]
    sums: Counter[str] = Counter()
    for one, other in zip(said, true, strict=True):
        sums.update(bleu_counts(one.split(), other.split()))
    assert bleu(sums) == pytest.approx(52.03947381233964)  # by sacrebleu 2.6.0, tokenize and smoothing "none"
    assert bleu(bleu_counts(["the", "dog", "runs", "in", "the"], true[1].split())) == pytest.approx(54.88116360940266)
    assert bleu(bleu_counts([], ["a"])) == 0


def test_edits() -> None:
    assert [edits("", "abc"), edits("abc", "abc"), edits("abc", "bcd"), edits("flaw", "lawn")] == [3, 0, 2, 2]


def test_padding() -> None:
    assert padded([[5], [1, 2, 3]]).tolist() == [[5, 0, 0], [1, 2, 3]]
