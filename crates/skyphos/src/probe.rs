//! Measurements between ranks: the time of a message, its processor time at either end, and the rate of streams.
//!
//! The planner predicts collectives, so a measurement uses the messages of collectives: frames of up to 128 KB of a [`Comm`]'s
//! transport, with the usual matching, checks and progress. One stream per direction carries all messages of a measurement. The
//! first byte of a message says whether it is the last, so one side decides when the measurement ends.
//!
//! Ping-pong gives half a round trip (Hockney 1994; *Kylix*, Fig. 2). Overheads are those of LogGP (Alexandrov et al. 1997),
//! measured separately as by Kielmann et al. (2000): a receiver spins until the message must have arrived, so its overhead
//! includes no waiting. Each measurement is collective: ranks outside all pairs wait at its end.

mod fan;
mod messages;
mod rounds;

pub(crate) use fan::Order;

use crate::Comm;
use messages::{Receiver, Sender};
use rounds::{BEGIN_ROUND, END_ROUND};
use skyphos_core::Endpoint;
use skyphos_core::collectives::barrier::barrier_from;
use skyphos_core::frame::{CallKind, CallSig};
use skyphos_types::{Error, Result};
use std::time::Duration;

/// Pairs of ranks that measure with each other. A rank is in at most one pair; the first of a pair decides when to end.
pub type Pairs = [(u32, u32)];

/// Pairs of a sender and a receiver, all active at the same time.
pub type Flows = [(u32, u32)];

/// The traffic of one flow in its window of measurement, after the chunk that opened the window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Received {
    /// The sender.
    pub from: u32,
    /// Bytes received.
    pub bytes: u64,
    /// Messages completed.
    pub messages: u64,
    /// Seconds from the opening chunk to the last one.
    pub seconds: f64,
}

/// One rank's result of [`Comm::stream`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Streamed {
    /// Traffic of each flow to this rank.
    pub received: Vec<Received>,
    /// Bytes that this rank sent in the whole measurement.
    pub sent_bytes: u64,
    /// Seconds of the whole measurement.
    pub seconds: f64,
    /// Processor seconds of this thread in the whole measurement.
    pub cpu_s: f64,
}

/// Processor seconds of this thread so far.
pub(crate) fn cpu_s() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// A rank's partner, and whether the rank is the first of its pair.
fn partner(me: u32, pairs: &Pairs) -> Option<(u32, bool)> {
    pairs.iter().find_map(|(a, b)| match me {
        _ if me == *a => Some((*b, true)),
        _ if me == *b => Some((*a, false)),
        _ => None,
    })
}

async fn ping_on(
    ep: &Endpoint,
    pairs: &Pairs,
    bytes: usize,
    max_rounds: u32,
    limit: Duration,
) -> Result<Vec<f64>> {
    let mut times = Vec::new();
    barrier_from(ep, BEGIN_ROUND).await?;
    if let Some((other, first)) = partner(ep.rank().0, pairs) {
        let (mut to, mut from) = (Sender::new(ep, other, bytes), Receiver::new(ep, other, bytes));
        let begin = ep.now();
        let mut last = false;
        while !last {
            let start = ep.now();
            if first {
                last = times.len() + 1 >= max_rounds as usize || start - begin >= limit;
                to.send(last).await?;
                from.receive().await?;
                times.push((ep.now() - start).as_secs_f64() / 2.0);
            } else {
                last = from.receive().await?;
                to.send(last).await?;
            }
        }
    }
    barrier_from(ep, END_ROUND).await?;
    Ok(times)
}

async fn overhead_on(
    ep: &Endpoint,
    pairs: &Pairs,
    bytes: usize,
    times: u32,
    gap: Duration,
) -> Result<Vec<f64>> {
    let mut overheads = Vec::new();
    // The time of reading the clock, which is a system call.
    let clock_s = (0..9).map(|_| -(cpu_s() - cpu_s())).fold(f64::INFINITY, f64::min);
    let since = |start: f64| (cpu_s() - start - clock_s).max(0.0);
    barrier_from(ep, BEGIN_ROUND).await?;
    match partner(ep.rank().0, pairs) {
        Some((other, true)) => {
            let (mut to, mut ready) = (Sender::new(ep, other, bytes), Receiver::new(ep, other, 1));
            for _ in 0..times {
                ready.receive().await?;
                let start = cpu_s();
                to.begin(false);
                to.push();
                overheads.push(since(start));
                to.send_rest().await?;
            }
        }
        Some((other, false)) => {
            let (mut ready, mut from) = (Sender::new(ep, other, 1), Receiver::new(ep, other, bytes));
            for _ in 0..times {
                ready.send(false).await?;
                // Spins until the message must have arrived: a core that has slept would be slow at first.
                let begin = ep.now();
                while ep.now() - begin < gap {
                    std::thread::yield_now();
                }
                let start = cpu_s();
                from.receive().await?;
                overheads.push(since(start));
            }
        }
        None => {}
    }
    barrier_from(ep, END_ROUND).await?;
    Ok(overheads)
}

/// A flow to this rank, and its traffic in the window of measurement.
struct MeasuredFlow<'a> {
    receiver: Receiver<'a>,
    done: bool,
    bytes: u64,
    messages: u64,
    first_s: Option<f64>,
    last_s: f64,
}

impl MeasuredFlow<'_> {
    /// Takes the chunks that have arrived. Those within `window`, in seconds from `begin`, count, except for the first one.
    /// Returns whether there were any chunks.
    fn take(&mut self, begin: Duration, window: (f64, f64)) -> Result<bool> {
        let mut moved = false;
        while !self.done
            && let Some((bytes, complete)) = self.receiver.take()?
        {
            moved = true;
            self.done = complete && self.receiver.last;
            let now_s = (self.receiver.ep.now() - begin).as_secs_f64();
            if now_s < window.0 || now_s > window.1 {
                continue;
            }
            if self.first_s.is_none() {
                self.first_s = Some(now_s);
                continue;
            }
            self.bytes += bytes as u64;
            self.messages += u64::from(complete);
            self.last_s = now_s;
        }
        Ok(moved)
    }

    fn received(&self) -> Received {
        let seconds = self.first_s.map_or(0.0, |first_s| (self.last_s - first_s).max(0.0));
        Received { from: self.receiver.from, bytes: self.bytes, messages: self.messages, seconds }
    }
}

async fn stream_on(
    ep: &Endpoint,
    flows: &Flows,
    bytes: usize,
    max_messages: u32,
    limit: Duration,
    settle: Duration,
) -> Result<Streamed> {
    let me = ep.rank().0;
    let to = flows.iter().filter(|(from, _)| *from == me);
    let mut out: Vec<(Sender<'_>, u32)> = to.map(|(_, to)| (Sender::new(ep, *to, bytes), 0)).collect();
    let from = flows.iter().filter(|(_, to)| *to == me);
    let mut into: Vec<MeasuredFlow<'_>> = from
        .map(|(from, _)| {
            let receiver = Receiver::new(ep, *from, bytes);
            MeasuredFlow { receiver, done: false, bytes: 0, messages: 0, first_s: None, last_s: 0.0 }
        })
        .collect();
    barrier_from(ep, BEGIN_ROUND).await?;
    let (begin, cpu_begin, sent_before) = (ep.now(), cpu_s(), ep.traffic().sent_bytes);
    let window = (settle.as_secs_f64(), limit.as_secs_f64().max(settle.as_secs_f64()));
    out.iter_mut().for_each(|(sender, _)| sender.begin(max_messages <= 1));
    loop {
        let mut moved = false;
        // One message to each receiver in turn, while the network accepts them.
        let mut accepted = true;
        while accepted {
            accepted = false;
            for (sender, sent) in &mut out {
                if sender.push() && !sender.last {
                    *sent += 1;
                    sender.begin(*sent + 1 >= max_messages || ep.now() - begin >= limit);
                    (accepted, moved) = (true, true);
                }
            }
        }
        for flow in &mut into {
            moved |= flow.take(begin, window)?;
        }
        if out.iter_mut().all(|(sender, _)| sender.push() && sender.last) && into.iter().all(|f| f.done) {
            break;
        }
        if !moved {
            ep.progress().await?;
        }
    }
    let (seconds, cpu_s) = ((ep.now() - begin).as_secs_f64(), cpu_s() - cpu_begin);
    let sent_bytes = ep.traffic().sent_bytes - sent_before;
    barrier_from(ep, END_ROUND).await?;
    Ok(Streamed { received: into.iter().map(MeasuredFlow::received).collect(), sent_bytes, seconds, cpu_s })
}

impl Comm {
    /// Seconds of half a round trip of messages of `bytes` bytes, one figure per round, on the first rank of each pair. Empty on
    /// other ranks. Ends after `limit`, or after `max_rounds` rounds. Collective.
    pub fn ping(&self, pairs: &Pairs, bytes: usize, max_rounds: u32, limit: Duration) -> Result<Vec<f64>> {
        let sig = self.check_measure(1, pairs, bytes)?;
        self.call(sig, async |ep| ping_on(ep, pairs, bytes, max_rounds.max(1), limit).await)
    }

    /// Processor seconds of messages of `bytes` bytes: of sending on the first rank of each pair, of receiving on the second.
    /// `gap` must be longer than such a message takes. Collective.
    pub fn overhead(&self, pairs: &Pairs, bytes: usize, times: u32, gap: Duration) -> Result<Vec<f64>> {
        let sig = self.check_measure(2, pairs, bytes)?;
        self.call(sig, async |ep| overhead_on(ep, pairs, bytes, times, gap).await)
    }

    /// Sends messages of `bytes` bytes by all flows at once, for `limit`, at most `max_messages` by each flow. Traffic in the
    /// first `settle` does not count. Collective.
    pub fn stream(
        &self,
        flows: &Flows,
        bytes: usize,
        max_messages: u32,
        limit: Duration,
        settle: Duration,
    ) -> Result<Streamed> {
        let sig = self.check_measure(3, flows, bytes)?;
        self.call(sig, async |ep| stream_on(ep, flows, bytes, max_messages.max(1), limit, settle).await)
    }

    /// Refuses pairs and lengths that cannot be measured.
    fn check_measure(&self, kind: u64, pairs: &[(u32, u32)], bytes: usize) -> Result<CallSig> {
        let bad = |(a, b): &&(u32, u32)| a == b || *a >= self.size() || *b >= self.size();
        if let Some((a, b)) = pairs.iter().find(bad) {
            let error =
                format!("ranks {a} and {b} of a group of {} cannot measure with each other", self.size());
            return Err(self.fail_call(Error::bad_input(error)));
        }
        if bytes == 0 {
            return Err(self.fail_call(Error::bad_input("a message of a measurement has at least 1 byte")));
        }
        let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        let words = pairs.iter().flat_map(|(a, b)| [u64::from(*a), u64::from(*b)]);
        let extra = (words.fold(kind, mix) >> 32) as u32;
        Ok(CallSig { n: bytes as u64, extra, ..CallSig::plain(CallKind::Measure) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Settings;
    use skyphos_core::slab::CHUNK_BYTES;

    fn on_all<R: Send>(size: u32, body: impl Fn(&Comm) -> R + Sync) -> Vec<R> {
        Comm::local(size, &Settings::default()).unwrap().map_ranks(|comm| body(&comm))
    }

    const SHORT: Duration = Duration::from_millis(20);

    #[test]
    fn pings_of_any_size_are_timed_on_the_first_of_a_pair() {
        for bytes in [1, 1000, CHUNK_BYTES, CHUNK_BYTES + 1, 9 << 20] {
            let times = on_all(5, |comm| comm.ping(&[(0, 3), (4, 1)], bytes, 7, SHORT).unwrap());
            for rank in [0, 4] {
                assert!((1..=7).contains(&times[rank].len()) && times[rank].iter().all(|t| *t > 0.0));
            }
            assert!([1, 2, 3].iter().all(|rank| times[*rank].is_empty()));
        }
    }

    #[test]
    fn overheads_are_measured_on_both_ends() {
        let overheads =
            on_all(3, |comm| comm.overhead(&[(2, 0)], 40_000, 5, Duration::from_millis(1)).unwrap());
        assert_eq!(overheads.iter().map(Vec::len).collect::<Vec<_>>(), [5, 0, 5]);
        assert!(overheads.iter().flatten().all(|t| *t >= 0.0) && overheads[2].iter().sum::<f64>() > 0.0);
    }

    #[test]
    fn streams_are_measured_where_they_arrive() {
        let flows = [(1, 0), (2, 0), (3, 0), (0, 1)];
        let done = on_all(4, |comm| comm.stream(&flows, 50_000, 300, SHORT * 10, Duration::ZERO).unwrap());
        let senders: Vec<u32> = done[0].received.iter().map(|r| r.from).collect();
        assert_eq!(senders, [1, 2, 3]);
        assert_eq!(done[1].received.len(), 1);
        assert!(done[2].received.is_empty() && done[2].seconds > 0.0);
        for got in done.iter().flat_map(|d| &d.received) {
            assert!(
                got.messages < 300 && got.bytes == got.messages * 50_000 && got.seconds >= 0.0,
                "{got:?}"
            );
        }
        // All small messages count, except for the one that opens the window.
        let done = on_all(2, |comm| comm.stream(&[(0, 1)], 1, 64, SHORT * 100, Duration::ZERO).unwrap());
        assert_eq!((done[1].received[0].messages, done[1].received[0].bytes), (63, 63));
        assert_eq!([done[0].sent_bytes, done[1].sent_bytes], [64, 0]);
    }

    #[test]
    fn mismatches_and_bad_pairs_raise_on_all_ranks() {
        let bad = on_all(3, |comm| comm.ping(&[(0, 3)], 1, 1, SHORT).unwrap_err().to_string());
        assert!(bad.iter().all(|e| e.contains("ranks 0 and 3 of a group of 3")), "{bad:?}");
        let differ = on_all(2, |comm| comm.ping(&[(0, 1)], 1 + comm.rank() as usize, 1, SHORT));
        assert!(differ.iter().all(|got| matches!(got, Err(Error::Mismatch { .. }))), "{differ:?}");
    }
}
