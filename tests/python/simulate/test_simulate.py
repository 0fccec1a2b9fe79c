"""Simulated clusters from Python: the function, the command, the page and the trace."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from skyphos.cli.simulate import command
from skyphos.errors import BadInput
from skyphos.pages.simulate import render
from skyphos.simulate import Network, Simulation, collectives, simulate

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


#: Files that are nested too deeply, and their error.
DEEP = [(deep, r"net\.json: .* more than 50 deep") for deep in ("[" * 100_000, '{"ranks":' * 60 + "1" + "}" * 60)]


@pytest.mark.parametrize("name", collectives())
def test_every_collective(name: str) -> None:
    found = simulate(TROUBLED, name, n=3000, entries=100)
    assert found.phases[-1].name == name
    assert len(found.phases[-1].seconds) == 24
    assert "<svg" in render(TROUBLED, 3000, 100, found)


def test_thousands_of_ranks_with_lengths_alone() -> None:
    """With ``sized=True``, frames have lengths and no data."""
    found = simulate(Network(4096), "reduce", n=60_000_000, entries=12_600_000, alpha=1.1, sized=True, degrees=[16] * 3)
    last = found.phases[-1]
    assert len(last.seconds) == 4096
    assert [r.name for r in last.rounds][:3] == ["down 1", "down 2", "down 3"]
    assert {r.messages for r in last.rounds} == {4096 * 15}


@pytest.mark.parametrize("route", ["auto", "chain", "binomial", "scatter_allgather", "simple"])
def test_a_broadcast_of_gigabytes_with_lengths_alone(route: str) -> None:
    network = Network(12, rate_out=1.25e8, rate_in=1.25e8)
    done = simulate(network, "broadcast", n=1_000_000, row_bytes=1000, algorithm=route, sized=True).phases[-1]
    assert done.algorithm == ("chain" if route == "auto" else route)
    assert done.chunk_bytes == 131_072
    moved = sum(r.received_bytes for r in done.rounds if r.name in ("bytes", "around"))
    assert moved == 11 * 10**9
    # How many times the message's bytes pass the busiest link one after another.
    passes = {"chain": 1.0, "auto": 1.0, "scatter_allgather": 22 / 12, "binomial": 4.0, "simple": 11.0}[route]
    seconds_on_link = 1e9 / 1.25e8 * 1538 / 1448
    assert passes * seconds_on_link * 0.93 < done.last_s < passes * seconds_on_link * 1.05
    short = simulate(network, "broadcast", n=10**6, row_bytes=1, algorithm="chain", chunk_bytes=10_000, sized=True)
    assert short.phases[-1].chunk_bytes == 10_000


def test_real_bytes_move_as_lengths_do() -> None:
    for name, data in (("broadcast", {"n": 3_000_000}), ("shuffle", {"entries": 1_500_000})):
        real, sized = (
            simulate(TROUBLED, name, row_bytes=1, sized=sized, **data).phases[-1]  # type: ignore[arg-type]
            for sized in (False, True)
        )
        assert real == replace(sized, busy=real.busy, timeline=real.timeline), name


def test_time_of_a_shuffle_is_that_of_its_links_and_uplinks() -> None:
    network = Network(20, rate_out=1.25e8, rate_in=1.25e8)
    in_one = simulate(network, "shuffle", entries=10**8, row_bytes=1, sized=True)
    assert in_one.last_s == pytest.approx(0.95 * 1e8 / 1.25e8 * 1538 / 1448, rel=0.02)
    assert {r.name for r in in_one.phases[-1].rounds} == {"announced", "requested", "fetched"}
    # Half of a host's data leaves its rack, at a tenth of the rate.
    racks = replace(network, hosts_per_rack=10, uplink_rate=1.25e7)
    assert simulate(racks, "shuffle", entries=10**8, row_bytes=1, sized=True).last_s == pytest.approx(
        0.5 * 1e8 / 1.25e7 * 1538 / 1448, rel=0.05
    )


def test_places_are_drawn_from_the_seed_and_need_not_be_known() -> None:
    network = Network(40, rate_out=1e8, rate_in=1e8, hosts_per_rack=10, uplink_rate=2.5e7, scattered=True)
    assert network.hosts_of_ranks(3) == network.hosts_of_ranks(3) != network.hosts_of_ranks(4)
    assert sorted(network.hosts_of_ranks(3)) == list(range(40))

    def seconds(network: Network) -> tuple[float, ...]:
        return simulate(network, "broadcast", n=10**8, row_bytes=1, algorithm="chain", sized=True).phases[-1].seconds

    blind = replace(network, topology_known=False)
    assert seconds(blind) == seconds(blind)
    assert max(seconds(blind)) > 2 * max(seconds(network))
    assert "at random, unknown to the ranks" in render(blind, None, None, simulate(blind, "barrier"))
    with pytest.raises(BadInput, match="not both"):
        simulate(replace(network, dealt=True), "barrier")
    with pytest.raises(BadInput, match="seed"):
        network.hosts_of_ranks(-1)


def test_network_files_and_their_errors(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "net.json"
    path.write_text('{"ranks": 8, "jitter": "exponential(1e-3)"}')
    assert Network.load(str(path)).jitter == "exponential(1e-3)"
    bad = [("[1]", "at least the field ranks"), ('{"ranks": 2, "speed": 3}', "no speed"), ("{", r"net\.json"), *DEEP]
    for text, said in bad:
        path.write_text(text)
        with pytest.raises(BadInput, match=said):
            Network.load(str(path))
    with pytest.raises(BadInput, match=r"net2\.json"):
        Network.load(str(tmp_path / "net2.json"))


@pytest.mark.parametrize(
    ("name", "value"), [("jitter", 2e-3), ("start", 2e-3), ("clock", 0.5), ("straggler_slowness", 2.5)]
)
def test_numbers_in_place_of_distributions(name: str, value: float, tmp_path: Path) -> None:
    path = tmp_path / "net.json"
    path.write_text(json.dumps({"ranks": 4, "straggler_share": 0.5, name: value}))
    read = Network.load(str(path))
    assert read == replace(read, **{name: str(value)})  # type: ignore[arg-type]
    assert read == Network(4, straggler_share=0.5, **{name: value})  # type: ignore[arg-type]
    assert simulate(read, "barrier", n=1, entries=0).last_s > 0
    assert "jitter" in render(Network(4, jitter=0), None, None, simulate(read, "barrier", n=1, entries=0))


@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        ("ranks", "4", "a whole number, not '4'"),
        ("ranks", 4.5, "a whole number, not 4.5"),
        ("ranks", True, "a whole number, not True"),
        ("ranks_per_host", -1, "a whole number of at least 0"),
        ("dealt", 1, "true or false"),
        ("scattered", "yes", "true or false"),
        ("topology_known", 0, "true or false"),
        ("mtu", 1500.0, "a whole number"),
        ("latency_s", "slow", "a number, not 'slow'"),
        ("uplink_rate", [1], "a number"),
        ("jitter", [0.1], "a number, or a distribution"),
        ("machine", {"latency_s": 1}, "the path of a profile's file"),
        ("machine", 7, "the path of a profile's file"),
        ("machine", 0, "the path of a profile's file"),
        ("ranks", 1e308, "a whole number, not 1e+308"),
        ("latency_s", 10**400, "a number, not 1000"),
        ("rate_out", 10**400, "a number, not 1000"),
        ("jitter", 10**400, "a number, or a distribution"),
    ],
)
def test_fields_of_another_type_are_named(field: str, value: object, wanted: str, tmp_path: Path) -> None:
    path = tmp_path / "net.json"
    path.write_text(json.dumps({"ranks": 4, field: value}))
    with pytest.raises(BadInput, match=re.escape(wanted)) as error:
        Network.load(str(path))
    assert f"{path}: {field} " in str(error.value)


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (Network(0), "1 to 4096"),
        (Network(8, rate_out=-1.0, uplink_rate=1.0), "rate_out"),
        (Network(8, jitter="weibull(2)"), "lognormal"),
        (Network(8, straggler_share=2.0), "share of stragglers"),
        (Network(8, latency_s=float("nan")), "latency_s"),
        (Network(8, mtu=20), "mtu"),
    ],
)
def test_impossible_networks_are_refused(network: Network, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        simulate(network, "barrier", n=1, entries=0)


def test_equal_times_of_all_ranks_are_given_in_one_sentence() -> None:
    """The labels of the chart do not overlap."""
    done = simulate(Network(8), "reduce", n=60_000, entries=10_000, sized=True).phases[-1]
    page = render(Network(8), 60_000, 10_000, Simulation((replace(done, seconds=(0.0722,) * 8),)))
    assert "All ranks have their result after 72.2 ms." in page and ">first " not in page
    page = render(Network(8), 60_000, 10_000, Simulation((replace(done, seconds=(0.07,) * 7 + (0.09,)),)))
    found = re.findall(r'<text x="([0-9.]+)"[^>]*>(first|median|last) ', page)
    x = {name: float(at) for at, name in found}
    assert x["first"] < x["median"] - 100 and x["median"] < x["last"] - 100
    ticks = [float(at) for at in re.findall(r'<text x="([0-9.]+)" y="[0-9.]+" text-anchor="middle"', page)]
    assert max(ticks) <= 900 - 30  # half a label fits into the rest


def test_impossible_data_is_refused() -> None:
    with pytest.raises(BadInput, match="unknown collective"):
        simulate(Network(2), "allsum", n=1, entries=0)
    with pytest.raises(BadInput, match="at most n"):
        simulate(Network(2), n=10, entries=11)
    for wrong in ({"n": 10**30}, {"n": 0}, {"n": 1.5}, {"row_bytes": 10**30}, {"repeats": -1}):
        with pytest.raises(BadInput, match="must be a whole number"):
            simulate(Network(2), **({"n": 10, "entries": 1} | wrong))  # type: ignore[arg-type]
    for name, missing in (("allreduce", {"n": 10}), ("shuffle", {"n": 10}), ("gather", {"entries": 1})):
        with pytest.raises(BadInput, match=f"{name} takes (n|entries)="):
            simulate(Network(2), name, **missing)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="1 to 131072"):
        simulate(Network(2), "broadcast", n=10, chunk_bytes=1 << 20)
    with pytest.raises(BadInput, match="the bytes of a chunk"):
        simulate(Network(2), "broadcast", n=10, chunk_bytes=0)
    with pytest.raises(BadInput, match="one of auto, chain, binomial"):
        simulate(Network(2), "broadcast", n=10, algorithm="ring")
    with pytest.raises(BadInput, match="frames"):
        simulate(Network(2), "broadcast", n=2**60, row_bytes=2**30, sized=True)
    with pytest.raises(BadInput, match="gather cannot run with lengths"):
        simulate(Network(2), "gather", n=10, entries=1, sized=True)
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
        ("--ranks 4 --size 10 --density 0.1 --chart a.pdf", ".html, .htm"),
        ("--ranks 4 --size 10 --density 0.1 --entries 3", "exclude each other"),
        ("--ranks 4 --size 10 --density 0.1 --degrees 2x2", "say --algorithm butterfly"),
        ("--ranks 4 --size 10 --density 0.1 --degrees 2x2 --algorithm ring", "an allreduce by ring"),
        ("--ranks 4 --size 10 --density 0.1 --degrees 2x2 --collective allgather", "for configure, reduce, config"),
        ("--ranks 4 --degrees 2x2 --collective barrier", "--degrees means nothing to barrier"),
        ("--ranks 4 --size 10 --density 0.1 --algorithm ring --collective allgather", "for allreduce, allreduce_dense"),
        ("--ranks 4 --collective broadcast", "--size"),
        ("--ranks 4 --size 10 --entries 3 --collective broadcast", "--entries means nothing to broadcast"),
        ("--ranks 4 --collective shuffle", "how many rows a rank has: --entries"),
        ("--ranks 4 --size 10 --entries 3 --collective shuffle", "--size means nothing to shuffle"),
        ("--ranks 4 --density 0.1 --collective shuffle", "--density means nothing to shuffle"),
        ("--ranks 4 --entries 5 --collective shuffle --chunk-bytes 9", "--chunk-bytes means nothing to shuffle"),
        ("--ranks 4 --size 10 --collective broadcast --scattered --dealt", "not both"),
        ("--ranks 4 --size 10 --density 0.1 --collective allreduce_dense", "--density means nothing to allreduce_d"),
        ("--ranks 4 --size 10 --alpha 1 --collective allreduce_dense", "--alpha means nothing"),
        ("--ranks 4 --size 10 --collective barrier", "--size means nothing to barrier"),
        ("--ranks 4 --size 10 --density 0.1 --collective allsum", "--list names them"),
        ("--ranks 4 --size 10 --density 0.1 --oversubscribed 2", "--hosts-per-rack"),
        ("--ranks 4 --size 10 --density 0.1 --oversubscribed 2 --hosts-per-rack 4", "all 4 hosts are in one rack"),
        ("--ranks 4 --size 10 --density 0.1 --stragglers 0.05", "SHARE:DISTRIBUTION"),
        ("--ranks 4 --size 10 --density 0.1 --stragglers 0.05:", "SHARE:DISTRIBUTION"),
        ("--ranks 4 --size 10 --density 0.1 --stragglers 0.5:0.1", "at least 1, not 0.1"),
        ("--ranks 4 --size 10 --density 0.1 --stragglers 0.5:uniform(0.1,0.9)", "not 0.9"),
        ("--ranks 4 --size 10 --density 0.1 --rate 3", "'--rate': '3' is not a rate"),
    ],
)
def test_errors_of_the_command(words: str, said: str) -> None:
    done = CliRunner().invoke(command, words.split())
    assert done.exit_code != 0
    assert said in done.output + str(done.exception)


def test_collectives_without_sparse_data_need_no_entries() -> None:
    done = CliRunner().invoke(command, ["--ranks", "4", "--collective", "barrier"])
    assert done.exit_code == 0 and done.output.startswith("4 ranks, seed 1\nbarrier: ")
    arrays = CliRunner().invoke(command, ["--ranks", "4", "--collective", "allreduce_dense", "--size", "1e3"])
    assert arrays.exit_code == 0 and "entries" not in arrays.output


def test_options_of_an_allreduce_by_butterfly(tmp_path: Path) -> None:
    page = tmp_path / "sim.htm"
    words = (
        "--ranks 8 --size 1e4 --density 0.1 --algorithm butterfly --degrees 4x2 --hosts-per-rack 4 --oversubscribed 2"
    )
    words += " --stragglers 0.5:uniform(0.5,3)"
    done = CliRunner().invoke(command, [*words.split(), "--chart", str(page)])
    assert done.exit_code == 0 and "allreduce by butterfly, degrees 4x2" in done.output, done.output
    assert page.exists()
    said = " ".join(CliRunner().invoke(command, ["--help"]).output.split())
    assert "For topk_allreduce k" in said and "not its share of a core" in said


def test_the_command_reports_bytes(tmp_path: Path) -> None:
    page = tmp_path / "sim.html"
    words = "--ranks 30 --collective broadcast --size 1e8 --row-bytes 10 --sized --rate 1Gbit --mtu 9000"
    words += " --hosts-per-rack 10 --oversubscribed 2 --scattered --topology-unknown --algorithm chain"
    done = CliRunner().invoke(command, [*words.split(), "--chart", str(page)])
    assert done.exit_code == 0, done.output
    assert done.output.startswith("30 ranks, a message of 1.00 GB, seed 1\nbroadcast by chain, chunks of 131 kB: ")
    assert "a message of 1.00 GB" in page.read_text() and "unknown to the ranks" in page.read_text()
    words = "--ranks 10 --collective shuffle --entries 1e6 --row-bytes 12 --json"
    (phase,) = json.loads(CliRunner().invoke(command, words.split()).output)
    fetched = next(r for r in phase["rounds"] if r["name"] == "fetched")
    assert fetched["sent_bytes"] == 9 * 12 * 10**6 and phase["chunk_bytes"] is None


def test_sums_of_outer_products_with_data_and_without() -> None:
    """Times and bytes agree with data and with lengths; a ring sends its bytes, and thin factors are gathered."""
    network = Network(8, rate_out=1e9 / 8, rate_in=1e9 / 8)
    for algorithm in ("auto", "allgather", "rabenseifner", "ring"):
        asked: dict[str, Any] = {"n": 300, "cols": 200, "entries": 2, "row_bytes": 8, "algorithm": algorithm}
        real, sized = (simulate(network, "outer_product_sum", **asked, sized=only).phases[-1] for only in (False, True))
        assert real.algorithm == sized.algorithm and sized.last_s == pytest.approx(real.last_s, rel=0.05)
        moved = [{r.name: r.sent_bytes for r in phase.rounds if r.name != "agree"} for phase in (real, sized)]
        assert moved[0] == moved[1]
    big = simulate(network, "outer_product_sum", n=4000, entries=1, row_bytes=8, sized=True).phases[-1]
    ring = simulate(network, "outer_product_sum", n=4000, entries=1, row_bytes=8, algorithm="ring", sized=True).phases[
        -1
    ]
    assert big.algorithm == "allgather" and big.last_s < 0.05
    bound = 2 * 7 / 8 * 4000 * 4000 * 8 / (1e9 / 8)
    assert bound < ring.last_s < 1.2 * bound
    for wrong, says in (
        ({"row_bytes": 2}, "4 or 8 bytes"),
        ({"cols": 0}, "columns"),
        ({"algorithm": "best"}, "unknown"),
    ):
        with pytest.raises(BadInput, match=says):
            simulate(network, "outer_product_sum", **{"n": 10, "entries": 1, "row_bytes": 8, "sized": True} | wrong)
