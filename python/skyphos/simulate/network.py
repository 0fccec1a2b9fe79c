"""Network of a simulated cluster: links, racks, processors, and their faults."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from numbers import Integral
from typing import Any

from .. import _skyphos as native
from ..errors import BadInput
from ..planning.planner import Profile, is_real, read_json, read_text, short

__all__ = ["Network", "checked_seed"]

#: Fields of a network that are whole numbers, booleans, and numbers or distributions.
_WHOLE = ("ranks", "ranks_per_host", "hosts_per_rack", "mtu")
_YES_OR_NO = ("dealt", "scattered", "topology_known")
_DRAWN = ("jitter", "straggler_slowness", "start", "clock")


def _default_machine() -> Profile:
    return Profile.network(1e9)


@dataclass(frozen=True)
class Network:
    """A simulated cluster. Ranks fill hosts, and hosts fill racks, in their order.

    Attributes
    ----------
    ranks : int
        1 to 4,096.
    rate_out, rate_in : float
        Bytes a second of a host's link in each direction.
    latency_s : float
        Seconds until a small message arrives.
    message_s : float
        Seconds for which each message occupies a host's link, whatever its length: the cost of small messages
        (*Kylix*, Figure 2).
    mtu : int
        Bytes of the largest packet with the headers of IP and TCP, without Ethernet's; 9000 for jumbo frames.
    packet_floor : float
        Least number of bytes that a frame occupies on the link.
    incast : float
        Fraction by which a transfer takes longer, for each other host that sends to the same host at the same time.
    ranks_per_host, hosts_per_rack : int
        Ranks of a host, and hosts of a rack; ``hosts_per_rack=0`` puts all hosts into one rack.
    dealt : bool
        Ranks are placed on hosts round-robin, instead of filling one host after the other.
    scattered : bool
        Ranks are placed on hosts at random, by the simulation's seed (:meth:`hosts_of_ranks`).
    topology_known : bool
        Ranks know hosts and racks, and collectives use them. False: collectives use only the rank numbers.
    cores : float
        Cores of a host, shared by its ranks.
    uplink_rate : float, optional
        Bytes a second into and out of a rack for each host in it; below ``rate_out`` the uplink is oversubscribed.
        None: not oversubscribed.
    host_rate, host_latency_s : float
        Bytes a second, and latency, between ranks of one host.
    jitter : float or str
        Seconds by which a message is late: a number or a distribution, ``"exponential(1e-4)"``,
        ``"lognormal(1e-4, 1)"``, ``"pareto(1e-5, 1.5)"``, ``"uniform(0, 1e-3)"``, ``"normal(1e-3, 1e-4)"``.
    straggler_share, straggler_slowness : float, float or str
        Share of ranks that are slow, and the factor by which their work takes longer: a number or a distribution, whose
        values below 1 count as 1.
    start, clock : float or str
        Seconds by which a rank enters a call late, and by which its clock is ahead: numbers or distributions.
    machine : Profile
        Processor times of frames, bytes, entries and rows. Its network, its share of a core, ``wake_s`` and ``call_s``
        are ignored.

    Raises
    ------
    BadInput
        If a field has another type; names it.

    Examples
    --------
    >>> from skyphos.simulate import Network
    >>> Network(64, rate_out=1.25e9, rate_in=1.25e9, jitter="exponential(1e-4)").ranks
    64
    """

    ranks: int
    rate_out: float = 1.25e9
    rate_in: float = 1.25e9
    latency_s: float = 50e-6
    message_s: float = 0.0
    mtu: int = 1500
    packet_floor: float = 0.0
    incast: float = 0.0
    ranks_per_host: int = 1
    dealt: bool = False
    scattered: bool = False
    topology_known: bool = True
    hosts_per_rack: int = 0
    cores: float = 1.0
    uplink_rate: float | None = None
    host_rate: float = 4e9
    host_latency_s: float = 10e-6
    jitter: str | float = "0"
    straggler_share: float = 0.0
    straggler_slowness: str | float = "1"
    start: str | float = "0"
    clock: str | float = "0"
    machine: Profile = field(default_factory=_default_machine)

    def __post_init__(self) -> None:
        for known in fields(self):
            object.__setattr__(self, known.name, _checked(known.name, getattr(self, known.name)))
        if self.uplink_rate is None:
            # So fast that the uplink never limits a transfer.
            object.__setattr__(self, "uplink_rate", max(self.rate_out, self.rate_in) * 1e3)

    def hosts_of_ranks(self, seed: int = 1) -> list[int]:
        """Return the host of each rank, in a simulation of this seed.

        Hosts fill racks in their order: host h is in rack ``h // hosts_per_rack``.

        Raises
        ------
        BadInput
            For an invalid network or seed.

        Examples
        --------
        >>> from skyphos.simulate import Network
        >>> Network(6, ranks_per_host=2).hosts_of_ranks(), Network(6, ranks_per_host=2, dealt=True).hosts_of_ranks()
        ([0, 0, 1, 1, 2, 2], [0, 1, 2, 0, 1, 2])
        >>> sorted(Network(6, ranks_per_host=2, scattered=True).hosts_of_ranks(seed=7))
        [0, 0, 1, 1, 2, 2]
        """
        return native.simulated_hosts(self, checked_seed(seed))

    @classmethod
    def load(cls, path: str) -> Network:
        """Read a description: a JSON object of these fields, with the path of a profile's file for ``machine``.

        Raises BadInput for an invalid file; names it, and the wrong field.
        """
        found = read_json(read_text(path), path)
        known = {f.name for f in fields(cls)}
        if not isinstance(found, dict) or "ranks" not in found:
            raise BadInput(f"{path}: a network is a JSON object with at least the field ranks")
        strange = sorted(set(found) - known)
        if strange:
            raise BadInput(f"{path}: a network has no {', '.join(strange)}; it has {', '.join(sorted(known))}")
        if "machine" in found:
            if not isinstance(found["machine"], str):
                raise BadInput(f"{path}: machine must be the path of a profile's file, not {short(found['machine'])}")
            found["machine"] = Profile.load(found["machine"])
        try:
            return cls(**found)
        except BadInput as error:
            raise BadInput(f"{path}: {error}") from None


def _checked(name: str, value: Any) -> Any:
    """Check the type of a field's value; convert a number given for a distribution to text."""
    is_number = is_real(value)
    if name in _WHOLE:
        is_whole = isinstance(value, Integral) and not isinstance(value, bool)
        is_valid, expected = is_whole and 0 <= int(value) < 2**32, "a whole number"
        expected += " of at least 0, below 2^32" if is_whole else ""
    elif name in _DRAWN:
        is_valid = is_number or isinstance(value, str)
        expected = 'a number, or a distribution such as "uniform(0, 1e-3)"'
        value = (repr(float(value)) if value else "0") if is_number else value
    elif name in _YES_OR_NO:
        is_valid, expected = isinstance(value, bool), "true or false"
    elif name == "machine":
        is_valid, expected = isinstance(value, Profile), "a skyphos.planning.Profile"
    else:
        is_valid, expected = is_number or (name == "uplink_rate" and value is None), "a number"
    if not is_valid:
        raise BadInput(f"{name} of a network must be {expected}, not {short(value)}")
    return value


def checked_seed(seed: int) -> int:
    """Return the seed if it is valid; raise BadInput if not."""
    if not 0 <= seed < 2**64:
        raise BadInput(f"a seed is a number from 0 to 2^64 - 1, not {seed}")
    return seed
