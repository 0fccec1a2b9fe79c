//! Latency and rate of the transport within a host, over loopback sockets and through shared memory, compared with plain blocking
//! sockets in the same run.
//!
//! `cargo run --release -p skyphos-tcp --example pingpong [MB to stream] [tls]` (512 MB by default)
//!
//! With `tls` an encrypted connection is measured, too, with a new certificate. The program starts itself again as the second process.
//! Latency is half a round trip of 8 bytes, with a receiver that polls or one that sleeps. Rate is one way, in chunks of 128 KB,
//! including checksums on both sides where the transport has them. Answers are checked. Each figure is the best of [`ROUNDS`], since
//! other load on the machine only adds time.

#[allow(dead_code)]
#[path = "../tests/common/certificates.rs"]
mod certificates;

use certificates::Authority;
use skyphos_core::frame::{CallKind, CallSig, Frame, FrameKind, Header};
use skyphos_core::slab::{CHUNK_BYTES, Pool};
use skyphos_core::transport::{Event, Transport};
use skyphos_core::{Endpoint, Group, Incoming, Node, Outgoing, Settings};
use skyphos_tcp::{Options, Tcp, TlsFiles, connect};
use skyphos_types::{CallNumber, CommId, GroupRank, Result, Round, WorldRank};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::IntoRawFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The environment variable that gives the second process the addresses.
const ADDRESSES: &str = "SKYPHOS_PINGPONG";
const ROUNDS: usize = 7;
const PINGS: usize = 5000;
const LARGE: usize = 1 << 20;
const LARGE_TURNS: u32 = 100;
const SLEEP: Duration = Duration::from_millis(100);

fn main() -> Outcome<()> {
    let (tls, rest): (Vec<_>, Vec<_>) = std::env::args().skip(1).partition(|argument| argument == "tls");
    let chunks = rest.first().map_or(Ok(512), |mb| mb.parse::<usize>())? * (1 << 20) / CHUNK_BYTES;
    if let Ok(addresses) = std::env::var(ADDRESSES) {
        let addresses: Vec<_> = addresses.split(' ').collect();
        let plain = TcpStream::connect(addresses[0])?;
        let files = addresses.get(4).map(|folder| files_in(folder));
        return bench(1, plain, groups(&addresses[1..4], files, |at| Options::new(1, 2, at))?, chunks);
    }
    let authority = (!tls.is_empty()).then(Authority::new);
    let plain = TcpListener::bind("127.0.0.1:0")?;
    let mut addresses = vec![plain.local_addr()?.to_string()];
    let mut listeners = Vec::new();
    for _ in 0..3 {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        addresses.push(listener.local_addr()?.to_string());
        listeners.push(listener);
    }
    addresses.extend(authority.as_ref().map(|authority| authority.folder.display().to_string()));
    let mut other = std::process::Command::new(std::env::current_exe()?)
        .args(std::env::args().skip(1))
        .env(ADDRESSES, addresses.join(" "))
        .spawn()?;
    let stream = plain.accept()?.0;
    let mut listeners = listeners.into_iter();
    let at: Vec<&str> = addresses[1..4].iter().map(String::as_str).collect();
    let groups = groups(&at, authority.as_ref().map(Authority::files), |at| {
        let mut options = Options::new(0, 2, at);
        options.listen_fd = listeners.next().map(IntoRawFd::into_raw_fd);
        options
    })?;
    bench(0, stream, groups, chunks)?;
    other.wait()?;
    Ok(())
}

type Outcome<R> = std::result::Result<R, Box<dyn std::error::Error>>;

/// A group over each kind of connection.
fn groups(
    addresses: &[&str],
    tls: Option<TlsFiles>,
    mut options: impl FnMut(&str) -> Options,
) -> Outcome<Vec<(&'static str, Tcp)>> {
    let mut all = Vec::new();
    let kinds = [("sockets", false, None), ("shared memory", true, None), ("TLS", false, tls)];
    for ((kind, shared, files), at) in kinds.into_iter().zip(addresses) {
        let mut options = options(at);
        options.shared_memory = shared;
        if kind != "TLS" || files.is_some() {
            options.tls = files;
            all.push((kind, connect(options)?));
        }
    }
    Ok(all)
}

fn files_in(folder: &str) -> TlsFiles {
    let file = |name| Path::new(folder).join(name);
    TlsFiles { authority: file("authority.pem"), certificate: file("0.pem"), key: file("0.key") }
}

fn us(seconds: f64) -> String {
    format!("{:.2} µs", seconds * 1e6)
}

fn rate(chunks: usize, seconds: f64) -> String {
    format!("{:.2} GB/s", (chunks * CHUNK_BYTES) as f64 / seconds / 1e9)
}

/// The least seconds of each measurement in several rounds. Measurements alternate, so that other load on the machine affects all of
/// them.
fn best(mut round: impl FnMut() -> Vec<Duration>) -> Vec<f64> {
    let mut best = vec![f64::INFINITY; round().len()];
    for _ in 0..ROUNDS {
        for (best, took) in best.iter_mut().zip(round()) {
            *best = best.min(took.as_secs_f64());
        }
    }
    best
}

fn bench(
    rank: u32,
    mut plain: TcpStream,
    mut groups: Vec<(&'static str, Tcp)>,
    chunks: usize,
) -> Outcome<()> {
    plain.set_nodelay(true)?;
    let print = |what: &str, value: String| {
        if rank == 0 {
            println!("{what:<60}{value:>12}");
        }
    };
    let kinds: Vec<&str> =
        ["plain blocking sockets"].into_iter().chain(groups.iter().map(|(kind, _)| *kind)).collect();
    for (what, wait) in [("polled", Duration::ZERO), ("asleep", SLEEP)] {
        let took = best(|| {
            let plain = [plain_ping(rank, &mut plain)];
            plain.into_iter().chain(groups.iter_mut().map(|(_, tcp)| tcp_ping(rank, tcp, wait))).collect()
        });
        for (kind, seconds) in kinds.iter().zip(took) {
            print(&format!("8 B one way, {what}: {kind}"), us(seconds / PINGS as f64 / 2.0));
        }
    }
    let took = best(|| {
        let plain = [plain_stream(rank, &mut plain, chunks)];
        plain.into_iter().chain(groups.iter_mut().map(|(_, tcp)| tcp_stream(rank, tcp, chunks))).collect()
    });
    for (kind, seconds) in kinds.iter().zip(took) {
        print(&format!("128 KB one way: {kind}"), rate(chunks, seconds));
    }
    let took = best(|| vec![plain_both(rank, &mut plain, chunks)]);
    print("128 KB both ways: plain blocking sockets, a thread each way", rate(chunks, took[0]));
    over_nodes(rank, groups, chunks, &print)
}

/// The same measurements through [`Node::call`], as collectives use the transport.
fn over_nodes(
    rank: u32,
    groups: Vec<(&'static str, Tcp)>,
    chunks: usize,
    print: &dyn Fn(&str, String),
) -> Outcome<()> {
    let sig = CallSig::plain(CallKind::Barrier);
    let other = 1 - rank;
    let mut nodes = Vec::new();
    for (kind, tcp) in groups {
        let node = Node::new(Box::new(tcp), Settings::default())?;
        let group = Arc::new(Group::new(CommId(1), (0..2).map(WorldRank).collect(), GroupRank(rank)));
        node.open_group(group.clone());
        nodes.push((kind, node, group));
    }
    let large = vec![7; LARGE];
    let took = best(|| {
        let mut all = Vec::new();
        for (_, node, group) in &nodes {
            let exchange = |message: &[u8]| {
                let got = node.call(group, sig, async |ep| {
                    ep.exchange(
                        Round(0),
                        vec![(GroupRank(other), ep.message_of(message))],
                        &[GroupRank(other)],
                    )
                    .await
                });
                got.map(|mut got| got.remove(0)).expect("exchange")
            };
            let start = Instant::now();
            for k in 0..PINGS as u64 {
                assert_eq!(exchange(&k.to_le_bytes()).as_bytes(), k.to_le_bytes());
            }
            all.push(start.elapsed());
            // The two directions alternate.
            let start = Instant::now();
            for k in 0..2 * LARGE_TURNS {
                let sends = k % 2 == rank;
                let got = node.call(group, sig, async |ep| match sends {
                    true => ep.exchange(Round(0), vec![(GroupRank(other), ep.message_of(&large))], &[]).await,
                    false => ep.exchange(Round(0), Vec::new(), &[GroupRank(other)]).await,
                });
                assert!(got.expect("exchange").iter().all(|message| message.as_bytes().len() == LARGE));
            }
            all.push(start.elapsed());
            exchange(&[]);
            let start = Instant::now();
            node.call(group, sig, async |ep| both_ways(ep, other, chunks as u64).await).expect("call");
            all.push(start.elapsed());
        }
        all
    });
    for ((kind, node, _), took) in nodes.iter().zip(took.chunks(3)) {
        print(&format!("Node::call with an exchange of 8 B: {kind}"), us(took[0] / PINGS as f64));
        print(
            &format!("Node::call with a message of 1 MB: {kind}"),
            us(took[1] / f64::from(2 * LARGE_TURNS)),
        );
        print(&format!("128 KB both ways, a collective's streams: {kind}"), rate(chunks, took[2]));
        node.close()?;
    }
    Ok(())
}

/// One stream each way, chunk by chunk, as a plan sends and receives.
async fn both_ways(ep: &Endpoint, other: u32, chunks: u64) -> Result<()> {
    let mut send = Outgoing::new(GroupRank(other), Round(0), chunks * CHUNK_BYTES as u64);
    let mut receive = Incoming::new(GroupRank(other), Round(0));
    while !(send.done() && receive.done()) {
        let mut moved = false;
        while let Some(range) = send.next_range(ep, 1) {
            send.push(ep, ep.chunk(range.len()));
            moved = true;
        }
        while receive.next(ep)?.is_some() {
            moved = true;
        }
        if !moved {
            ep.progress().await?;
        }
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
    let (start, mut answer) = (Instant::now(), [0]);
    if rank == 0 {
        plain_send(stream, chunks);
        stream.read_exact(&mut answer).expect("read");
    } else {
        plain_receive(stream, chunks);
        stream.write_all(&answer).expect("write");
    }
    start.elapsed()
}

/// Both processes send and receive at the same time.
fn plain_both(rank: u32, stream: &mut TcpStream, chunks: usize) -> Duration {
    let (mut sending, start) = (stream.try_clone().expect("clone"), Instant::now());
    std::thread::scope(|scope| {
        scope.spawn(move || plain_send(&mut sending, chunks));
        plain_receive(stream, chunks);
    });
    // Synchronises both processes before the next round.
    plain_stream(rank, stream, 1);
    start.elapsed()
}

fn plain_send(stream: &mut TcpStream, chunks: usize) {
    let buffer = vec![7; CHUNK_BYTES];
    (0..chunks).for_each(|_| stream.write_all(&buffer).expect("write"));
}

fn plain_receive(stream: &mut TcpStream, chunks: usize) {
    let mut buffer = vec![0; CHUNK_BYTES];
    (0..chunks).for_each(|_| stream.read_exact(&mut buffer).expect("read"));
}

fn header(seq: usize) -> Header {
    Header { seq: seq as u32, ..Header::control(FrameKind::Data, CommId(1), CallNumber(0)) }
}

/// Polls until `count` frames have arrived.
fn receive(tcp: &mut Tcp, events: &mut Vec<Event>, mut count: usize, wait: Duration) {
    while count > 0 {
        tcp.poll(wait, events);
        for event in events.drain(..) {
            match event {
                // A peer that has all it needs may leave first.
                _ if count == 0 => {}
                Event::Frame { .. } => count -= 1,
                Event::Writable { .. } => {}
                Event::PeerDown { cause, .. } => panic!("{cause}"),
            }
        }
    }
}

fn tcp_ping(rank: u32, tcp: &mut Tcp, wait: Duration) -> Duration {
    let (pool, mut events, start) = (Pool::default(), Vec::new(), Instant::now());
    for k in 0..PINGS {
        if rank == 0 {
            tcp.post(WorldRank(1), Frame { header: header(k), payload: pool.copy_of(&k.to_le_bytes()) });
        }
        receive(tcp, &mut events, 1, wait);
        if rank == 1 {
            tcp.post(WorldRank(0), Frame { header: header(k), payload: pool.copy_of(&k.to_le_bytes()) });
        }
    }
    start.elapsed()
}

/// Rank 0 sends chunks, each a buffer of the pool as a collective's would be; rank 1 answers.
fn tcp_stream(rank: u32, tcp: &mut Tcp, chunks: usize) -> Duration {
    let (pool, mut events, start) = (Pool::default(), Vec::new(), Instant::now());
    if rank == 1 {
        receive(tcp, &mut events, chunks, SLEEP);
        tcp.post(WorldRank(0), Frame { header: header(0), payload: pool.copy_of(b"!") });
        return start.elapsed();
    }
    for seq in 0..chunks {
        // Like an endpoint of skyphos-core, posts only while at most 1 MB waits to be sent.
        while tcp.backlog(WorldRank(1)) > 1 << 20 {
            tcp.poll(SLEEP, &mut events);
            events.clear();
        }
        tcp.post(WorldRank(1), Frame { header: header(seq), payload: pool.take(CHUNK_BYTES).freeze() });
    }
    receive(tcp, &mut events, 1, SLEEP);
    start.elapsed()
}
