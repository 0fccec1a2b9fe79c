//! Strangers on the ports of a group that is coming up: they neither get in nor hold it up.

mod common;

use common::{LONG, Place, connect_all};
use skyphos_tcp::{Options, connect};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Connects 100 strangers: silent ones, ones that send noise, claims of huge messages, half messages.
fn besiege(at: SocketAddr) -> Vec<TcpStream> {
    (0..100u64)
        .filter_map(|k| {
            let mut stream = TcpStream::connect(at).ok()?;
            let bytes = match k % 5 {
                0 => Vec::new(),
                1 => noise(k, 3000),
                2 => [&u32::MAX.to_le_bytes()[..], &[2; 50]].concat(),
                3 => [&800u32.to_le_bytes()[..], &[2], &noise(k, 300)].concat(),
                _ => [&132u32.to_le_bytes()[..], &[2], &noise(k, 131)].concat(),
            };
            let _ = stream.write_all(&bytes);
            Some(stream)
        })
        .collect()
}

#[test]
fn strangers_at_the_rendezvous() {
    let mut place = Place::new();
    let at: SocketAddr = place.at.parse().unwrap();
    // More of them than are let wait, before anyone else and while the ranks come.
    let before = besiege(at);
    let mut options = place.options(4);
    options.iter_mut().for_each(|o| o.token = Some("cup".to_owned()));
    let start = Instant::now();
    let during = std::thread::spawn(move || besiege(at));
    let results = connect_all(options);
    assert!(start.elapsed() < LONG / 3, "{:?}", start.elapsed());
    for result in results {
        result.unwrap();
    }
    drop((before, during.join().unwrap()));
}

/// Ports on which this process listens on the loopback, from the kernel's table.
fn listening() -> Vec<u16> {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let mine: Vec<String> = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|e| std::fs::read_link(e.ok()?.path()).ok())
        .filter_map(|p| Some(p.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    let port = |line: &str| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let listens = fields.get(3) == Some(&"0A") && mine.iter().any(|i| i == fields[9]);
        listens.then(|| u16::from_str_radix(fields[1].split(':').nth(1)?, 16).ok()).flatten()
    };
    table.lines().filter_map(port).collect()
}

#[test]
fn strangers_on_the_mesh_ports() {
    let mut place = Place::new();
    let rendezvous: SocketAddr = place.at.parse().unwrap();
    let mut options = place.options(4);
    let last = options.pop().unwrap();
    let early: Vec<_> = options.into_iter().map(|o| std::thread::spawn(move || connect(o))).collect();
    // Ranks 1 and 2 have opened their own listeners; the group waits for rank 3.
    let start = Instant::now();
    let mesh = loop {
        let ports = listening();
        let mesh: Vec<u16> = ports.into_iter().filter(|p| *p != rendezvous.port()).collect();
        if mesh.len() >= 2 {
            break mesh;
        }
        assert!(start.elapsed() < LONG);
        std::thread::yield_now();
    };
    let strangers: Vec<_> = mesh.iter().flat_map(|p| besiege(([127, 0, 0, 1], *p).into())).collect();
    connect(last).unwrap();
    for rank in early {
        rank.join().unwrap().unwrap();
    }
    assert!(start.elapsed() < LONG / 3, "{:?}", start.elapsed());
    // They were dropped with the listener at the latest.
    for mut stranger in strangers {
        stranger.set_read_timeout(Some(LONG)).unwrap();
        let mut all = Vec::new();
        let _ = stranger.read_to_end(&mut all);
        assert!(all.len() <= 45, "at most a challenge");
    }
}

#[test]
fn another_group_with_the_same_token_does_not_mix_in() {
    // Two groups at once, same token, same sizes: each finds its own.
    let groups: Vec<_> = (0..4)
        .map(|_| {
            let mut options: Vec<Options> = Place::new().options(3);
            options.iter_mut().for_each(|o| o.token = Some("cup".to_owned()));
            std::thread::spawn(move || connect_all(options).into_iter().for_each(|r| drop(r.unwrap())))
        })
        .collect();
    groups.into_iter().for_each(|g| g.join().unwrap());
}
