//! Traces of simulated calls for Perfetto and chrome://tracing.
//!
//! The format is the Trace Event Format: one process per host, with tracks for each rank's work, its rounds and its outgoing frames.
//! Slices that overlap are on several tracks.

use crate::cluster::Ran;
use crate::network::Network;
use serde::Serialize;
use skyphos_types::Round;

#[derive(Serialize)]
struct Event {
    name: String,
    ph: &'static str,
    pid: u32,
    tid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    #[serde(skip_serializing_if = "Args::is_empty")]
    args: Args,
}

#[derive(Serialize, Default)]
struct Args {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    messages: Option<u64>,
}

impl Args {
    fn is_empty(&self) -> bool {
        self.name.is_none() && self.to.is_none() && self.bytes.is_none() && self.messages.is_none()
    }
}

/// A piece of a track.
struct Slice {
    name: String,
    from: u64,
    to: u64,
    args: Args,
}

/// Assigns slices to as few tracks as possible, so that slices of a track do not overlap: viewers drop overlapping slices.
fn lanes(mut slices: Vec<Slice>) -> Vec<Vec<Slice>> {
    slices.sort_by_key(|slice| (slice.from, slice.to));
    let mut lanes: Vec<Vec<Slice>> = Vec::new();
    for slice in slices {
        let free = |lane: &&mut Vec<Slice>| lane.last().is_none_or(|last| last.to <= slice.from);
        match lanes.iter_mut().find(free) {
            Some(lane) => lane.push(slice),
            None => lanes.push(vec![slice]),
        }
    }
    lanes
}

/// The trace of a call's watched ranks, as JSON. `name_of` gives the name of a round.
pub fn trace<R>(network: &Network, ran: &Ran<R>, name_of: impl Fn(Round) -> String) -> String {
    let hosts = network.hosts_of_ranks();
    let micros = |at: u64| at.saturating_sub(ran.begin) as f64 / 1e3;
    let mut lines: Vec<String> = Vec::new();
    let mut put = |event: Event| {
        lines.push(serde_json::to_string(&event).expect("names and numbers"));
    };
    let mut tracks = 0;
    for rank in ran.record.watched.iter().copied() {
        let pid = hosts[rank as usize];
        let meta = |name: &str, tid, value: String| {
            let args = Args { name: Some(value), ..Args::default() };
            Event { name: name.to_owned(), ph: "M", pid, tid, ts: None, dur: None, args }
        };
        put(meta("process_name", tracks, format!("host {pid}")));
        let busy = ran.record.busy.iter().filter(|busy| busy.rank == rank);
        let work =
            busy.map(|b| Slice { name: "work".to_owned(), from: b.from, to: b.to, args: Args::default() });
        let rounds = ran.record.rounds[rank as usize].iter().map(|(number, round)| {
            let args = Args { bytes: Some(round.sent), messages: Some(round.messages), ..Args::default() };
            Slice { name: name_of(*number), from: round.first, to: round.last, args }
        });
        let flights = ran.record.flights.iter().filter(|flight| flight.from == rank).map(|flight| {
            let args = Args { to: Some(flight.to), bytes: Some(flight.bytes.into()), ..Args::default() };
            Slice { name: name_of(flight.round), from: flight.left, to: flight.arrived, args }
        });
        let all = [("work", work.collect()), ("rounds", rounds.collect()), ("sent", flights.collect())];
        for (track, slices) in all {
            for (k, lane) in lanes(slices).into_iter().enumerate() {
                let number = if k == 0 { String::new() } else { format!(" ({})", k + 1) };
                put(meta("thread_name", tracks, format!("rank {rank} {track}{number}")));
                for Slice { name, from, to, args } in lane {
                    let (ts, dur) = (Some(micros(from)), Some(to.saturating_sub(from) as f64 / 1e3));
                    put(Event { name, ph: "X", pid, tid: tracks, ts, dur, args });
                }
                tracks += 1;
            }
        }
    }
    format!("{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n{}\n]}}\n", lines.join(",\n"))
}
