//! How long a group takes to come up: rendezvous, handshakes, full mesh, go.
//!
//! `cargo run --release -p skyphos-tcp --example bringup [ranks …, 2 8 64]`
//!
//! All ranks are threads of this process, over the loopback; the best of [`ROUNDS`].

use skyphos_tcp::{Options, connect};
use std::net::TcpListener;
use std::os::fd::IntoRawFd;
use std::time::{Duration, Instant};

const ROUNDS: usize = 7;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let named: Vec<u32> = std::env::args().skip(1).map(|a| a.parse()).collect::<Result<_, _>>()?;
    for size in if named.is_empty() { vec![2, 8, 64] } else { named } {
        let mut best = Duration::MAX;
        for _ in 0..ROUNDS {
            best = best.min(once(size)?);
        }
        println!("{size:>4} ranks, {:>5} connections: {best:.2?}", size * (size - 1) / 2);
    }
    Ok(())
}

fn once(size: u32) -> std::io::Result<Duration> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let at = listener.local_addr()?.to_string();
    let mut fd = Some(listener.into_raw_fd());
    let start = Instant::now();
    let tasks: Vec<_> = (0..size)
        .map(|rank| {
            let mut options = Options::new(rank, size, &at);
            options.listen_fd = fd.take();
            options.token = Some("a token".to_owned());
            std::thread::spawn(move || connect(options))
        })
        .collect();
    let group: Vec<_> = tasks.into_iter().map(|t| t.join()).collect();
    let took = start.elapsed();
    for rank in group {
        rank.expect("no panic").expect("a group");
    }
    Ok(took)
}
