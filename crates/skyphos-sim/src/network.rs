//! The description of a simulated cluster: links, hosts, racks and processors, and their irregularities.

use crate::costs::Costs;
use crate::distribution::Distribution;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_pcg::Pcg64;
use skyphos_core::Topology;
use skyphos_plan::Profile;
use skyphos_types::{Error, Result};

/// Ranks of a simulated cluster, at most.
pub const MAX_RANKS: u32 = 4096;

/// Bytes of a packet's headers of IP and TCP (with time stamps), and bytes of Ethernet around it, including the gap after it.
const IP_HEADER_BYTES: f64 = 52.0;
const ETHERNET_BYTES: f64 = 38.0;

/// Makes the random stream that assigns ranks to hosts differ from the other streams of a seed.
const PLACEMENT_STREAM: u64 = 0x7c15_2a6b_93d4_e80f;

/// Largest delay of a network in seconds: eleven days.
const MAX_SECONDS: f64 = 1e6;

/// A cluster. Ranks fill hosts in order, and hosts fill racks, unless a setting says otherwise.
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    /// Number of ranks.
    pub ranks: u32,
    /// Ranks per host. They share its link and its cores.
    pub ranks_per_host: u32,
    /// Whether ranks are assigned to hosts in turn, instead of filling one host after the other.
    pub dealt: bool,
    /// The seed of a random assignment of ranks to hosts, and so to racks; `None`: not random.
    pub scattered: Option<u64>,
    /// Whether ranks know the topology. Without it collectives use the order of ranks.
    pub topology_known: bool,
    /// Cores per host.
    pub cores: f64,
    /// Hosts per rack; 0: one rack, or a network without bottlenecks between racks.
    pub hosts_per_rack: u32,
    /// Outgoing bytes per second of a host's link.
    pub rate_out: f64,
    /// Incoming bytes per second of a host's link.
    pub rate_in: f64,
    /// Bytes per second into and out of a rack, per host in it. Less than a host's rate: the uplink is oversubscribed.
    pub uplink_rate: f64,
    /// Seconds until a small message arrives.
    pub latency_s: f64,
    /// Seconds for which each message occupies a host's link, whatever its length.
    pub message_s: f64,
    /// Bytes of the largest packet, including the headers of IP and TCP (52) and excluding Ethernet's (38).
    pub mtu: u32,
    /// Least number of bytes of a frame on a link, not counting the headers of TCP, IP and Ethernet.
    pub packet_floor: f64,
    /// The fraction by which each further host that sends to the same one at once slows a transfer (incast).
    pub incast: f64,
    /// Bytes per second between ranks of a host, and seconds until a small message arrives.
    pub host_rate: f64,
    /// See `host_rate`.
    pub host_latency_s: f64,
    /// The random delay of a message, in seconds (jitter).
    pub jitter: Distribution,
    /// Slow ranks.
    pub stragglers: Stragglers,
    /// The random delay with which ranks enter a call, in seconds.
    pub start: Distribution,
    /// Seconds by which a rank's clock is ahead of the true time.
    pub clock: Distribution,
    /// The cost of work.
    pub costs: Costs,
}

/// Ranks with slow processors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stragglers {
    /// The fraction of ranks.
    pub share: f64,
    /// The factor by which their work is slower. Draws below 1 count as 1.
    pub slowness: Distribution,
}

impl Network {
    /// Hosts of one rank on links of this rate, without any irregularity.
    pub fn new(ranks: u32, rate: f64, latency_s: f64) -> Network {
        Network {
            ranks,
            ranks_per_host: 1,
            dealt: false,
            scattered: None,
            topology_known: true,
            cores: 1.0,
            hosts_per_rack: 0,
            rate_out: rate,
            rate_in: rate,
            uplink_rate: rate,
            latency_s,
            message_s: 0.0,
            mtu: 1500,
            packet_floor: 0.0,
            incast: 0.0,
            host_rate: 4e9,
            host_latency_s: 10e-6,
            jitter: Distribution::ZERO,
            stragglers: Stragglers { share: 0.0, slowness: Distribution::Constant(1.0) },
            start: Distribution::ZERO,
            clock: Distribution::ZERO,
            costs: Costs::default(),
        }
    }

    /// Refuses an impossible network.
    pub fn check(&self) -> Result<()> {
        if self.ranks == 0 || self.ranks > MAX_RANKS {
            return Err(Error::bad_input(format!(
                "a simulated cluster has 1 to {MAX_RANKS} ranks, not {}",
                self.ranks
            )));
        }
        if self.ranks_per_host == 0 {
            return Err(Error::bad_input("ranks_per_host must be at least 1"));
        }
        if self.dealt && self.scattered.is_some() {
            return Err(Error::bad_input(
                "ranks are dealt out to hosts in turn or scattered over them, not both",
            ));
        }
        // No computer is beyond these bounds, and the clock could not represent such times.
        let limits = [
            ("cores", self.cores, 1e-6, 1e6),
            ("rate_out", self.rate_out, 1.0, 1e15),
            ("rate_in", self.rate_in, 1.0, 1e15),
            ("uplink_rate", self.uplink_rate, 1.0, 1e18),
            ("host_rate", self.host_rate, 1.0, 1e15),
            ("latency_s", self.latency_s, 0.0, MAX_SECONDS),
            ("message_s", self.message_s, 0.0, MAX_SECONDS),
            ("host_latency_s", self.host_latency_s, 0.0, MAX_SECONDS),
            ("mtu", f64::from(self.mtu), 100.0, 65_535.0),
            ("packet_floor", self.packet_floor, 0.0, 1e12),
            ("incast", self.incast, 0.0, 1e6),
            ("the share of stragglers", self.stragglers.share, 0.0, 1.0),
            ("the jitter", self.jitter.largest(), 0.0, MAX_SECONDS),
            ("the start", self.start.largest(), 0.0, MAX_SECONDS),
            ("the clock", self.clock.largest(), 0.0, MAX_SECONDS),
            ("the slowness of stragglers", self.stragglers.slowness.largest(), 0.0, 1e9),
        ];
        for (what, value, least, most) in limits {
            if !(least..=most).contains(&value) {
                return Err(Error::bad_input(format!(
                    "{what} of a network must be between {} and {}, not {}",
                    number_text(least),
                    number_text(most),
                    number_text(value)
                )));
            }
        }
        if let Some(most) = self.stragglers.slowness.upper_bound().filter(|most| *most < 1.0)
            && self.stragglers.share > 0.0
        {
            return Err(Error::bad_input(format!(
                "the slowness of stragglers is a factor of at least 1, not {}",
                number_text(most)
            )));
        }
        Ok(())
    }

    /// Bytes that TCP, IP and Ethernet add to a packet, and the bytes of data in it, at most.
    pub(crate) fn packet(&self) -> (f64, f64) {
        (IP_HEADER_BYTES + ETHERNET_BYTES, f64::from(self.mtu) - IP_HEADER_BYTES)
    }

    /// The host of each rank.
    pub fn hosts_of_ranks(&self) -> Vec<u32> {
        let host = |rank: u32| match self.dealt {
            true => rank % self.hosts(),
            false => rank / self.ranks_per_host,
        };
        let mut hosts: Vec<u32> = (0..self.ranks).map(host).collect();
        if let Some(seed) = self.scattered {
            hosts.shuffle(&mut Pcg64::seed_from_u64(seed ^ PLACEMENT_STREAM));
        }
        hosts
    }

    /// The rack of a host.
    pub fn rack(&self, host: u32) -> u32 {
        host.checked_div(self.hosts_per_rack).unwrap_or(0)
    }

    /// Number of hosts.
    pub fn hosts(&self) -> u32 {
        self.ranks.div_ceil(self.ranks_per_host)
    }

    /// Number of racks.
    pub fn racks(&self) -> u32 {
        self.rack(self.hosts() - 1) + 1
    }

    /// The profile that a planner would have: typical values, without jitter and stragglers.
    pub fn profile(&self) -> Profile {
        let Costs { frame_s, byte_s, array_byte_s, kernels, rows, product_s } = self.costs;
        let shared = f64::from(self.ranks_per_host.min(self.ranks));
        let (around, inside) = self.packet();
        let payload = inside / (around + inside);
        Profile {
            latency_s: self.latency_s,
            message_s: self.message_s,
            rate: self.rate_out.min(self.rate_in) * payload / shared,
            incast: self.incast,
            ring_gain: 1.0,
            cores: 1.0 / self.sharing(),
            frame_s,
            byte_s,
            array_byte_s,
            kernels,
            rows,
            product_s,
            wake_s: 0.0,
            call_s: 0.0,
        }
    }

    /// The topology that ranks know.
    pub fn topology(&self) -> Result<Topology> {
        if !self.topology_known {
            return Ok(Topology::flat(self.ranks));
        }
        let hosts = self.hosts_of_ranks();
        let racks: Vec<u32> = hosts.iter().map(|host| self.rack(*host)).collect();
        Topology::new(&hosts, &racks)
    }

    /// The factor by which work is slower because ranks share cores.
    pub fn sharing(&self) -> f64 {
        (f64::from(self.ranks_per_host.min(self.ranks)) / self.cores).max(1.0)
    }
}

/// A number as text, however large.
fn number_text(number: f64) -> String {
    match number == 0.0 || (1e-4..1e5).contains(&number.abs()) || !number.is_finite() {
        true => number.to_string(),
        false => format!("{number:e}"),
    }
}
