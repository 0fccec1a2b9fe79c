//! The TCP transport: a rendezvous, a token, a full mesh of connections, and frames over them.
//!
//! [`connect`] is collective: it returns a [`Tcp`] on every rank, or an error on every rank that called it. Read first [`Tcp`] with
//! its `send` and `receive` halves (the steady state), then the bring-up: `rendezvous` (rank 0), `joining`, `register` and `join`
//! (all others), `mesh`, `handshake` (the token), `lobby` and `link` (the event loop). `wire` is the lowest layer: a socket, or TLS
//! over one (`tls`). Within a host bytes go through memory that two ranks share (`share`, `ring`).
//!
//! **Needs**: Linux; an address of rank 0 that all ranks reach; ports between all pairs of ranks.
//! **Not promised** without [`Options::tls`]: secrecy. The token keeps strangers out of the group; ranks prove that they know it
//! and never send it. Checksums (CRC32C) detect damage, not attacks (`docs/threat-model.md`).

#![deny(unsafe_code)]

mod attempt;
mod connections;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod handshake;
mod join;
mod joining;
mod link;
mod lobby;
mod mesh;
mod message;
mod options;
mod peer;
mod receive;
mod register;
mod rendezvous;
#[allow(unsafe_code, reason = "memory shared with another process")]
mod ring;
mod send;
mod share;
mod silence;
#[allow(unsafe_code, reason = "system calls")]
mod sockets;
mod tls;
mod transport;
mod wire;

#[cfg(test)]
extern crate self as skyphos_tcp; // the name by which tests/common imports this crate
#[cfg(test)]
mod tests;

pub use options::Options;
pub use tls::{NAME, TlsFiles};
pub use transport::Tcp;

use connections::Connections;
use skyphos_types::Result;

/// Brings the group up: finds all ranks through rank 0, connects each pair, and returns when all are connected.
///
/// Every rank of the group must call it within the time-out, in any order. If it fails on one rank, all ranks return the same
/// error.
///
/// # Errors
/// `BadInput` for options that cannot work, `Refused` for a wrong token, other TLS settings or a rank taken twice,
/// `Mismatch` for different world sizes, `Timeout` with the missing ranks, `PeerLost` for a rank that ended meanwhile or cannot
/// be reached, `Interrupted`.
pub fn connect(options: Options) -> Result<Tcp> {
    options.check()?;
    let tls = options.tls.as_ref().map(|files| tls::Tls::load(files, options.rank)).transpose()?;
    let (rank, tuning, heartbeat) = (options.rank, options.tuning(), options.heartbeat);
    let (shares, interrupted, until) = (options.shared_memory, options.interrupted, options.deadline());
    let proven = options.token.is_some() || options.tls.is_some();
    let mut connections = match (options.world_size, rank) {
        (1, _) => Connections::alone(&options)?,
        (_, 0) => rendezvous::gather(options, tls)?,
        _ => join::join(options, tls)?,
    };
    share::share(rank, &mut connections, shares, &share::WaitLimit::until(until, interrupted))?;
    for wire::DetachedWire { stream, .. } in connections.wires.iter().flatten() {
        // Both fail only on a broken connection, which the first use reports.
        let _ = sockets::widen_within_host(stream, &tuning);
        if tuning.congestion.is_none() {
            let _ = sockets::restore_bbr_on_long_path(stream);
        }
    }
    let mut tcp = Tcp::new(rank, connections, heartbeat)?;
    (tcp.proven, tcp.shares_memory) = (proven, shares);
    Ok(tcp)
}
