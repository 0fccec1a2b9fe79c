//! Traffic between all pairs of ranks at once: order, contents, no deadlock.

use crate::common::{LONG, Rendezvous, connect_all, encrypted_group, group, shared_memory_group};
use skyphos_core::frame::{Frame, FrameKind, Header};
use skyphos_core::slab::CHUNK_BYTES;
use skyphos_core::transport::{Event, Loss, Transport};
use skyphos_tcp::Tcp;
use skyphos_types::{CallNumber, CommId, WorldRank};
use std::time::{Duration, Instant};

/// Frames of 0 B, 1 B, 4 KB, 20 KB and 128 KB in turn.
const SIZES: [usize; 5] = [0, 1, 4096, 20_000, CHUNK_BYTES];

/// A pair's frames: 10 MB each way, more than both sockets' buffers hold together.
const FRAMES: u32 = 320;

fn byte(from: u32, to: u32, seq: u32) -> u8 {
    (from * 101 + to * 37 + seq) as u8
}

fn run(mut tcp: Tcp) {
    let (me, size) = (tcp.rank(), tcp.size());
    let pool = tcp.facts().pool;
    let others: Vec<u32> = (0..size).filter(|r| *r != me.0).collect();
    // All frames are posted before any is read: a rank that blocked here would block for ever.
    for seq in 0..FRAMES {
        for to in &others {
            let len = SIZES[seq as usize % SIZES.len()];
            // Half of the payloads are in buffers that can be lent.
            let mut slab = if seq % 2 == 0 { pool.take_for_several(len) } else { pool.take(len) };
            slab.as_bytes_mut().fill(byte(me.0, *to, seq));
            let mut header = Header::control(FrameKind::Data, CommId(1), CallNumber(0));
            header.seq = seq;
            tcp.post(WorldRank(*to), Frame { header, payload: slab.freeze() });
        }
    }
    let mut kept = Vec::new();
    let mut next = vec![0u32; size as usize];
    let (start, mut events) = (Instant::now(), Vec::new());
    while others.iter().any(|r| next[*r as usize] < FRAMES || tcp.backlog(WorldRank(*r)) > 0) {
        assert!(start.elapsed() < LONG, "rank {me} stuck at {next:?}");
        tcp.poll(Duration::from_millis(100), &mut events);
        for event in events.drain(..) {
            match event {
                Event::Frame { from, frame } => {
                    let seq = &mut next[from.index()];
                    assert_eq!(frame.header.seq, *seq, "order");
                    let bytes = frame.payload.as_bytes();
                    assert_eq!(bytes.len(), SIZES[*seq as usize % SIZES.len()]);
                    assert!(bytes.iter().all(|b| *b == byte(from.0, me.0, *seq)), "contents");
                    if seq.is_multiple_of(3) {
                        kept.push((from, *seq, frame.payload));
                    }
                    *seq += 1;
                }
                Event::Writable { .. } => {}
                Event::PeerDown { rank, cause, loss } => {
                    // A rank that has all its frames may leave first.
                    assert!(loss == Loss::Left && next[rank.index()] == FRAMES, "rank {rank}: {cause}");
                }
            }
        }
    }
    tcp.close(LONG).unwrap();
    drop((tcp, pool));
    for (from, seq, payload) in kept {
        let same = payload.as_bytes().iter().all(|b| *b == byte(from.0, me.0, seq));
        assert!(same, "frame {seq} of rank {from} has changed since it arrived");
    }
}

fn run_all(group: Vec<Tcp>) {
    let tasks: Vec<_> = group.into_iter().map(|tcp| std::thread::spawn(move || run(tcp))).collect();
    tasks.into_iter().for_each(|t| t.join().unwrap());
}

#[test]
fn all_pairs_both_ways_at_once() {
    for size in [2, 5] {
        run_all(group(size));
    }
}

#[test]
fn all_pairs_both_ways_at_once_encrypted() {
    for size in [2, 3, 5] {
        run_all(encrypted_group(size));
    }
}

#[test]
fn all_pairs_both_ways_at_once_through_shared_memory() {
    for (size, tls) in [(2, false), (5, false), (3, true), (5, true)] {
        run_all(shared_memory_group(size, tls));
    }
}

/// Where either side does not share memory, the socket carries all bytes.
#[test]
fn some_may_share_memory_and_others_not() {
    let mut options = Rendezvous::new().shared_memory(4, false);
    options[1].shared_memory = false;
    run_all(connect_all(options).into_iter().map(|tcp| tcp.unwrap()).collect());
}

#[test]
fn small_buffers_change_nothing() {
    for mut options in [Rendezvous::new().options(3), Rendezvous::new().encrypted(3)] {
        options.iter_mut().for_each(|o| o.socket_buffer = Some(8 * 1024));
        run_all(connect_all(options).into_iter().map(|tcp| tcp.unwrap()).collect());
    }
}
