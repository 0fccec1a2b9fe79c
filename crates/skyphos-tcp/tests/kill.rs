//! A rank whose process is killed in the middle of a transfer is reported as lost at once.
//!
//! The test starts its own binary again as the other ranks.

mod common;

use common::{LONG, Rendezvous, certificates};
use skyphos_core::collectives::barrier::barrier;
use skyphos_core::frame::{CallKind, CallSig, Frame, FrameKind, Header};
use skyphos_core::slab::{CHUNK_BYTES, Payload};
use skyphos_core::transport::{Event, Loss, Transport};
use skyphos_core::{Group, Node, Settings};
use skyphos_tcp::{Options, Tcp, TlsFiles, connect};
use skyphos_types::{CallNumber, CommId, Error, GroupRank, WorldRank};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

const ROLE: &str = "SKYPHOS_TEST_KILL";

/// A child process that is killed when the test ends.
struct Rank(Child);

impl Rank {
    fn kill(&mut self) {
        self.0.kill().unwrap();
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.0.kill();
        self.0.wait().unwrap();
    }
}

fn spawn(role: &str, rank: u32, size: u32, at: &str) -> Rank {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env(ROLE, format!("{role} {rank} {size} {at}"))
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    Rank(child)
}

/// The main function of the child processes. Without the variable it does nothing.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let words: Vec<_> = role.split(' ').collect();
    let mut options = Options::new(words[1].parse().unwrap(), words[2].parse().unwrap(), words[3]);
    options.timeout = LONG;
    options.shared_memory = words[0] != "flood";
    options.tls = words.get(4).map(|folder| {
        let file = |name: &str| std::path::Path::new(folder).join(name);
        TlsFiles { authority: file("authority.pem"), certificate: file("0.pem"), key: file("0.key") }
    });
    // Some tests make the bring-up fail, and check rank 0's error.
    let Ok(tcp) = connect(options) else { return };
    match words[0] {
        "flood" | "shared-memory" => flood(tcp),
        _ => loop {
            std::thread::park();
        },
    }
}

/// Sends frames to all ranks until the process is killed.
fn flood(mut tcp: Tcp) {
    let (pool, mut events) = (tcp.facts().pool, Vec::new());
    loop {
        let mut slab = pool.take_for_several(CHUNK_BYTES);
        slab.as_bytes_mut().fill(1);
        let payload = slab.freeze();
        for to in (0..tcp.size()).filter(|to| *to != tcp.rank().0).collect::<Vec<_>>() {
            if tcp.backlog(WorldRank(to)) < 4 * CHUNK_BYTES {
                tcp.post(
                    WorldRank(to),
                    Frame {
                        header: Header::control(FrameKind::Data, CommId(1), CallNumber(0)),
                        payload: payload.clone(),
                    },
                );
            }
        }
        tcp.poll(Duration::from_millis(1), &mut events);
        events.clear();
    }
}

fn rank_0(rendezvous: &mut Rendezvous, size: u32) -> Tcp {
    connect(rendezvous.options(size).remove(0)).unwrap()
}

#[test]
fn a_rank_killed_in_mid_transfer_is_reported_down_at_once() {
    let mut rendezvous = Rendezvous::new();
    let children = [1, 2].map(|rank| spawn("flood", rank, 3, &rendezvous.at));
    kill_in_mid_transfer(rank_0(&mut rendezvous, 3), children);
}

#[test]
fn a_rank_killed_in_mid_transfer_is_reported_down_at_once_encrypted() {
    let (mut rendezvous, files) = (Rendezvous::new(), certificates::shared());
    let at = format!("{} {}", rendezvous.at, files.key.parent().unwrap().display());
    let children = [1, 2].map(|rank| spawn("flood", rank, 3, &at));
    let tcp = connect(rendezvous.encrypted(3).remove(0)).unwrap();
    kill_in_mid_transfer(tcp, children);
}

#[test]
fn a_rank_killed_in_mid_transfer_is_reported_down_at_once_through_shared_memory() {
    let mut rendezvous = Rendezvous::new();
    let children = [1, 2].map(|rank| spawn("shared-memory", rank, 3, &rendezvous.at));
    let tcp = connect(rendezvous.shared_memory(3, false).remove(0)).unwrap();
    assert_eq!(mapped_files(), 5, "rings and arena of each peer, and this rank's arena");
    kill_in_mid_transfer(tcp, children);
    assert_eq!(mapped_files(), 0);
}

/// Number of shared memory files that this process has mapped.
fn mapped_files() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().matches("memfd:skyphos").count()
}

fn kill_in_mid_transfer(mut tcp: Tcp, mut children: [Rank; 2]) {
    let (mut events, mut frames, mut killed, mut last) = (Vec::new(), 0, None, Payload::default());
    let (rank, cause, left) = loop {
        tcp.poll(Duration::from_millis(100), &mut events);
        for event in &events {
            let Event::Frame { from: WorldRank(1), frame } = event else { continue };
            frames += 1;
            last = frame.payload.clone();
        }
        let down = events.iter().find_map(|e| match e {
            Event::PeerDown { rank, cause, loss } => Some((*rank, cause.clone(), *loss == Loss::Left)),
            _ => None,
        });
        events.clear();
        if let Some(down) = down {
            break down;
        }
        if frames > 50 && killed.is_none() {
            children[0].kill();
            killed = Some(Instant::now());
        }
        assert!(killed.is_none_or(|k| k.elapsed() < LONG), "not noticed");
    };
    assert_eq!((rank, left), (WorldRank(1), false), "{cause}");
    assert!(killed.unwrap().elapsed() < Duration::from_secs(2), "at once");
    assert_eq!(last.len(), CHUNK_BYTES);
    assert!(last.as_bytes().iter().all(|byte| *byte == 1), "a received payload outlives its sender");
    // The connection to rank 2 lives.
    let start = Instant::now();
    while !events.iter().any(|e| matches!(e, Event::Frame { from: WorldRank(2), .. })) {
        tcp.poll(Duration::from_millis(100), &mut events);
        assert!(start.elapsed() < LONG);
    }
}

#[test]
fn a_call_in_flight_raises_peer_lost_with_rank_and_address() {
    let mut rendezvous = Rendezvous::new();
    let child = spawn("sleep", 1, 2, &rendezvous.at);
    let tcp = rank_0(&mut rendezvous, 2);
    let address = tcp.facts().addresses[1].clone();
    let node = Node::new(Box::new(tcp), Settings { timeout: LONG, ..Settings::default() }).unwrap();
    let group = Arc::new(Group::new(CommId(1), (0..2).map(WorldRank).collect(), GroupRank(0)));
    node.open_group(group.clone());
    let task = std::thread::spawn(move || node.call(&group, CallSig::plain(CallKind::Barrier), barrier));
    drop(child);
    let error = task.join().unwrap().unwrap_err();
    assert!(matches!(&error, Error::PeerLost { rank: 1, address: a, .. } if *a == address), "{error}");
}

#[test]
fn a_rank_killed_while_the_group_comes_up_is_named() {
    let mut rendezvous = Rendezvous::new();
    let mut child = spawn("sleep", 1, 3, &rendezvous.at);
    let mut options = rendezvous.options(3).remove(0);
    options.timeout = LONG;
    // Rank 2 never comes. Rank 0 notices a killed child only if it had registered, so the child is killed and started again
    // until rank 0 has noticed.
    let zero = std::thread::spawn(move || connect(options));
    while !zero.is_finished() {
        std::thread::sleep(Duration::from_millis(50));
        drop(child);
        child = spawn("sleep", 1, 3, &rendezvous.at);
    }
    drop(child);
    let error = zero.join().unwrap().err().unwrap();
    assert!(matches!(error, Error::PeerLost { rank: 1, .. }), "{error}");
}
