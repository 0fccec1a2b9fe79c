//! One rank against peers that send arbitrary frames, in calls that no simulation runs: a group's start, its topology, its
//! sub-groups, its shrink, and measurements.

use crate::allocation::{Limits, within};
use crate::scripted::Scripted;
use arbitrary::{Arbitrary, Result, Unstructured};
use skyphos::{Comm, Settings, Topology, planner::Profile};
use skyphos_core::frame::WINDOW_BYTES;
use skyphos_core::frame::{CallKind, CallSig, Frame, FrameKind, Header};
use skyphos_core::transport::{Event, Loss};
use skyphos_types::{CallNumber, CommId, Round, WorldRank};
use std::collections::BTreeMap;
use std::time::Duration;

/// A receiver allocates the announced length of a message up to a window; beyond it, memory grows with the bytes that arrive.
const LIMITS: Limits = Limits { one: WINDOW_BYTES as usize + (64 << 10), all: 40 << 20 };

/// First rounds of these calls.
const ROUNDS: [Round; 6] = [Round(0), Round(0x100), Round(0x200), Round(0x400), Round(0x500), Round(0x1000)];

const KINDS: [FrameKind; 6] = [
    FrameKind::Data,
    FrameKind::Data,
    FrameKind::Abort,
    FrameKind::Present,
    FrameKind::Probe,
    FrameKind::Credit,
];

#[derive(Arbitrary, Debug)]
enum PeerAction {
    /// A complete message of mostly small numbers.
    Numbers {
        from: u8,
        round: u8,
        numbers: Vec<u16>,
        wide: bool,
    },
    /// A message of the agreement on a shrink.
    Shrink {
        from: u8,
        letter: u8,
        numbers: [u8; 4],
    },
    /// An arbitrary frame.
    Raw {
        from: u8,
        round: u8,
        kind: u8,
        call: u8,
        total: Option<u64>,
        bytes: Vec<u8>,
    },
    Lost {
        from: u8,
    },
}

/// The input has the size of the group, this rank, the call, and the peers' frames.
pub fn run(data: &[u8]) {
    let _ = play(&mut Unstructured::new(data));
}

fn play(u: &mut Unstructured<'_>) -> Result<()> {
    let size = u.int_in_range(2..=4u32)?;
    let me = u.int_in_range(0..=size - 1)?;
    let call_kind = u.int_in_range(0..=8)?;
    let actions: Vec<PeerAction> = u.arbitrary_iter()?.take(40).collect::<Result<_>>()?;
    within(LIMITS, || call(Scripted::new(me, size, true), call_kind, actions));
    Ok(())
}

fn call(transport: Scripted, call_kind: u8, actions: Vec<PeerAction>) {
    let size = skyphos::Transport::size(&transport);
    script(&transport, call_kind, actions);
    let settings = Settings { timeout: Duration::from_secs(20), ..Settings::default() };
    let comm = Comm::over(Box::new(transport), settings).expect("a group");
    let short = Duration::from_millis(1);
    let result = match call_kind {
        0 => comm.split(Some(1), 2).map(|part| part.is_some_and(|part| part.size() <= size)).map(drop),
        1 => {
            let hosts: Vec<u32> = (0..size).map(|rank| rank / 2).collect();
            let places = Topology::new(&hosts, &vec![0; size as usize]).expect("places");
            comm.with_topology(Some(&places))
                .map(|placed| assert_eq!(placed.topology().hosts().len(), size as usize))
        }
        2 => comm.agree_profile(Some(Profile::network(1e9)), true).map(drop),
        3 => comm.begin_with(None, true, None).map(drop),
        4 => comm.shrink().map(|remaining| assert!(remaining.size() <= size)),
        5 => comm.ping(&[(0, 1)], 3, 2, short).map(drop),
        6 => comm.overhead(&[(0, 1)], 3, 2, Duration::ZERO).map(drop),
        7 => comm.stream(&[(0, 1), (1, 0)], 9, 2, short, Duration::ZERO).map(drop),
        _ => comm.barrier().run(),
    };
    if let Err(error) = result {
        let _ = error.to_string();
        // A further call returns, with or without an error.
        let _ = comm.barrier().run().map_err(|error| error.to_string());
    }
}

/// Writes the script of the peers: frames, numbered in order within each stream.
fn script(transport: &Scripted, call_kind: u8, actions: Vec<PeerAction>) {
    use skyphos::Transport as _;
    let (me, size, pool) = (transport.rank(), transport.size(), transport.facts().pool);
    let mut seqs: BTreeMap<(WorldRank, Round, CallNumber), u32> = BTreeMap::new();
    // A shrink has its own range of call numbers.
    let here = CallNumber(if call_kind == 4 { 1 << 47 } else { 0 });
    let mut script = transport.script();
    for action in actions {
        let peer = |from: u8| Some(WorldRank(u32::from(from) % size)).filter(|from| *from != me);
        let round_of = |round: u8| ROUNDS[usize::from(round / 4) % ROUNDS.len()] + u32::from(round % 4);
        let (from, kind, round, call, total, bytes) = match action {
            PeerAction::Numbers { from, round, numbers, wide } => {
                let bytes: Vec<u8> = match wide {
                    true => numbers.iter().flat_map(|number| u64::from(*number).to_le_bytes()).collect(),
                    false => numbers.iter().flat_map(|number| number.to_le_bytes()).collect(),
                };
                (peer(from), FrameKind::Data, round_of(round), here, Some(bytes.len() as u64), bytes)
            }
            PeerAction::Shrink { from, letter, numbers } => {
                let mut bytes = vec![b"jpycol"[usize::from(letter) % 6]];
                let count = match bytes[0] {
                    b'j' => size as usize,
                    b'p' | b'y' => 1,
                    b'c' => usize::from(letter / 6) % 5,
                    _ => 0,
                };
                numbers[..count].iter().for_each(|number| bytes.extend(u32::from(*number % 5).to_le_bytes()));
                (peer(from), FrameKind::Data, Round(0), here, Some(u64::MAX), bytes)
            }
            PeerAction::Raw { from, round, kind, call, total, bytes } => {
                let call = if call < 200 { here } else { CallNumber(u64::from(call - 200)) };
                (peer(from), KINDS[usize::from(kind) % KINDS.len()], round_of(round), call, total, bytes)
            }
            PeerAction::Lost { from } => {
                if let Some(rank) = peer(from) {
                    let loss = [Loss::Left, Loss::Ended, Loss::Silent][usize::from(from / 8) % 3];
                    script.events.push_back(Event::PeerDown { rank, cause: "lost".to_owned(), loss });
                }
                continue;
            }
        };
        let Some(from) = from else { continue };
        let seq = seqs.entry((from, round, call)).or_default();
        // The kind `Failed` matches a call of any kind.
        let sig = CallSig::plain(CallKind::Failed);
        let total = total.unwrap_or(bytes.len() as u64);
        let header = Header { round, seq: *seq, total, sig, ..Header::control(kind, CommId(0), call) };
        *seq += u32::from(kind == FrameKind::Data);
        script
            .events
            .push_back(Event::Frame { from, frame: Frame { header, payload: pool.copy_of(&bytes) } });
    }
}
