//! Replicas (`skyphos-core`, `replicated/`): arbitrary frames from other processes, and the broadcast at a group's start.

use crate::allocation::{Limits, within};
use crate::scripted::Scripted;
use arbitrary::{Arbitrary, Result, Unstructured};
use skyphos_core::extensions::Replication as _;
use skyphos_core::frame::{CallKind, CallSig, Frame, FrameKind, Header};
use skyphos_core::replicated::{Replicated, startup_broadcast};
use skyphos_core::transport::{Event, Loss, Transport};
use skyphos_types::{CallNumber, CommId, Error, Round, WorldRank};
use std::time::Duration;

/// A frame's buffer; and the buffers of a script's frames, with the state that the transport stores for each.
const LIMITS: Limits = Limits { one: 160 << 10, all: 8 << 20 };

/// Longest script.
const MAX_STEPS: usize = 100;

const KINDS: [FrameKind; 9] = [
    FrameKind::Data,
    FrameKind::Forward,
    FrameKind::Forwarded,
    FrameKind::Acknowledge,
    FrameKind::InputChecksum,
    FrameKind::Abort,
    FrameKind::Credit,
    FrameKind::Probe,
    FrameKind::Present,
];

/// The content of a payload.
#[derive(Arbitrary)]
enum Body {
    Small([u8; 4]),
    /// A chunk large enough to be divided among the sender's replicas.
    Shared(u8),
    Acknowledgements {
        call: u8,
        round: u8,
        by: u8,
        chunks: Vec<(u8, u8)>,
    },
    /// The acknowledgement of a large chunk, with its right checksum.
    Acknowledgement {
        call: u8,
        round: u8,
        by: u8,
        seq: u8,
        filled: u8,
    },
    Error(u8),
    Raw(Vec<u8>),
}

#[derive(Arbitrary)]
enum Step {
    Arrives {
        from: u8,
        kind: u8,
        call: u8,
        round: u8,
        seq: u8,
        origin: u8,
        body: Body,
        /// Group, call and number of the frame in place of the usual ones.
        odd: Option<(u64, u64, u32)>,
    },
    Post {
        to: u8,
        call: u8,
        round: u8,
        seq: u8,
        body: Body,
    },
    End {
        call: u8,
        failed: bool,
    },
    Lost {
        from: u8,
    },
    Writable {
        from: u8,
    },
    Wait {
        milliseconds: u8,
    },
}

impl Body {
    fn bytes(self) -> Vec<u8> {
        let large = |filled: u8| vec![filled; 5000];
        let head = |call: u8, round: u8, by: u8, count: usize| {
            let mut head = [0u64.to_le_bytes(), u64::from(call % 4).to_le_bytes()].concat();
            [u32::from(round % 3), u32::from(by), count as u32]
                .iter()
                .for_each(|w| head.extend(w.to_le_bytes()));
            head
        };
        match self {
            Body::Small(bytes) => bytes.to_vec(),
            Body::Shared(filled) => large(filled),
            Body::Acknowledgements { call, round, by, chunks } => {
                let each = chunks.iter().flat_map(|(seq, sum)| [u32::from(*seq), u32::from(*sum)]);
                let mut bytes = head(call, round, by, chunks.len());
                each.for_each(|word| bytes.extend(word.to_le_bytes()));
                bytes
            }
            Body::Acknowledgement { call, round, by, seq, filled } => {
                use skyphos_core::replicated::Body as _;
                let sum = skyphos_core::slab::Pool::default().copy_of(&large(filled)).checksum();
                let mut bytes = head(call, round, by % 8, 1);
                [u32::from(seq % 4), sum].iter().for_each(|word| bytes.extend(word.to_le_bytes()));
                bytes
            }
            Body::Error(rank) => {
                let cause = "a reason".to_owned();
                match rank % 3 {
                    0 => Error::Aborted { rank: u32::from(rank), cause },
                    1 => Error::PeerLost { rank: u32::from(rank), address: cause.clone(), cause },
                    _ => Error::bad_input(cause),
                }
                .to_wire()
            }
            Body::Raw(bytes) => bytes,
        }
    }
}

fn header(kind: FrameKind, call: u8, round: u8, seq: u8) -> Header {
    let sig = CallSig::plain(CallKind::Barrier);
    let (call, round) = (CallNumber(u64::from(call % 4)), Round(u32::from(round % 3)));
    Header { kind, comm: CommId(0), call, origin: 0, round, seq: u32::from(seq % 4), total: 10_000, sig }
}

/// The input has the numbers of processes and replicas, and a script of events and calls at one process.
pub fn run(data: &[u8]) {
    let _ = play(&mut Unstructured::new(data));
}

fn play(u: &mut Unstructured<'_>) -> Result<()> {
    let processes = u.int_in_range(2..=7u32)?;
    let (each, me) = (u.int_in_range(1..=3.min(processes))?, u.int_in_range(0..=processes - 1)?);
    let at_start = u.ratio(1, 10)?;
    let steps: Vec<Step> = u.arbitrary_iter()?.take(MAX_STEPS).collect::<Result<_>>()?;
    let inner = Scripted::new(me, processes, false);
    within(LIMITS, || match at_start {
        true => start(inner, steps),
        false => act(inner, each, steps),
    });
    Ok(())
}

/// The transport event of a step; `None` for a step of this process.
fn event(step: Step, inner: &Scripted, comm: u64) -> Option<Event> {
    let (me, size) = (inner.rank(), inner.size());
    let peer = |from: u8| Some(WorldRank(u32::from(from) % size)).filter(|from| *from != me);
    Some(match step {
        Step::Arrives { from, kind, call, round, seq, origin, body, odd } => {
            let kind = KINDS[usize::from(kind) % KINDS.len()];
            let mut header = Header {
                comm: CommId(comm),
                origin: u16::from(origin) % 9,
                ..header(kind, call, round, seq)
            };
            if let Some((comm, call, seq)) = odd {
                let call = CallNumber(call & ((1 << 48) - 1));
                (header.comm, header.call, header.seq) = (CommId(comm), call, seq);
                header.origin = seq as u16;
            }
            let bytes = body.bytes();
            header.total = bytes.len() as u64 + u64::from(origin / 128);
            Event::Frame {
                from: peer(from)?,
                frame: Frame { header, payload: inner.facts().pool.copy_of(&bytes) },
            }
        }
        Step::Lost { from } => {
            let loss = [Loss::Left, Loss::Ended, Loss::Silent][usize::from(from) % 3];
            Event::PeerDown { rank: peer(from)?, cause: "lost".to_owned(), loss }
        }
        Step::Writable { from } => Event::Writable { rank: peer(from)? },
        _ => return None,
    })
}

/// Runs the broadcast at a group's start.
fn start(mut inner: Scripted, steps: Vec<Step>) {
    let events: Vec<Event> = steps.into_iter().filter_map(|step| event(step, &inner, u64::MAX)).collect();
    inner.script().events.extend(events);
    let mut waiting = Vec::new();
    let mine = Ok(b"words".to_vec());
    let timeout = Duration::from_secs(2);
    let received = startup_broadcast(&mut inner, mine.clone(), timeout, &mut waiting);
    assert!(inner.rank() != WorldRank(0) || received == mine);
}

/// Runs a script against a replicated transport.
fn act(inner: Scripted, each: u32, steps: Vec<Step>) {
    let mut replicated =
        Replicated::new(Box::new(inner.clone()), each, true, Vec::new()).expect("enough processes");
    let (rank, ranks) = (replicated.rank(), replicated.size());
    let mut down = vec![false; ranks as usize];
    let (mut over, mut events) = (vec![false; 4], Vec::new());
    for step in steps {
        let mut wait = Duration::ZERO;
        match step {
            Step::Post { to, call, round, seq, body } => {
                let to = WorldRank(u32::from(to) % ranks);
                // A rank does not send to itself, nor in a call that is over.
                if to != rank && !over[usize::from(call % 4)] {
                    let payload = inner.facts().pool.copy_of(&body.bytes());
                    let header = header(FrameKind::Data, call, round, seq);
                    replicated.post(to, Frame { header, payload });
                }
            }
            Step::End { call, failed } => {
                if !std::mem::replace(&mut over[usize::from(call % 4)], true) {
                    replicated.end_call(CommId(0), CallNumber(u64::from(call % 4)), failed);
                }
            }
            Step::Wait { milliseconds } => wait = Duration::from_millis(u64::from(milliseconds)),
            step => {
                let event = event(step, &inner, 0);
                inner.script().events.extend(event);
            }
        }
        replicated.poll(wait, &mut events);
        for event in events.drain(..) {
            match event {
                Event::Frame { from, .. } => assert!(from.0 < ranks),
                Event::Writable { rank } => assert!(rank.0 < ranks),
                Event::PeerDown { rank: lost, .. } => {
                    assert!(lost != rank && !std::mem::replace(&mut down[lost.index()], true));
                }
            }
        }
        let others = (0..ranks).map(WorldRank).filter(|to| *to != rank);
        assert!(
            others.into_iter().all(|to| replicated.backlog(to) < LIMITS.all) && replicated.health().is_some()
        );
    }
    let _ = replicated.close(Duration::from_millis(10));
}
