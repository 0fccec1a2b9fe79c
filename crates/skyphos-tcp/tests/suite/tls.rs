//! Groups over TLS: traffic, and settings that do not fit.

use crate::common::certificates::{Authority, shared};
use crate::common::{LONG, Rendezvous, connect_all};
use proptest::prelude::*;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};
use skyphos_core::extensions::UnderReplicas;
use skyphos_core::frame::{Frame, FrameKind, Header};
use skyphos_core::slab::{CHUNK_BYTES, Pool};
use skyphos_core::transport::{Event, Loss, Transport};
use skyphos_tcp::{NAME, Options, Tcp, TlsFiles, connect};
use skyphos_types::{CallNumber, CommId, Error, Result, WorldRank};
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time-out of ranks that find no group.
const SHORT: Duration = Duration::from_millis(600);

/// The text of a refusal.
fn refusal(result: &Result<Tcp>) -> &str {
    match result {
        Err(Error::Refused { message }) => message,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("the group formed"),
    }
}

/// The missing ranks that a time-out names, and the call in its text.
fn missing(result: &Result<Tcp>) -> (&[u32], &str) {
    match result {
        Err(Error::Timeout { missing, call, .. }) => (missing, call),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("the group formed"),
    }
}

#[derive(Clone, Debug)]
struct Posted {
    from: u32,
    to: u32,
    len: usize,
    flush: bool,
}

fn posted(size: u32) -> impl Strategy<Value = Vec<Posted>> {
    let len = prop_oneof![0..300usize, 3_000..40_000usize, CHUNK_BYTES - 200..=CHUNK_BYTES];
    let one = (0..size, 1..size, len, any::<bool>()).prop_map(move |(from, step, len, flush)| Posted {
        from,
        to: (from + step) % size,
        len,
        flush,
    });
    proptest::collection::vec(one, 0..200)
}

fn byte(k: usize, at: usize) -> u8 {
    (k * 31 + at * 7 + at / 251) as u8
}

/// Sends this rank's frames, in its own order and in batches, and checks those of all others.
fn play(mut tcp: Tcp, all: &[Posted]) {
    let (me, pool, start) = (tcp.rank(), Pool::default(), Instant::now());
    let mut awaited: Vec<Vec<usize>> = vec![Vec::new(); tcp.size() as usize];
    for (k, posted) in all.iter().enumerate().filter(|(_, p)| p.to == me.0).rev() {
        awaited[posted.from as usize].push(k);
    }
    tcp.cork(true);
    for (k, posted) in all.iter().enumerate().filter(|(_, p)| p.from == me.0) {
        let mut slab = pool.take(posted.len);
        slab.as_bytes_mut().iter_mut().enumerate().for_each(|(at, b)| *b = byte(k, at));
        let header = Header { seq: k as u32, ..Header::control(FrameKind::Data, CommId(1), CallNumber(0)) };
        tcp.post(WorldRank(posted.to), Frame { header, payload: slab.freeze() });
        if posted.flush {
            tcp.cork(false);
            tcp.cork(true);
        }
    }
    tcp.cork(false);
    let mut events = Vec::new();
    while awaited.iter().any(|frames| !frames.is_empty())
        || (0..tcp.size()).any(|to| to != me.0 && tcp.backlog(WorldRank(to)) > 0)
    {
        assert!(start.elapsed() < LONG, "rank {me} still waits for {awaited:?}");
        tcp.poll(LONG, &mut events);
        for event in events.drain(..) {
            match event {
                Event::Frame { from, frame } => {
                    let k = awaited[from.index()].pop().expect("not one too many");
                    assert_eq!(frame.header.seq as usize, k, "order");
                    let bytes = frame.payload.as_bytes();
                    assert_eq!(bytes.len(), all[k].len);
                    assert!(bytes.iter().enumerate().all(|(at, b)| *b == byte(k, at)), "contents");
                }
                Event::Writable { .. } => {}
                Event::PeerDown { rank, cause, loss } => {
                    // A rank that has all its frames may leave first.
                    assert!(loss == Loss::Left && awaited[rank.index()].is_empty(), "rank {rank}: {cause}");
                }
            }
        }
    }
    tcp.close(LONG).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// Waits are long, so a missing event fails the test.
    #[test]
    fn any_frames_between_any_ranks_cross_unchanged(
        (size, frames) in (2..=5u32).prop_flat_map(|size| (Just(size), posted(size))),
        buffer in prop_oneof![Just(None), Just(Some(8 * 1024))],
        hold_back in any::<bool>(),
    ) {
        let mut options = Rendezvous::new().encrypted(size);
        options.iter_mut().for_each(|o| o.socket_buffer = buffer);
        let group = connect_all(options);
        std::thread::scope(|scope| {
            for tcp in group {
                let frames = &frames;
                let mut tcp = tcp.unwrap();
                if hold_back {
                    tcp.limit_ahead(CHUNK_BYTES);
                }
                scope.spawn(move || play(tcp, frames));
            }
        });
    }
}

#[test]
fn groups_of_every_size_come_up_whatever_the_order_of_arrival() {
    for size in 1..=6 {
        let mut options = Rendezvous::new().encrypted(size);
        options.rotate_left((size as usize * 3) % size as usize);
        options.iter_mut().for_each(|o| o.token = Some("cup".to_owned()));
        assert!(connect_all(options).iter().all(Result::is_ok));
    }
}

#[test]
fn each_rank_may_have_a_certificate_of_its_own() {
    let authority = Authority::new();
    let mut options = Rendezvous::new().options(3);
    options.iter_mut().for_each(|o| o.tls = Some(authority.files()));
    assert!(connect_all(options).iter().all(Result::is_ok));
}

#[test]
fn a_rank_with_tls_in_a_group_without_learns_the_cause_at_once() {
    let mut options = Rendezvous::new().options(3);
    options.iter_mut().for_each(|o| o.timeout = SHORT);
    options[1].tls = Some(shared());
    let results = connect_all(options);
    let text = refusal(&results[1]);
    assert!(
        text.contains("rank 1") && text.contains("without TLS") && text.contains("give all ranks"),
        "{text}"
    );
    for rank in [0, 2] {
        let (missing, call) = missing(&results[rank]);
        assert!(missing == [1] && call.contains("it speaks TLS, which the group does not use"), "{call}");
    }
}

/// The rank waits for an unencrypted challenge, so it learns the cause only when the time for its proof has passed.
#[test]
fn a_rank_without_tls_in_a_group_with_tls_learns_it_after_a_while() {
    let mut options = Rendezvous::new().encrypted(3);
    options.iter_mut().for_each(|o| o.timeout = Duration::from_secs(11));
    options[1].tls = None;
    options[1].timeout = LONG;
    let results = connect_all(options);
    let text = refusal(&results[1]);
    assert!(text.contains("rank 1 came without TLS") && text.contains("give all ranks"), "{text}");
    let (missing, call) = missing(&results[0]);
    assert!(missing == [1] && call.contains("turned away: 127.0.0.1:"), "{call}");
    let mut options = Rendezvous::new().encrypted(2);
    options[1].tls = None;
    options[1].timeout = SHORT;
    options[0].timeout = SHORT * 3; // rank 0 ends the connection when it gives up
    let text = connect_all(options)[1].as_ref().err().unwrap().to_string();
    assert!(text.contains("does rank 0 use TLS?"), "{text}");
}

#[test]
fn ranks_of_another_authority_learn_the_cause_at_once() {
    let other = Authority::named("another");
    let both = |own: TlsFiles| {
        let (one, two) =
            (fs::read(shared().authority).unwrap(), fs::read(other.folder.join("authority.pem")).unwrap());
        let authority = other.folder.join("both.pem");
        fs::write(&authority, [one, two].concat()).unwrap();
        TlsFiles { authority, ..own }
    };
    // The errors of a rank that does not trust the group, and of a rank that the group does not trust.
    for (files, why) in [
        (other.files(), "its certificate is not one of this group"),
        (both(other.files()), "does not accept this side's"),
    ] {
        let mut options = Rendezvous::new().encrypted(3);
        options.iter_mut().for_each(|o| o.timeout = SHORT);
        options[1].tls = Some(files);
        let results = connect_all(options);
        let text = refusal(&results[1]);
        assert!(text.contains("rank 1") && text.contains(why) && text.contains("one authority"), "{text}");
        for rank in [0, 2] {
            let (missing, call) = missing(&results[rank]);
            assert!(
                missing == [1] && call.contains("turned away: 127.0.0.1:") && call.contains("TLS"),
                "{call}"
            );
        }
    }
    // Ranks 0 and 2 trust both authorities, rank 1 only its own, so it refuses rank 2's certificate. All ranks learn of it.
    let mut options = Rendezvous::new().options(3);
    options[0].tls = Some(both(shared()));
    options[1].tls = Some(TlsFiles { authority: both(shared()).authority, ..shared() });
    options[2].tls = Some(both(other.files()));
    options[1].tls.as_mut().unwrap().authority = shared().authority;
    let start = Instant::now();
    for (rank, result) in connect_all(options).iter().enumerate() {
        let text = result.as_ref().err().unwrap().to_string();
        assert!(text.contains("rank 1's place") && text.contains("TLS"), "rank {rank}: {text}");
    }
    assert!(start.elapsed() < LONG / 3);
}

/// A relay between two ranks. It has a certificate, as any host of the cluster may, but not the token.
#[test]
fn a_relay_between_two_ranks_cannot_forward_their_proofs() {
    let mut rendezvous = Rendezvous::new();
    let between = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut options = rendezvous.encrypted(2);
    for options in &mut options {
        (options.token, options.timeout) = (Some("cup".to_owned()), SHORT * 3);
    }
    options[1].rendezvous = between.local_addr().unwrap().to_string();
    std::thread::scope(|scope| {
        let ranks = scope.spawn(|| connect_all(options));
        let (mut near, mut far) = (between.accept().unwrap().0, TcpStream::connect(&rendezvous.at).unwrap());
        let (server, client) = both_sides(&shared());
        let mut to_one = ServerConnection::new(server).unwrap();
        let mut to_zero = ClientConnection::new(client, NAME.try_into().unwrap()).unwrap();
        let (mut one, mut zero) =
            (rustls::Stream::new(&mut to_one, &mut near), rustls::Stream::new(&mut to_zero, &mut far));
        let challenge = message(&mut zero);
        one.write_all(&challenge).unwrap();
        let hello = message(&mut one);
        zero.write_all(&hello).unwrap();
        let answer = message(&mut zero);
        assert_eq!((challenge[4], hello[4], answer[4]), (1, 2, 8), "the answer is a refusal");
        one.write_all(&answer).unwrap();
        let results = ranks.join().unwrap();
        assert!(refusal(&results[1]).contains("its token is not the group's"));
        assert_eq!(missing(&results[0]).0, [1]);
    });
}

/// The TLS settings of a rank with these files, as a server and as a client.
fn both_sides(files: &TlsFiles) -> (Arc<ServerConfig>, Arc<ClientConfig>) {
    let certificate = |path| CertificateDer::from_pem_file(path).unwrap();
    let key = || PrivateKeyDer::from_pem_file(&files.key).unwrap();
    let chain = vec![certificate(&files.certificate)];
    let mut roots = RootCertStore::empty();
    roots.add(certificate(&files.authority)).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let server = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain.clone(), key())
        .unwrap();
    let client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key())
        .unwrap();
    (Arc::new(server), Arc::new(client))
}

/// One message of the bring-up, with its length.
fn message(source: &mut impl Read) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    source.read_exact(&mut bytes).unwrap();
    let len = u32::from_le_bytes(bytes[..].try_into().unwrap()) as usize;
    bytes.resize(4 + len, 0);
    source.read_exact(&mut bytes[4..]).unwrap();
    bytes
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let (group, other) = (Authority::new(), Authority::new());
    let good = group.files();
    let text = |files: TlsFiles| {
        let mut options = Options::new(2, 3, "127.0.0.1:29500");
        options.tls = Some(files);
        let error = connect(options).err().unwrap();
        assert!(matches!(error, Error::BadInput { .. }));
        error.to_string()
    };
    let empty = group.folder.join("empty");
    fs::write(&empty, "nothing\n").unwrap();
    let broken = group.folder.join("broken.pem");
    let pem = fs::read_to_string(&good.certificate).unwrap();
    fs::write(&broken, &pem[..pem.len() / 2]).unwrap();
    let junk = group.folder.join("junk.pem");
    fs::write(&junk, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
    let [endless, nameless] = ["endless.pem", "nameless.pem"].map(|name| group.folder.join(name));
    fs::write(&endless, format!("-----BEGIN {}-----\nAAAA\n", "x".repeat(10_000))).unwrap();
    fs::write(&nameless, format!("-----BEGIN {}\n", "x".repeat(10_000))).unwrap();
    let with = |authority: Option<&std::path::Path>,
                certificate: Option<&std::path::Path>,
                key: Option<&std::path::Path>| {
        TlsFiles {
            authority: authority.unwrap_or(&good.authority).to_owned(),
            certificate: certificate.unwrap_or(&good.certificate).to_owned(),
            key: key.unwrap_or(&good.key).to_owned(),
        }
    };
    let nowhere = group.folder.join("nowhere");
    for (files, words) in [
        (with(Some(&nowhere), None, None), ["nowhere", "No such file"]),
        (with(None, Some(&nowhere), None), ["nowhere", "No such file"]),
        (with(None, None, Some(&nowhere)), ["nowhere", "No such file"]),
        (with(Some(&empty), None, None), ["empty", "no certificate"]),
        (with(None, Some(&empty), None), ["empty", "no certificate"]),
        (with(None, Some(&broken), None), ["broken.pem", "not PEM"]),
        (with(None, Some(&endless), None), ["endless.pem", "not PEM: a section without its end"]),
        (with(None, None, Some(&nameless)), ["nameless.pem", "not PEM: a section without its name"]),
        (with(None, Some(&junk), None), ["junk.pem", "BadEncoding"]),
        (with(Some(&junk), None, None), ["junk.pem", "BadEncoding"]),
        (with(None, None, Some(&empty)), ["empty", "no private key"]),
        (with(None, None, Some(&good.certificate)), ["0.pem", "no private key"]),
        (with(None, None, Some(&group.files().key)), ["1.key", "does not fit the certificate"]),
        (with(Some(&other.files().authority), None, None), ["0.pem", "has not signed it"]),
        (group.files_for("example.org", 4000), ["2.pem", "skyphos"]),
        (group.files_for("skyphos", 2001), ["3.pem", "expired"]),
    ] {
        let text = text(files);
        assert!(
            text.contains("TLS of rank 2")
                && text.len() < 1000
                && words.iter().all(|word| text.contains(word)),
            "{words:?}: {text}"
        );
    }
    // A group of one rank makes no connection, and gets the error all the same.
    let mut options = Options::new(0, 1, "");
    options.tls = Some(with(Some(&nowhere), None, None));
    assert!(connect(options).is_err());
}
