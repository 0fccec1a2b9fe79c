//! Strangers that connect to the ports of a group during its bring-up can neither join nor delay it.

mod common;

use common::certificates::{Authority, authority, shared};
use common::{LONG, Rendezvous, connect_all, on_each};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use skyphos_core::collectives::barrier::barrier;
use skyphos_core::frame::{CallKind, CallSig};
use skyphos_tcp::{NAME, Options, TlsFiles, connect};
use skyphos_types::Error;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time-out of ranks that find no group.
const SHORT: Duration = Duration::from_millis(300);

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

/// The TLS side of a client that trusts the group's authority, with or without a certificate of its own.
fn tls_client(files: Option<&TlsFiles>) -> ClientConnection {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(shared().authority).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config =
        ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&rustls::version::TLS13]);
    let config = config.unwrap().with_root_certificates(roots);
    let config = match files {
        None => config.with_no_client_auth(),
        Some(files) => {
            let chain = vec![CertificateDer::from_pem_file(&files.certificate).unwrap()];
            config.with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(&files.key).unwrap()).unwrap()
        }
    };
    ClientConnection::new(Arc::new(config), NAME.try_into().unwrap()).unwrap()
}

/// Completes a TLS handshake and sends bytes. Returns the answer, or how the connection ended.
fn visit(at: SocketAddr, files: Option<&TlsFiles>) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(at)?;
    stream.set_read_timeout(Some(LONG))?;
    let mut tls = tls_client(files);
    let mut tls = rustls::Stream::new(&mut tls, &mut stream);
    // Reads the challenge or the error, answers the challenge wrongly, and reads to the end.
    let mut received = vec![0; 45];
    tls.read_exact(&mut received)?;
    tls.write_all(&[&132u32.to_le_bytes()[..], &[2], &noise(3, 131)].concat())?;
    // The server need not send close_notify.
    match tls.read_to_end(&mut received) {
        Err(e) if e.kind() != std::io::ErrorKind::UnexpectedEof => Err(e),
        _ => Ok(received),
    }
}

/// Connects 100 strangers: silent ones, ones that send noise, claims of huge messages, half messages, half an opening of TLS.
fn connect_strangers(at: SocketAddr) -> Vec<TcpStream> {
    (0..100u64)
        .filter_map(|k| {
            let mut stream = TcpStream::connect(at).ok()?;
            let bytes = match k % 6 {
                0 => Vec::new(),
                1 => noise(k, 3000),
                2 => [&u32::MAX.to_le_bytes()[..], &[2; 50]].concat(),
                3 => [&800u32.to_le_bytes()[..], &[2], &noise(k, 300)].concat(),
                4 => {
                    let mut opening = Vec::new();
                    tls_client(None).write_tls(&mut opening).unwrap();
                    opening.truncate(opening.len() - k as usize % 7 * 30);
                    opening
                }
                _ => [&132u32.to_le_bytes()[..], &[2], &noise(k, 131)].concat(),
            };
            let _ = stream.write_all(&bytes);
            Some(stream)
        })
        .collect()
}

#[test]
fn strangers_at_the_rendezvous_do_not_stop_a_group() {
    strangers_at_rendezvous(Rendezvous::options);
    strangers_at_rendezvous(Rendezvous::encrypted);
}

fn strangers_at_rendezvous(options: fn(&mut Rendezvous, u32) -> Vec<Options>) {
    let mut group_address = Rendezvous::new();
    let at: SocketAddr = group_address.at.parse().unwrap();
    // More strangers than a rank keeps, before the ranks connect and while they do.
    let before = connect_strangers(at);
    let mut options = options(&mut group_address, 4);
    options.iter_mut().for_each(|o| o.token = Some("cup".to_owned()));
    let start = Instant::now();
    let during = std::thread::spawn(move || connect_strangers(at));
    let results = connect_all(options);
    assert!(start.elapsed() < LONG / 3, "{:?}", start.elapsed());
    for result in results {
        result.unwrap();
    }
    drop((before, during.join().unwrap()));
}

#[test]
fn a_tls_client_without_a_certificate_of_the_group_gets_only_an_alert() {
    let mut group_address = Rendezvous::new();
    let at: SocketAddr = group_address.at.parse().unwrap();
    let mut options = group_address.encrypted(2);
    options.iter_mut().for_each(|o| o.token = Some("cup".to_owned()));
    let last = options.pop().unwrap();
    let zero = std::thread::spawn(move || connect(options.pop().unwrap()));
    let (other, same_name, group) = (Authority::named("another"), Authority::new(), shared());
    let error_of = |files: Option<&TlsFiles>| visit(at, files).unwrap_err().to_string();
    assert!(error_of(None).contains("CertificateRequired"), "{}", error_of(None));
    let text = error_of(Some(&other.files()));
    assert!(text.contains("UnknownCA"), "{text}");
    let text = error_of(Some(&same_name.files()));
    assert!(text.contains("DecryptError"), "{text}");
    let text = error_of(Some(&authority().files_for("example.org", 4000)));
    assert!(text.contains("BadCertificate"), "{text}");
    // With a certificate, but no token: the challenge, whose answer is wrong, and the end.
    let received = visit(at, Some(&group)).unwrap();
    assert!(received.len() == 45 && received[5..12] == *b"SKYPHOS", "{received:?}");
    let (one, zero) = (connect(last), zero.join().unwrap());
    let failed = [one, zero].into_iter().find_map(|rank| rank.err());
    assert!(failed.is_none(), "{failed:?}");
}

/// Ports on which this process listens on the loopback, from the kernel's table.
fn listening_ports() -> Vec<u16> {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let inodes: Vec<String> = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|e| std::fs::read_link(e.ok()?.path()).ok())
        .filter_map(|p| Some(p.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    let port = |line: &str| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let listens = fields.get(3) == Some(&"0A") && inodes.iter().any(|i| i == fields[9]);
        listens.then(|| u16::from_str_radix(fields[1].split(':').nth(1)?, 16).ok()).flatten()
    };
    table.lines().filter_map(port).collect()
}

#[test]
fn strangers_on_the_mesh_ports_do_not_stop_a_group() {
    strangers_at_mesh(Rendezvous::options);
    strangers_at_mesh(Rendezvous::encrypted);
}

fn strangers_at_mesh(options: fn(&mut Rendezvous, u32) -> Vec<Options>) {
    let mut group_address = Rendezvous::new();
    let rendezvous: SocketAddr = group_address.at.parse().unwrap();
    let mut options = options(&mut group_address, 4);
    let last = options.pop().unwrap();
    let early: Vec<_> = options.into_iter().map(|o| std::thread::spawn(move || connect(o))).collect();
    // Ranks 1 and 2 have opened their own listeners; the group waits for rank 3.
    let start = Instant::now();
    let mesh = loop {
        let ports = listening_ports();
        let mesh: Vec<u16> = ports.into_iter().filter(|p| *p != rendezvous.port()).collect();
        if mesh.len() >= 2 {
            break mesh;
        }
        assert!(start.elapsed() < LONG);
        std::thread::yield_now();
    };
    let strangers: Vec<_> =
        mesh.iter().flat_map(|p| connect_strangers(([127, 0, 0, 1], *p).into())).collect();
    connect(last).unwrap();
    for rank in early {
        rank.join().unwrap().unwrap();
    }
    assert!(start.elapsed() < LONG / 3, "{:?}", start.elapsed());
    // Strangers are dropped at the latest with the listener.
    for mut stranger in strangers {
        stranger.set_read_timeout(Some(LONG)).unwrap();
        let mut all = Vec::new();
        let _ = stranger.read_to_end(&mut all);
        assert!(all.len() <= 45 || all.starts_with(&[22, 3, 3]), "at most a challenge, or messages of TLS");
    }
}

#[test]
fn another_group_with_the_same_token_does_not_mix_in() {
    // Four groups come up at once, with the same token and the same size.
    let groups: Vec<_> = (0..4)
        .map(|_| {
            let mut options: Vec<Options> = Rendezvous::new().options(3);
            options.iter_mut().for_each(|o| o.token = Some("cup".to_owned()));
            std::thread::spawn(move || connect_all(options).into_iter().for_each(|r| drop(r.unwrap())))
        })
        .collect();
    groups.into_iter().for_each(|g| g.join().unwrap());
}

#[test]
fn a_second_process_of_a_rank_ends_a_bring_up_but_not_a_running_group() {
    duplicate_rank(Rendezvous::options);
    duplicate_rank(Rendezvous::encrypted);
}

fn duplicate_rank(options: fn(&mut Rendezvous, u32) -> Vec<Options>) {
    let of_three = |group_address: &mut Rendezvous| {
        let mut all = options(group_address, 3);
        all.iter_mut().for_each(|o| o.token = Some("cup".to_owned()));
        all
    };
    // The second process comes while the group waits for rank 2, which comes later and gets the error as well.
    let mut all = of_three(&mut Rendezvous::new());
    let (start, mut last, again) = (Instant::now(), all.pop().unwrap(), all[1].clone());
    last.timeout = SHORT;
    let early: Vec<_> = all.into_iter().chain([again]).map(|o| std::thread::spawn(|| connect(o))).collect();
    let results: Vec<_> = early.into_iter().map(|rank| rank.join().unwrap()).collect();
    for result in &results {
        let Err(Error::Refused { message }) = result else { panic!("{:?}", result.as_ref().err()) };
        assert!(message.contains("two processes came as rank 1"), "{message}");
    }
    assert!(connect(last).is_err());
    assert!(start.elapsed() < LONG / 3, "{:?}", start.elapsed());

    // After the group has started, no port accepts connections, neither the rendezvous nor those of the ranks.
    let mut group_address = Rendezvous::new();
    let all = of_three(&mut group_address);
    let mut again = all[1].clone();
    again.timeout = SHORT;
    let group: Vec<_> = connect_all(all).into_iter().map(|rank| rank.unwrap()).collect();
    let sig = CallSig::plain(CallKind::Barrier);
    on_each(group, |rank, node, group| {
        node.call(&group, sig, barrier).unwrap();
        // Meanwhile the other ranks are in the next call.
        if rank == 0 {
            let error = connect(again.clone()).err().expect("no group");
            assert!(matches!(&error, Error::Timeout { missing, .. } if missing == &[0]), "{error}");
        }
        node.call(&group, sig, barrier).unwrap();
    });
}
