//! What the transport costs over the loopback, beside plain blocking sockets in the same run.
//!
//! `cargo run --release -p skyphos-tcp --example pingpong [MB to stream]`
//!
//! Two processes (it starts itself again). Latency is half a round trip of 8 bytes; rate is one way,
//! in chunks of 128 KB, checksums on both sides included; the answers are checked. Each is the best of
//! [`ROUNDS`], since anything else on the machine only adds.

use skyphos_core::frame::{CallKind, CallSig, Frame, FrameKind, Header};
use skyphos_core::slab::{CHUNK_BYTES, Pool};
use skyphos_core::transport::{Event, Transport};
use skyphos_core::{Group, Node, Settings};
use skyphos_tcp::{Options, Tcp, connect};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::IntoRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

const OTHER: &str = "SKYPHOS_PINGPONG";
const ROUNDS: usize = 7;
const PINGS: usize = 5000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let chunks = args.next().map_or(Ok(1024), |mb| mb.parse::<usize>())? * (1 << 20) / CHUNK_BYTES;
    let only = args.next().unwrap_or("all".to_owned());
    if let Ok(places) = std::env::var(OTHER) {
        let (plain, group) = places.split_once(' ').ok_or("two places")?;
        return bench(1, TcpStream::connect(plain)?, connect(Options::new(1, 2, group))?, chunks, &only);
    }
    let (plain, group) = (TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?);
    let (plain_at, group_at) = (plain.local_addr()?, group.local_addr()?);
    let mut other = std::process::Command::new(std::env::current_exe()?)
        .args(std::env::args().skip(1))
        .env(OTHER, format!("{plain_at} {group_at}"))
        .spawn()?;
    let mut options = Options::new(0, 2, group_at.to_string());
    options.listen_fd = Some(group.into_raw_fd());
    bench(0, plain.accept()?.0, connect(options)?, chunks, &only)?;
    other.wait()?;
    Ok(())
}

/// The best of several runs, in seconds.
fn best(mut run: impl FnMut() -> Duration) -> f64 {
    (0..ROUNDS).map(|_| run().as_secs_f64()).fold(f64::INFINITY, f64::min)
}

fn bench(
    rank: u32,
    mut plain: TcpStream,
    mut tcp: Tcp,
    chunks: usize,
    only: &str,
) -> Result<(), Box<dyn std::error::Error>> {
    plain.set_nodelay(true)?;
    let bytes = (chunks * CHUNK_BYTES) as f64;
    let say = |what: &str, value: String| {
        if rank == 0 {
            println!("{what:<58}{value:>14}");
        }
    };
    let us = |seconds: f64| format!("{:.2} µs", seconds * 1e6);
    let rate = |seconds: f64| format!("{:.2} GB/s", bytes / seconds / 1e9);
    let runs = |what: &str| only == "all" || only == what;
    if runs("plain") {
        let ping = best(|| plain_ping(rank, &mut plain)) / PINGS as f64 / 2.0;
        let stream = best(|| plain_stream(rank, &mut plain, chunks));
        say("plain blocking sockets: 8 B, one way", us(ping));
        say("plain blocking sockets: 128 KB writes", rate(stream));
    }
    if runs("tcp") {
        let ping = best(|| tcp_ping(rank, &mut tcp)) / PINGS as f64 / 2.0;
        let stream = best(|| tcp_stream(rank, &mut tcp, chunks));
        say("Tcp, polled without sleeping: 8 B frame, one way", us(ping));
        say("Tcp: frames of 128 KB", rate(stream));
    }
    if runs("node") {
        let node = Node::new(Box::new(tcp), Settings::default())?;
        let group = Arc::new(Group { comm: 1, ranks: vec![0, 1], me: rank });
        node.open_group(group.clone());
        let sig = CallSig::plain(CallKind::Barrier);
        let other = 1 - rank;
        let exchange = |message: &[u8]| {
            node.call(&group, sig, async |ep| ep.exchange(0, &[(other, message)], &[other]).await)
                .map(|mut got| got.remove(0))
        };
        let call = best(|| {
            let start = Instant::now();
            for k in 0..PINGS as u64 {
                let got = exchange(&k.to_le_bytes()).expect("exchange");
                assert_eq!(got.as_bytes(), k.to_le_bytes());
            }
            start.elapsed()
        });
        say("Node::call with an exchange of 8 B (both ways, a call each)", us(call / PINGS as f64));
        let message = vec![rank as u8; chunks * CHUNK_BYTES];
        let both = best(|| {
            exchange(&[]).expect("together");
            let start = Instant::now();
            let got = exchange(&message).expect("exchange");
            assert!(got.len() == message.len() && got.as_bytes()[got.len() - 1] == other as u8);
            start.elapsed()
        });
        say("Node::call with a large exchange (both ways, each way)", rate(both));
        node.close();
    }
    Ok(())
}

fn plain_ping(rank: u32, stream: &mut TcpStream) -> Duration {
    let (start, mut buffer) = (Instant::now(), [0; 8]);
    for k in 0..PINGS as u64 {
        if rank == 0 {
            stream.write_all(&k.to_le_bytes()).expect("write");
        }
        stream.read_exact(&mut buffer).expect("read");
        assert_eq!(buffer, k.to_le_bytes());
        if rank == 1 {
            stream.write_all(&buffer).expect("write");
        }
    }
    start.elapsed()
}

/// Rank 0 sends chunks; rank 1 answers when it has all.
fn plain_stream(rank: u32, stream: &mut TcpStream, chunks: usize) -> Duration {
    let (start, mut buffer) = (Instant::now(), vec![7; CHUNK_BYTES]);
    if rank == 0 {
        (0..chunks).for_each(|_| stream.write_all(&buffer).expect("write"));
        stream.read_exact(&mut buffer[..1]).expect("read");
    } else {
        (0..chunks).for_each(|_| stream.read_exact(&mut buffer).expect("read"));
        stream.write_all(&buffer[..1]).expect("write");
    }
    start.elapsed()
}

fn header(seq: usize) -> Header {
    Header { seq: seq as u32, ..Header::control(FrameKind::Data, 1, 0) }
}

/// Polls until that many frames have come.
fn receive(tcp: &mut Tcp, events: &mut Vec<Event>, mut count: usize) {
    while count > 0 {
        tcp.poll(Duration::ZERO, events);
        for event in events.drain(..) {
            match event {
                Event::Frame { .. } => count -= 1,
                Event::Writable { .. } => {}
                Event::PeerDown { cause, .. } => panic!("{cause}"),
            }
        }
    }
}

fn tcp_ping(rank: u32, tcp: &mut Tcp) -> Duration {
    let (pool, mut events, start) = (Pool::default(), Vec::new(), Instant::now());
    for k in 0..PINGS {
        if rank == 0 {
            tcp.post(1, Frame { header: header(k), payload: pool.copy_of(&k.to_le_bytes()) });
        }
        receive(tcp, &mut events, 1);
        if rank == 1 {
            tcp.post(0, Frame { header: header(k), payload: pool.copy_of(&k.to_le_bytes()) });
        }
    }
    start.elapsed()
}

/// Rank 0 sends chunks, each a buffer of the pool as a collective's would be; rank 1 answers.
fn tcp_stream(rank: u32, tcp: &mut Tcp, chunks: usize) -> Duration {
    let (pool, mut events, start) = (Pool::default(), Vec::new(), Instant::now());
    if rank == 1 {
        receive(tcp, &mut events, chunks);
        tcp.post(0, Frame { header: header(0), payload: pool.copy_of(b"!") });
        return start.elapsed();
    }
    for seq in 0..chunks {
        // The bound that core's endpoints keep to.
        while tcp.backlog(1) > 1 << 20 {
            tcp.poll(Duration::from_millis(100), &mut events);
            events.clear();
        }
        tcp.post(1, Frame { header: header(seq), payload: pool.take(CHUNK_BYTES).freeze() });
    }
    receive(tcp, &mut events, 1);
    start.elapsed()
}
