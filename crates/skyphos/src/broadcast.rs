//! Broadcast: the root chooses the route with the least predicted time for the length of its message.

use crate::Comm;
use crate::call_builder::{Body, CallBuilder};
use crate::vector_input::check_root;
use skyphos_core::collectives::broadcast::{
    BroadcastOutcome, ReceiveBuffer, Role, RootMessage, Route, RouteChoice, broadcast,
};
use skyphos_core::frame::{CallKind, CallSig};
use skyphos_core::slab::CHUNK_BYTES;
use skyphos_core::{CallRequest, Endpoint, Traffic};
use skyphos_plan::Profile;
use skyphos_types::{Error, GroupRank, Result};
use std::time::Duration;

/// The shortest chunk that `auto` chooses.
const MIN_CHUNK_BYTES: usize = 8 * 1024;

/// Settings of [`Comm::broadcast`].
#[derive(Clone, Copy, Debug, Default)]
pub struct BroadcastOptions {
    /// The route; all ranks pass the same. `None`: the one with the least predicted time.
    pub route: Option<Route>,
    /// Bytes of a chunk, at most 128 KB; only the root's value counts. `None`: by prediction.
    pub chunk_bytes: Option<usize>,
    /// The time without progress after which the root stops waiting for acknowledgements. `None`: the group's time-out.
    pub ack_timeout: Option<Duration>,
}

/// The result of a broadcast.
#[derive(Clone, Debug)]
#[must_use = "`missed` names a rank that was lost"]
pub struct Broadcasted<R> {
    /// The memory that received the parts; unchanged on the root.
    pub buffer: R,
    /// The route, and the size of its chunks.
    pub choice: RouteChoice,
    /// Bytes of the message.
    pub bytes: usize,
    /// Bytes and frames on this rank.
    pub traffic: Traffic,
    /// [`Error::PeerLost`] of the first rank that was lost before it had the message. All other ranks have the message.
    pub missed: Option<Error>,
}

/// Predicted seconds of a message of `bytes` bytes by the route and chunk size of `choice`: *Twister* eq. 1 to 3, with chunks on
/// all routes.
fn seconds(profile: &Profile, ranks: u32, bytes: usize, choice: RouteChoice) -> f64 {
    let (p, n) = (f64::from(ranks), bytes as f64);
    let chunk = n.min(choice.chunk_bytes as f64);
    let (latency, doublings) = (profile.latency_s, f64::from(ranks.next_power_of_two().ilog2()));
    let hop = latency + chunk / profile.rate;
    match choice.route {
        Route::Chain => n / profile.rate + (p - 1.0) * hop,
        Route::Binomial => doublings * (n / profile.rate + latency),
        Route::ScatterAllgather => 2.0 * n / profile.rate * (p - 1.0) / p + p * hop,
        Route::Simple => (p - 1.0) * n / profile.rate + latency,
    }
}

/// The chunk length with the least time of a chain: √(n α / ((P - 2) β)) (*Twister* §4.4).
fn chunk_of_chain(profile: &Profile, ranks: u32, bytes: usize) -> usize {
    let further = f64::from(ranks.saturating_sub(2).max(1));
    let best = (bytes as f64 * profile.latency_s * profile.rate / further).sqrt();
    best.clamp(MIN_CHUNK_BYTES as f64, CHUNK_BYTES as f64) as usize
}

impl BroadcastOptions {
    fn sig(&self, root: u32, comm: &Comm) -> CallSig {
        // Whether the broadcast goes on around lost ranks. With replicas it does not: a rank is lost only with all its processes, and
        // replicas must send the same messages.
        let heals = if comm.node().is_replicated() { 0 } else { CallSig::HEALS };
        let flags = self.route.map_or(0, |route| route as u8) | heals;
        CallSig { flags, extra: root, ..CallSig::plain(CallKind::Broadcast) }
    }

    pub(crate) fn check(&self) -> Result<()> {
        match self.chunk_bytes.filter(|bytes| !(1..=CHUNK_BYTES).contains(bytes)) {
            Some(bytes) => {
                Err(Error::bad_input(format!("a chunk of {bytes} bytes: it may have 1 to {CHUNK_BYTES}")))
            }
            None => Ok(()),
        }
    }

    /// The root's choice for a message of `bytes` bytes.
    pub(crate) fn choose(&self, profile: &Profile, ranks: u32, bytes: usize) -> RouteChoice {
        let choice_of = |route| {
            let usual = match route {
                Route::Chain => chunk_of_chain(profile, ranks, bytes),
                _ => CHUNK_BYTES,
            };
            RouteChoice { route, chunk_bytes: self.chunk_bytes.unwrap_or(usual) }
        };
        let all = [Route::Chain, Route::Binomial, Route::ScatterAllgather].map(choice_of);
        let best = all
            .into_iter()
            .min_by(|a, b| seconds(profile, ranks, bytes, *a).total_cmp(&seconds(profile, ranks, bytes, *b)));
        self.route.map(choice_of).or(best).expect("three routes")
    }
}

/// The message on the root.
enum Payload<P> {
    Parts(Vec<P>),
    /// Only the lengths of the parts: a simulation has no data.
    Lengths(Vec<usize>),
}

/// See [`Comm::broadcast`].
pub struct Broadcast<P, R> {
    root: u32,
    payload: Option<Payload<P>>,
    buffer: R,
    /// The profile that the root plans with, taken when the call is made.
    profile: Option<Profile>,
}

impl<P: AsRef<[u8]> + Send + Sync, R: ReceiveBuffer> Body for Broadcast<P, R> {
    type Output = Broadcasted<R>;
    type Op = ();
    type Options = BroadcastOptions;

    fn request(&mut self, comm: &Comm, (): &(), options: &BroadcastOptions) -> CallRequest {
        self.profile = Some(comm.start_profile());
        options.sig(self.root, comm).into()
    }

    async fn perform(self, ep: &Endpoint, (): &(), options: &BroadcastOptions) -> Result<Broadcasted<R>> {
        let Broadcast { root, payload, mut buffer, profile } = self;
        check_root(ep, root)?;
        options.check()?;
        let slices: Vec<&[u8]> = match &payload {
            Some(Payload::Parts(parts)) => parts.iter().map(AsRef::as_ref).collect(),
            _ => Vec::new(),
        };
        let source = payload.as_ref().map(|payload| match payload {
            Payload::Parts(_) => RootMessage::Parts(&slices),
            Payload::Lengths(lengths) => RootMessage::Lengths(lengths),
        });
        let role = match source {
            Some(source) if ep.rank() == GroupRank(root) => {
                let bytes = source.lengths().iter().sum();
                let profile = profile.expect("`request` sets it");
                Role::Root(source, options.choose(&profile, ep.size(), bytes))
            }
            None if ep.rank() != GroupRank(root) => Role::Receiver(&mut buffer),
            _ => {
                let message = format!(
                    "rank {root} is the root: it passes the parts to broadcast, and no other rank does"
                );
                return Err(Error::bad_input(message));
            }
        };
        let ack_timeout = options.ack_timeout.unwrap_or(ep.node().settings().timeout);
        let BroadcastOutcome { choice, bytes, missed } = broadcast(ep, root, role, ack_timeout).await?;
        Ok(Broadcasted { choice, bytes, missed, traffic: ep.traffic(), buffer })
    }
}

impl Comm {
    /// Sends the root's `parts` to all other ranks. Their `buffer` receives the parts and is returned in the result. Only the root
    /// passes `parts`. Collective.
    ///
    /// Ranks that are lost during the call are left out ([`Broadcasted::missed`]). In a replicated group a lost rank is an error.
    ///
    /// # Errors
    /// `BadInput` if `root` is not a rank; the error of a rank's `buffer`, on all ranks; `PeerLost` if a lost rank was the only one
    /// with data that other ranks still need.
    ///
    /// ```
    /// use skyphos::{Comm, MessageBuffer};
    ///
    /// let ranks = Comm::local(3, &Default::default()).unwrap();
    /// let sizes = ranks.map_ranks(|comm| {
    ///     let parts = (comm.rank() == 0).then(|| vec![b"one part", &b"and another"[..]]);
    ///     let done = comm.broadcast(0, parts, MessageBuffer::default()).run().unwrap();
    ///     done.buffer.into_parts().iter().map(|part| part.as_ref().len()).collect::<Vec<_>>()
    /// });
    /// assert_eq!(sizes, [vec![], vec![8, 11], vec![8, 11]]);
    /// ```
    pub fn broadcast<P: AsRef<[u8]> + Send + Sync, R: ReceiveBuffer>(
        &self,
        root: u32,
        parts: Option<Vec<P>>,
        buffer: R,
    ) -> CallBuilder<'_, Broadcast<P, R>> {
        let payload = parts.map(Payload::Parts);
        CallBuilder::new(self, Broadcast { root, payload, buffer, profile: None })
    }

    /// [`Comm::broadcast`] of parts with lengths and no bytes, for simulations.
    pub(crate) fn broadcast_lengths<R: ReceiveBuffer>(
        &self,
        root: u32,
        lengths: Option<Vec<usize>>,
        buffer: R,
    ) -> CallBuilder<'_, Broadcast<[u8; 0], R>> {
        let payload = lengths.map(Payload::Lengths);
        CallBuilder::new(self, Broadcast { root, payload, buffer, profile: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_route_depends_on_length_and_ranks() {
        let (profile, auto) = (Profile::network(125e6), BroadcastOptions::default());
        assert_eq!(auto.choose(&profile, 8, 1000).route, Route::Binomial);
        assert_eq!(auto.choose(&profile, 8, 256 << 20).route, Route::Chain);
        assert!((1..3).all(|ranks| auto.choose(&profile, ranks, 0).chunk_bytes > 0));
        // Longer messages have longer chunks.
        let chunks = [1 << 16, 1 << 20, 1 << 24].map(|bytes| chunk_of_chain(&profile, 100, bytes));
        assert!(chunks.is_sorted() && chunks[0] >= MIN_CHUNK_BYTES && chunks[2] <= CHUNK_BYTES);
        let named = BroadcastOptions { route: Some(Route::Simple), chunk_bytes: Some(99), ..auto };
        assert_eq!(named.choose(&profile, 8, 1 << 20), RouteChoice { route: Route::Simple, chunk_bytes: 99 });
    }
}
