"""Simulated clusters from Python: the function, the command, the page and the trace."""

import json

import pytest
from click.testing import CliRunner

from skyphos.cli.simulate import command
from skyphos.errors import BadInput
from skyphos.simulate import Network, collectives, simulate
from skyphos.simulate_page import render

TROUBLED = Network(
    24,
    rate_out=1e8,
    rate_in=1e8,
    ranks_per_host=2,
    hosts_per_rack=4,
    uplink_rate=2e7,
    jitter="lognormal(1e-4, 1)",
    straggler_share=0.2,
    straggler_slowness="uniform(2, 5)",
    start="exponential(1e-3)",
    clock="uniform(0, 2)",
)


def test_the_same_seed_gives_the_same_trace_byte_for_byte() -> None:
    def run(seed: int) -> str:
        found = simulate(TROUBLED, "reduce", n=20_000, entries=500, alpha=1.1, seed=seed, trace=True)
        return found.phases[-1].trace

    first = run(7)
    assert first == run(7)
    assert first != run(8)
    events = json.loads(first)["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert {event["name"] for event in slices} >= {"work", "down 1", "up 1"}
    assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in slices)


@pytest.mark.parametrize("name", collectives())
def test_every_collective(name: str) -> None:
    found = simulate(TROUBLED, name, n=3000, entries=100)
    assert found.phases[-1].name == name
    assert len(found.phases[-1].seconds) == 24
    assert "<svg" in render(TROUBLED, 3000, 100, found)


def test_thousands_of_ranks_with_lengths_alone() -> None:
    found = simulate(Network(4096), "reduce", n=60_000_000, entries=12_600_000, alpha=1.1, sized=True, degrees=[16] * 3)
    last = found.phases[-1]
    assert len(last.seconds) == 4096
    assert [r.name for r in last.rounds][:3] == ["down 1", "down 2", "down 3"]
    assert {r.messages for r in last.rounds} == {4096 * 15}


def test_a_network_is_read_and_what_it_lacks_is_named(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "net.json"
    path.write_text('{"ranks": 8, "jitter": "exponential(1e-3)"}')
    assert Network.load(str(path)).jitter == "exponential(1e-3)"
    for text, said in [("[1]", "at least ranks"), ('{"ranks": 2, "speed": 3}', "no speed"), ("{", r"net\.json")]:
        path.write_text(text)
        with pytest.raises(BadInput, match=said):
            Network.load(str(path))
    with pytest.raises(BadInput, match=r"net2\.json"):
        Network.load(str(tmp_path / "net2.json"))


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (Network(0), "1 to 4096"),
        (Network(8, rate_out=-1.0, uplink_rate=1.0), "rate_out"),
        (Network(8, jitter="weibull(2)"), "lognormal"),
        (Network(8, straggler_share=2.0), "share of stragglers"),
        (Network(8, latency_s=float("nan")), "latency_s"),
    ],
)
def test_impossible_networks_are_refused(network: Network, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        simulate(network, "barrier", n=1, entries=0)


def test_impossible_data_is_refused() -> None:
    with pytest.raises(BadInput, match="unknown collective"):
        simulate(Network(2), "allsum", n=1, entries=0)
    with pytest.raises(BadInput, match="at most n"):
        simulate(Network(2), n=10, entries=11)
    with pytest.raises(BadInput, match="rank 9"):
        simulate(Network(2), n=10, entries=1, watch=[9])
    with pytest.raises(BadInput, match="seed"):
        simulate(Network(2), n=10, entries=1, seed=-1)


def test_the_command(tmp_path) -> None:  # type: ignore[no-untyped-def]
    chart, trace = tmp_path / "sim.html", tmp_path / "sim.json"
    words = "--ranks 16 --collective reduce --size 1e5 --density 0.01 --alpha 1.0 --degrees 4x4"
    words += " --stragglers 0.1:constant(3)"
    done = CliRunner().invoke(command, [*words.split(), "--chart", str(chart), "--trace", str(trace)])
    assert done.exit_code == 0, done.output
    assert "reduce, degrees 4x4" in done.output and "down 2" in done.output
    page = chart.read_text()
    assert "http://" not in page and "https://" not in page
    assert json.loads(trace.read_text())["traceEvents"]
    as_json = CliRunner().invoke(command, [*words.split(), "--json"])
    assert [phase["name"] for phase in json.loads(as_json.output)] == ["configure", "reduce"]
    assert "allreduce" in CliRunner().invoke(command, ["--list"]).output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--ranks 4 --size 10", "--density or --entries"),
        ("--size 10 --density 0.1", "how many ranks"),
        ("--ranks 4 --size 10 --density 3", "between 0 and 1"),
        ("--ranks 4 --size 10 --density 0.1 --stragglers many", "uniform"),
        ("--ranks 4 --size 10 --density 0.1 --oversubscribed 0", "above 0"),
        ("--ranks 4 --size 10 --density 0.1 --chart a.pdf", ".html"),
    ],
)
def test_the_command_refuses_with_words(words: str, said: str) -> None:
    done = CliRunner().invoke(command, words.split())
    assert done.exit_code != 0
    assert said in str(done.exception)
