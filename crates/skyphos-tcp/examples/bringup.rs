//! Measures how long a group takes to come up: rendezvous, handshakes, full mesh, and the message "go".
//!
//! `cargo run --release -p skyphos-tcp --example bringup [ranks …] [tls]` (2 8 64 ranks by default)
//!
//! With `tls`, groups over TLS are measured too. All ranks are threads of this process, over the loopback. Prints the best time of
//! [`ROUNDS`].

#[allow(dead_code)]
#[path = "../tests/common/certificates.rs"]
mod certificates;

use certificates::Authority;
use skyphos_tcp::{Options, TlsFiles, connect};
use std::net::TcpListener;
use std::os::fd::IntoRawFd;
use std::time::{Duration, Instant};

const ROUNDS: usize = 7;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (tls, sizes): (Vec<_>, Vec<_>) = std::env::args().skip(1).partition(|argument| argument == "tls");
    let sizes: Vec<u32> = sizes.iter().map(|a| a.parse()).collect::<Result<_, _>>()?;
    let authority = (!tls.is_empty()).then(Authority::new);
    let files = authority.as_ref().map(Authority::files);
    for size in if sizes.is_empty() { vec![2, 8, 64] } else { sizes } {
        let mut best = [Duration::MAX; 2];
        for _ in 0..ROUNDS {
            best[0] = best[0].min(bring_up(size, None)?);
            if files.is_some() {
                best[1] = best[1].min(bring_up(size, files.as_ref())?);
            }
        }
        let encrypted = files.as_ref().map_or(String::new(), |_| format!(", over TLS {:.2?}", best[1]));
        println!("{size:>4} ranks, {:>5} connections: {:.2?}{encrypted}", size * (size - 1) / 2, best[0]);
    }
    Ok(())
}

fn bring_up(size: u32, tls: Option<&TlsFiles>) -> std::io::Result<Duration> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let at = listener.local_addr()?.to_string();
    let mut fd = Some(listener.into_raw_fd());
    let start = Instant::now();
    let tasks: Vec<_> = (0..size)
        .map(|rank| {
            let mut options = Options::new(rank, size, &at);
            options.listen_fd = fd.take();
            options.token = Some("a token".to_owned());
            options.tls = tls.cloned();
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
