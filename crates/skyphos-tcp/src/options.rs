//! The options of a rank that joins a group.

use crate::silence;
use crate::sockets::{Tuning, congestion_control_error};
use crate::tls::TlsFiles;
use skyphos_types::{Error, Result};
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

/// The longest wait. It stands for a wait without a limit, and does not overflow the clock.
pub(crate) const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// Options of [`crate::connect`].
#[derive(Clone)]
#[non_exhaustive]
pub struct Options {
    /// This process's number, 0 to `world_size - 1`.
    pub rank: u32,
    /// Number of processes in the group.
    pub world_size: u32,
    /// "host:port" of rank 0, as every rank can reach it. An IPv6 address is in brackets.
    pub rendezvous: String,
    /// A secret that all ranks share. With `None`, or an empty secret, any program that reaches the port may join.
    pub token: Option<String>,
    /// Certificate files. With them all connections are encrypted, and only peers with a certificate may prove the token. Either all ranks
    /// of a group have such files, or none has.
    pub tls: Option<TlsFiles>,
    /// Time for the whole bring-up.
    pub timeout: Duration,
    /// Rank 0 only: a socket of the launcher that already listens at the rendezvous, so no other program can take the port. `connect`
    /// takes it over. Other ranks ignore the number.
    pub listen_fd: Option<RawFd>,
    /// The local address to listen on. `None`: for rank 0, the loopback if the rendezvous is a loopback address, else every interface;
    /// for the other ranks, the address from which they reached the rendezvous.
    pub interface: Option<IpAddr>,
    /// Size of each socket's send and receive buffer; `None` leaves it to the kernel's autotuning. A connection accepted on `listen_fd`
    /// has at least that socket's receive buffer.
    pub socket_buffer: Option<usize>,
    /// Congestion control of the connections, by the system's name for it; `None`: the system's default, but never BBR on short paths.
    pub congestion_control: Option<String>,
    /// Replicas per rank, and whether they may share a host. This transport only checks that all ranks agree.
    pub replication: (u32, bool),
    /// Time of silence of a rank's host after which the rank is lost; at least 2 s. A slow or stopped rank is not lost, because its
    /// kernel answers.
    pub heartbeat: Duration,
    /// Whether ranks of one host use shared memory, if both sides want it and the system allows it.
    pub shared_memory: bool,
    /// Called at least every 100 ms; returns whether the user has interrupted the program.
    pub interrupted: Option<fn() -> bool>,
}

impl Options {
    /// The default options: no token, no encryption, a time-out of 300 s, a heartbeat of 10 s, automatic addresses and buffers.
    pub fn new(rank: u32, world_size: u32, rendezvous: impl Into<String>) -> Options {
        Options {
            rank,
            world_size,
            rendezvous: rendezvous.into(),
            token: None,
            tls: None,
            timeout: Duration::from_secs(300),
            listen_fd: None,
            interface: None,
            socket_buffer: None,
            congestion_control: None,
            replication: (1, false),
            heartbeat: Duration::from_secs(10),
            shared_memory: true,
            interrupted: None,
        }
    }

    /// The options of sockets.
    pub(crate) fn tuning(&self) -> Tuning {
        Tuning { buffer: self.socket_buffer, congestion: self.congestion_control.clone() }
    }

    /// The deadline of the bring-up.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.timeout.min(FOR_EVER)
    }

    /// The rendezvous, for texts of errors.
    pub(crate) fn describe_rendezvous(&self) -> String {
        format!("the rendezvous at {}", self.rendezvous)
    }

    pub(crate) fn check(&self) -> Result<()> {
        let Options { rank, world_size, rendezvous, .. } = self;
        if *world_size == 0 {
            return Err(Error::bad_input("world_size must be at least 1"));
        }
        if rank >= world_size {
            return Err(Error::bad_input(format!(
                "rank {rank} in a group of {world_size}: ranks are 0 to {}",
                world_size - 1
            )));
        }
        if self.heartbeat < silence::MIN_LIMIT {
            return Err(Error::bad_input(format!(
                "heartbeat={} s: at least {} s, because a kernel probes its peer at most once a second",
                self.heartbeat.as_secs_f64(),
                silence::MIN_LIMIT.as_secs()
            )));
        }
        if let Some(name) = &self.congestion_control
            && let Some(error) = congestion_control_error(name)
        {
            return Err(Error::bad_input(format!(
                "congestion_control={name:?} is not available here ({error}): this system allows those in \
                 /proc/sys/net/ipv4/tcp_allowed_congestion_control"
            )));
        }
        if *world_size == 1 {
            return Ok(());
        }
        let port = rendezvous.rsplit_once(':').and_then(|(host, port)| {
            let bare_v6 = host.contains(':') && !host.starts_with('[');
            (!host.is_empty() && !bare_v6).then(|| port.parse::<u16>().ok()).flatten()
        });
        match port {
            None => Err(Error::bad_input(format!(
                "rendezvous {rendezvous:?} is not host:port (for example 10.0.0.1:29500 or [fe80::1]:29500)"
            ))),
            Some(0) if self.listen_fd.is_none() => {
                Err(Error::bad_input(format!("rendezvous {rendezvous:?}: name a port, 1 to 65535")))
            }
            Some(_) => Ok(()),
        }
    }
}

impl std::fmt::Debug for Options {
    /// Omits the token.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("rank", &self.rank)
            .field("world_size", &self.world_size)
            .field("rendezvous", &self.rendezvous)
            .field("token", &self.token.as_ref().map(|_| "…"))
            .field("tls", &self.tls)
            .field("timeout", &self.timeout)
            .field("listen_fd", &self.listen_fd)
            .field("interface", &self.interface)
            .field("socket_buffer", &self.socket_buffer)
            .field("congestion_control", &self.congestion_control)
            .field("heartbeat", &self.heartbeat)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_cannot_work_say_why() {
        let text = |rank, size, at: &str| Options::new(rank, size, at).check().unwrap_err().to_string();
        assert!(text(0, 0, "a:1").contains("at least 1"));
        assert!(text(4, 4, "a:1").contains("ranks are 0 to 3"));
        for at in ["", "host", ":80", "host:", "host:99999", "fe80::1:80", "host:port"] {
            assert!(text(0, 2, at).contains("host:port"), "{at}");
        }
        assert!(text(1, 2, "host:0").contains("name a port"));
        assert!(Options::new(0, 2, "[::1]:29500").check().is_ok());
    }

    #[test]
    fn the_token_is_not_printed() {
        let mut options = Options::new(0, 2, "a:1");
        options.token = Some("hunter2".to_owned());
        assert!(!format!("{options:?}").contains("hunter2"));
    }
}
