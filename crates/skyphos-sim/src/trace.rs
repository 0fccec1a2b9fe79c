//! A simulated call as a trace that Perfetto and chrome://tracing open.
//!
//! The format is the Trace Event Format: one process a host, in it a track for each rank's work, one for its rounds, and
//! one for the frames that its link carries.

use crate::cluster::Ran;
use crate::network::Network;
use serde::Serialize;

/// Tracks of a rank.
const TRACKS: u32 = 3;

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

/// The trace of what the watched ranks did in a call, as JSON. `name_of` tells what a round is called.
pub fn trace<R>(network: &Network, ran: &Ran<R>, name_of: impl Fn(u32) -> String) -> String {
    let micros = |at: u64| at.saturating_sub(ran.begin) as f64 / 1e3;
    let mut lines: Vec<String> = Vec::new();
    let mut put = |event: Event| {
        lines.push(serde_json::to_string(&event).expect("names and numbers"));
    };
    let watched = || ran.record.watched.iter().copied();
    for rank in watched() {
        let pid = network.host(rank);
        let called =
            |what: &str, name: String| Args { name: Some(format!("{what}{name}")), ..Args::default() };
        let meta = |name: &str, tid, args| Event {
            name: name.to_owned(),
            ph: "M",
            pid,
            tid,
            ts: None,
            dur: None,
            args,
        };
        put(meta("process_name", 0, called("host ", pid.to_string())));
        let tracks = ["work", "rounds", "link"];
        for (k, track) in (0..).zip(tracks) {
            put(meta("thread_name", rank * TRACKS + k, called("rank ", format!("{rank} {track}"))));
        }
    }
    let slice = |name, rank: u32, track: u32, from: u64, to: u64, args| Event {
        name,
        ph: "X",
        pid: network.host(rank),
        tid: rank * TRACKS + track,
        ts: Some(micros(from)),
        dur: Some(to.saturating_sub(from) as f64 / 1e3),
        args,
    };
    for busy in &ran.record.busy {
        put(slice("work".to_owned(), busy.rank, 0, busy.from, busy.to, Args::default()));
    }
    for rank in watched() {
        for (number, round) in &ran.record.rounds[rank as usize] {
            let args = Args { bytes: Some(round.sent), messages: Some(round.messages), ..Args::default() };
            put(slice(name_of(*number), rank, 1, round.first, round.last, args));
        }
    }
    for flight in &ran.record.flights {
        let args = Args { to: Some(flight.to), bytes: Some(flight.bytes.into()), ..Args::default() };
        put(slice(name_of(flight.round), flight.from, 2, flight.left, flight.came, args));
    }
    format!("{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n{}\n]}}\n", lines.join(",\n"))
}
