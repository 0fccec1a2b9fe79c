"""`skyphos plan`: predictions, choice and assumptions, as text, JSON and a page."""

from __future__ import annotations

import json
import pathlib
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner

import skyphos as sky
from skyphos.cli.plan import command
from skyphos.cli.units import parse_bytes, parse_rate
from skyphos.planning import Prediction, Profile
from skyphos.planning.forecast import Assumptions, chosen, forecast
from skyphos.planning.profile_file import Host, Measured

TWITTER = ("--ranks", "64", "--size", "60e6", "--density", "0.21", "--alpha", "1.1")
SMALL = ("--ranks", "8", "--size", "1e6", "--entries", "100")
COLLECTIVES = ["allreduce", "reduce_scatter", "reduce"]


def run(*arguments: str) -> str:
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def refused(*arguments: str) -> str:
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code != 0
    return result.output + str(result.exception)


def test_the_command_lists_each_choice(tmp_path: pathlib.Path) -> None:
    page = tmp_path / "plan.html"
    said = run(*TWITTER, "--min-packet", "5MB", "--chart", str(page))
    assert "n = 60,000,000" in said and "degrees 8x4x2" in said and "Lemma 5.2" in said
    assert "down 1" in said and "up 1" in said
    assert page.read_text().startswith("<!doctype html>")
    found = json.loads(run("--ranks", "8", "--size", "16777216", "--entries", "131072", "--rate", "250Mbit", "--json"))
    assert found["predictions"][0]["seconds"] <= found["predictions"][-1]["seconds"]
    assert found["assumed"]["profile"]["rate"] == 250e6 / 8
    assert len(run("--ranks", "64", "--size", "1e6", "--entries", "10", "--all").splitlines()) > 32


def test_the_command_plans_degrees(tmp_path: pathlib.Path) -> None:
    """Kylix's Twitter graph: a message that costs a millisecond makes layers of mixed degrees worth it."""
    page = tmp_path / "plan.html"
    twitter = ("--collective", "reduce", *TWITTER)
    said = run(*twitter, "--message", "5e-3", "--chart", str(page))
    assert "Configured once" in said and "asked" not in said and "Lemma" not in said
    assert "down 2" in said and "down 2" not in run(*twitter, "--message", "0", "--latency", "0")
    assert "<svg" in page.read_text()


@pytest.mark.parametrize("ranks", ["1", "7", "8"])
@pytest.mark.parametrize(
    ("collective", "title"),
    [("allreduce", "an allreduce"), ("reduce_scatter", "a reduce-scatter"), ("reduce", "a configured reduction")],
)
def test_a_page_of_each_collective(tmp_path: pathlib.Path, collective: str, title: str, ranks: str) -> None:
    page = tmp_path / "plan.htm"
    run("--ranks", ranks, "--size", "1e6", "--density", "0.01", "--collective", collective, "--chart", str(page))
    text = page.read_text()
    assert f"<title>Plan of {title} " in text and f"<b>{title}</b>" in text
    assert "Assumed: defaults of hosts on a network; 1.25 GB/s each way, latency 50.0 µs" in text
    assert ("configured once, in" in text) == (collective == "reduce")
    assert ("▼ layer 1" in text) == (ranks != "1")
    assert ("▲ layer 1" in text) == (ranks != "1" and collective != "reduce_scatter")


def test_the_choice_of_auto_is_marked() -> None:
    """Small vectors go by recursive doubling, whatever is predicted. Every algorithm of auto records the entries."""
    assert "* recursive_doubling " in run(*SMALL) and "\n* the choice of auto: for vectors of at most 16 KB" in run(
        *SMALL
    )
    assert "* recursive_doubling " in run("--ranks", "8", "--size", "1e6", "--entries", "2048")
    assert "\n* the first choice of auto" in run("--ranks", "8", "--size", "1e6", "--entries", "2049")
    for rate in ("10Mbit", "100Mbit", "1Gbit", "8Gbit"):
        said = run("--ranks", "16", "--size", "4194304", "--density", "0.2", "--rate", rate)
        assert "* split_allgather_dense" not in said and said.count("\n* ") == 2
    found = [Prediction(name, (), ()) for name in ("split_allgather_dense", "ring", "recursive_doubling")]
    assert [chosen("allreduce", 8, count, 4, found).name for count in (2048, 2049)] == ["recursive_doubling", "ring"]
    seen = forecast("allreduce", 8, 10**6, 1e5, assumed=Assumptions(Profile.network(1e9), "defaults"))
    seen = replace(seen, found=tuple(found), chosen=found[1])
    assert "never split_allgather_dense, which does not record" in seen.why()


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_json_agrees_with_the_text(collective: str) -> None:
    found: dict[str, Any] = json.loads(run(*TWITTER, "--collective", collective, "--json"))
    said = run(*TWITTER, "--collective", collective)
    assert f"{found['result_entries']:,.0f} in the result" in said
    assert f"degrees {'x'.join(map(str, found['papers']['degrees']))}." in said
    assert f"\n* {found['chosen']['why']}\n" in said and found["assumed"]["source"] in said
    marked = next(line for line in said.splitlines() if line.startswith("* "))
    assert marked.startswith(f"* {found['chosen']['algorithm']} ")
    is_plan = collective == "reduce"
    assert (found["configure_seconds"] is not None, found["survey"] is None) == (is_plan, is_plan)
    assert all(("configure_seconds" in p) == is_plan for p in found["predictions"])


def test_the_text_stays_short() -> None:
    for collective in COLLECTIVES:
        said = run("--ranks", "1024", "--size", "1e6", "--density", "0.01", "--collective", collective)
        assert len(said.splitlines()) < 60
    assert "65536" in refused("--ranks", "65537", "--size", "1e6", "--density", "0.01")


def test_assumptions_are_printed(probed: Measured, tmp_path: pathlib.Path) -> None:
    """Without a file defaults are used, not the user's own profile; with one, the measured hosts are printed."""
    assert "Assumed: defaults of hosts on a network; 1.25 GB/s each way" in run(*SMALL)
    on_one_host = run(*SMALL, "--one-host", "--latency", "0.001")
    assert "Assumed: defaults of ranks on this host; " in on_one_host and "latency 1.00 ms" in on_one_host
    path = tmp_path / "p.json"
    path.write_text(probed.to_json())
    same = run(*SMALL, "--ranks", "4", "--profile", str(path))
    assert "note:" not in same and "Assumed: the profile p.json, measured by 4 ranks on one host (" in same
    other = run(*SMALL, "--profile", str(path))
    assert other.startswith("note: the profile p.json was measured by 4 ranks on one host (")
    assert "and is used as it is for 8 ranks" in other
    hosts = [Host("a", "1", (0, 1)), Host("b", "2", (2, 3))]
    topology = replace(probed.topology, racks=[[0], [1]])
    path.write_text(replace(probed, hosts=hosts, topology=topology).to_json())
    assert "4 ranks on 2 hosts (a, b), not on this one, and is used" in run(*SMALL, "--profile", str(path))
    path.write_text(probed.profile.to_json())
    bare = run(*SMALL, "--profile", str(path))
    assert "does not say where they were measured" in bare and "note:" not in bare


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--profile", "p.json", "--rate", "1Gbit"), "leave out --rate"),
        (("--profile", "p.json", "--one-host"), "leave out --one-host"),
        (("--profile", "p.json", "--latency", "1", "--message", "0"), "leave out --latency, --message"),
        (("--rate", "10Gbit", "--one-host"), "give one of them"),
        (("--density", "0.1"), "--density and --entries exclude each other"),
        (("--rate", "fast"), "'--rate': 'fast' is not a rate"),
        (("--rate", "0Gbit"), "'--rate': '0Gbit' is not a rate"),
        (("--min-packet", "2"), "'--min-packet': '2' is not a size: write 2MB or 16KB"),
        (("--min-packet", "2Mbit/s"), "'2Mbit/s' is not a size"),
        (("--size", "1e19"), "from 1 to 2^63 - 1"),
        (("--entries", "0"), "from 1 to 2^63 - 1"),
        (("--entries", "2e6"), "at most n"),
        (("--profile", "/nowhere/profile.json"), "/nowhere/profile.json"),
        (("--latency", "nan"), "latency_s"),
        (("--chart", "plan.pdf"), ".html, .htm"),
        (("--latency", "1e308"), "--latency: latency_s of a profile must be a number between 0 and 1e+06"),
        (("--message", "nan"), "--message: message_s"),
        (("--rate", "0.0000001bit"), "--rate: rate of a profile must be a number between 1 and 1e+15"),
        (("--rate", "1e300GB"), "at most 1e+15"),
        (("--min-packet", "1e300MB"), "at most 1e+15"),
        (("--row-bytes", "9" * 23), "--row-bytes"),
    ],
)
def test_invalid_options(arguments: tuple[str, ...], words: str) -> None:
    assert words in refused(*SMALL, *arguments)


def test_missing_options() -> None:
    assert "--density or --entries" in refused("--ranks", "4", "--size", "10")
    assert "between 0 and 1" in refused("--ranks", "4", "--size", "10", "--density", "1.5")


def test_defaults_are_in_the_help() -> None:
    said = " ".join(run("--help").split())
    hosts, one_host = Profile.network(1e9), Profile.one_host(1)
    assert f"default: {hosts.latency_s:g}, with --one-host {one_host.latency_s:g}" in said
    assert f"a link. [default: {hosts.message_s:g}]" in said
    assert "Only a file that is named here is read" in said


def test_rates_and_sizes() -> None:
    assert (parse_rate("1 gbit/s"), parse_bytes("16KB"), parse_bytes("2 mb")) == (125e6, 16e3, 2e6)
    for text in ("", "10", "Gbit", "1..2Gbit", "-1Gbit", "1e999GB"):
        with pytest.raises(sky.BadInput, match="is not a rate"):
            parse_rate(text)
    for text in ("", "2", "2Mbit", "2MB/s", "0B"):
        with pytest.raises(sky.BadInput, match="is not a size"):
            parse_bytes(text)


def test_the_largest_index_space() -> None:
    arguments = ("--ranks", "2", "--size", str(2**63 - 1), "--entries", "7")
    assert "n = 9,223,372,036,854,775,807," in run(*arguments)
    assert "2^63 - 1" in refused(*arguments[:3], str(2**63), *arguments[4:])


def test_one_rank_has_no_layers_and_no_survey() -> None:
    seen = forecast("allreduce", 1, 100, 5, assumed=Assumptions(Profile.network(1e9), "defaults"))
    assert (seen.best_butterfly, seen.survey, seen.why()) == (None, None, "the choice of auto")
