"""Hosts and racks in a probe's file."""

from __future__ import annotations

from dataclasses import dataclass

from .json_reader import JsonReader

__all__ = ["Host", "read_hosts", "read_racks"]


@dataclass(frozen=True)
class Host:
    """A machine: its name, its address for the other machines, and its ranks."""

    name: str
    address: str
    ranks: tuple[int, ...]


def read_hosts(at: JsonReader, ranks: int) -> list[Host]:
    """The hosts of a file, checked: each rank is on one of them."""
    hosts = [Host(host.text("name"), host.text("address"), tuple(host.wholes("ranks"))) for host in at.parts("hosts")]
    listed = sorted(rank for host in hosts for rank in host.ranks)
    # Compare without making a list of a size that an untrusted file states.
    if len(listed) != ranks or listed != list(range(len(listed))):
        at.fail("hosts", f"must have each of the ranks 0 to {ranks - 1} once")
    return hosts


def read_racks(topology: JsonReader, hosts: int) -> list[list[int]]:
    """Numbers of hosts, rack by rack; each host is in one rack."""
    racks = [rack.wholes(None) for rack in topology.parts("racks")]
    if sorted(host for rack in racks for host in rack) != list(range(hosts)):
        topology.fail("racks", f"must have each of the hosts 0 to {hosts - 1} once")
    return racks
