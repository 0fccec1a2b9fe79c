//! The TCP transport: a rendezvous, a token, a full mesh of connections, and frames over them.
//!
//! [`connect`] is collective: it returns a [`Tcp`] on every rank or an error on every rank that came.
//! Read in this order: [`Tcp`] with its `send` and `receive` halves (what runs in the steady state), then the
//! bring-up: `rendezvous` (rank 0), `join` (all others), `mesh`, `handshake` (the token),
//! `lobby` and `link` (the small event loop under both). Under all of it is `wire`: a socket, or TLS over one (`tls`).
//!
//! Within a host bytes go through memory that two ranks share (`share`, `ring`).
//!
//! **Needs**: Linux; an address of rank 0 that all ranks reach; ports between all pairs of ranks.
//! **Not promised** without [`Options::tls`]: secrecy. The token is proved, never sent, and keeps strangers out of the group;
//! what crosses a connection afterwards is checked against damage (CRC32C), not against a wiretapper. `docs/threat-model.md`
//! says who may do what.

#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod handshake;
mod join;
mod link;
mod lobby;
mod mesh;
mod message;
mod options;
mod pulse;
mod receive;
mod rendezvous;
mod ring;
mod send;
mod share;
mod sockets;
mod tls;
mod transport;
mod wire;

#[cfg(test)]
extern crate self as skyphos_tcp; // as tests/common names it
#[cfg(test)]
mod tests;

pub use options::Options;
pub use tls::{NAME, TlsFiles};
pub use transport::Tcp;

use skyphos_types::Result;

/// Brings the group up: finds all ranks through rank 0, connects each pair, returns when all are
/// connected.
///
/// Every rank of the group must call it, in any order, within the time-out. What one rank finds
/// wrong all ranks are told, in the same words.
///
/// # Errors
/// `BadInput` for options that cannot work, `Refused` for a wrong token, other TLS settings or a rank taken twice,
/// `Mismatch` for different world sizes, `Timeout` with the ranks that did not come, `PeerLost` for a
/// rank that ended meanwhile or cannot be reached, `Interrupted`.
pub fn connect(options: Options) -> Result<Tcp> {
    options.check()?;
    let tls = options.tls.as_ref().map(|files| tls::Tls::load(files, options.rank)).transpose()?;
    let (rank, tuning, heartbeat) = (options.rank, options.tuning(), options.heartbeat);
    let (shares, interrupted, until) = (options.shared_memory, options.interrupted, options.deadline());
    let proven = options.token.is_some() || options.tls.is_some();
    let mut formed = match (options.world_size, rank) {
        (1, _) => Formed::alone(&options)?,
        (_, 0) => rendezvous::gather(options, tls)?,
        _ => join::join(options, tls)?,
    };
    share::share(rank, &mut formed, shares, &share::Patience::until(until, interrupted))?;
    for wire::Idle { stream, .. } in formed.wires.iter().flatten() {
        // Both fail only on a connection that is broken, which whoever uses it will find.
        let _ = sockets::widen_within_host(stream, &tuning);
        if tuning.congestion.is_none() {
            let _ = sockets::give_long_path_to_bbr(stream);
        }
    }
    let mut tcp = Tcp::new(rank, formed, heartbeat)?;
    (tcp.proven, tcp.shares_memory) = (proven, shares);
    Ok(tcp)
}

/// What bring-up leaves: who sits where, and a connection to each other rank.
struct Formed {
    seats: Vec<message::Seat>,
    wires: Vec<Option<wire::Idle>>,
    /// Memory that other ranks of the host have open.
    arena: Option<std::sync::Arc<skyphos_core::arena::Arena>>,
}

impl Formed {
    fn alone(options: &Options) -> Result<Formed> {
        if let Some(fd) = options.listen_fd {
            drop(sockets::inherit(fd, &sockets::Tuning::default())?);
        }
        let host = skyphos_core::host::Host::this();
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
        let seat = message::Seat { machine: 0, address, host: host.name };
        Ok(Formed { seats: vec![seat], wires: vec![None], arena: None })
    }
}
