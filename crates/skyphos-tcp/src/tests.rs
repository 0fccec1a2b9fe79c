//! The transport over pairs of real sockets, without the bring-up: in most tests the test itself holds the other end.

#[path = "../tests/common/certificates.rs"]
mod certificates;

use crate::Tcp;
use crate::connections::Connections;
use crate::message::Location;
use crate::tls::{Tls, read};
use crate::wire::{DetachedWire, Wire};
use proptest::prelude::*;
use skyphos_core::frame::{Frame, FrameKind, HEADER_BYTES, Header};
use skyphos_core::slab::{CHUNK_BYTES, Payload, Pool};
use skyphos_core::transport::{Event, Loss, Transport};
use skyphos_types::{CallNumber, CommId, WorldRank};
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Limit on the time of what must happen.
const LONG: Duration = Duration::from_secs(20);

fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (one, listener.accept().unwrap().0)
}

/// A transport of two ranks from a connected socket.
fn tcp(rank: u32, stream: TcpStream) -> Tcp {
    stream.set_nonblocking(true).unwrap();
    over(rank, DetachedWire::plain(stream))
}

fn over(rank: u32, wire: DetachedWire) -> Tcp {
    let location =
        |k: u32| Location { machine: k, address: ([127, 0, 0, 1], 9).into(), host: format!("h{k}") };
    let mut wires = vec![Some(wire)];
    wires.insert(rank as usize, None);
    Tcp::new(
        rank,
        Connections { locations: vec![location(0), location(1)], wires, arena: None },
        Duration::from_secs(10),
    )
    .unwrap()
}

fn pair() -> (Tcp, Tcp) {
    let (one, other) = sockets();
    (tcp(0, one), tcp(1, other))
}

/// A pair over TLS.
fn encrypted(tls: &Tls, one: TcpStream, other: TcpStream) -> (Tcp, Tcp) {
    let [one, other] = encrypted_wires(tls, one, other).map(Wire::detach);
    (over(0, one), over(1, other))
}

fn encrypted_wires(tls: &Tls, one: TcpStream, other: TcpStream) -> [Wire; 2] {
    let end = |stream: TcpStream, incoming| {
        stream.set_nonblocking(true).unwrap();
        Wire::new(mio::net::TcpStream::from_std(stream), Some(tls), incoming).unwrap()
    };
    let mut ends = [end(one, true), end(other, false)];
    let start = Instant::now();
    while ends.iter().any(Wire::is_handshaking) {
        assert!(start.elapsed() < LONG);
        for end in &mut ends {
            end.flush().unwrap();
            assert_eq!(end.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
        }
    }
    ends
}

/// A plain pair and one over TLS.
fn pairs() -> [(Tcp, Tcp); 2] {
    let tls = Tls::load(&certificates::shared(), 0).unwrap();
    let (one, other) = sockets();
    [pair(), encrypted(&tls, one, other)]
}

fn frame(kind: FrameKind, call: CallNumber, bytes: &[u8]) -> Frame {
    let payload = if bytes.is_empty() { Payload::default() } else { Pool::default().copy_of(bytes) };
    Frame { header: Header::control(kind, CommId(7), call), payload }
}

/// The bytes of a frame as they cross the connection.
fn encoded(kind: FrameKind, call: CallNumber, bytes: &[u8]) -> Vec<u8> {
    let mut out = Header::control(kind, CommId(7), call).encode(bytes).to_vec();
    out.extend(bytes);
    out
}

/// Polls until the condition holds for the received events.
fn until(tcp: &mut Tcp, enough: impl Fn(&[Event]) -> bool) -> Vec<Event> {
    let (start, mut events) = (Instant::now(), Vec::new());
    while !enough(&events) {
        assert!(start.elapsed() < LONG, "nothing more after {} events", events.len());
        tcp.poll(Duration::from_millis(100), &mut events);
    }
    events
}

/// The cause with which the peer is reported down, and whether it left with a goodbye.
fn down(events: &[Event]) -> Option<(&str, bool)> {
    events.iter().find_map(|e| match e {
        Event::PeerDown { cause, loss, .. } => Some((cause.as_str(), *loss == Loss::Left)),
        _ => None,
    })
}

/// The call numbers of the received frames.
fn calls(events: &[Event]) -> Vec<u64> {
    let call = |e: &Event| match e {
        Event::Frame { frame, .. } => Some(frame.header.call.0),
        _ => None,
    };
    events.iter().filter_map(call).collect()
}

/// A sender may wait for room while the transport is corked. Only this event reports that its frames were written.
#[test]
fn uncorking_reports_the_peer_as_writable() {
    for (mut a, _b) in pairs() {
        a.cork(true);
        (0..3).for_each(|call| a.post(WorldRank(1), frame(FrameKind::Data, CallNumber(call), &[7; 1000])));
        assert!(a.backlog(WorldRank(1)) > 3000);
        a.cork(false);
        assert_eq!(a.backlog(WorldRank(1)), 0);
        let events = until(&mut a, |events| !events.is_empty());
        assert!(matches!(events[..], [Event::Writable { rank: WorldRank(1) }]));
    }
}

#[test]
fn frames_of_every_size_cross_unchanged_and_in_order() {
    for (mut a, mut b) in pairs() {
        let sizes = [0, 1, 63, 64, 65, 4032, 4096, 16 * 1024, 16 * 1024 + 1, CHUNK_BYTES - 1, CHUNK_BYTES];
        for (call, size) in sizes.iter().enumerate() {
            let bytes: Vec<u8> = (0..*size).map(|k| (k * 31 + call) as u8).collect();
            a.post(WorldRank(1), frame(FrameKind::Data, CallNumber(call as u64), &bytes));
        }
        let mut events = Vec::new();
        let start = Instant::now();
        while calls(&events).len() < sizes.len() && start.elapsed() < LONG {
            a.poll(Duration::ZERO, &mut Vec::new());
            b.poll(Duration::from_millis(1), &mut events);
        }
        assert_eq!(calls(&events), (0..sizes.len() as u64).collect::<Vec<_>>());
        for event in &events {
            let Event::Frame { from: WorldRank(0), frame } = event else { continue };
            let call = frame.header.call.0 as usize;
            let bytes = frame.payload.as_bytes();
            assert_eq!(bytes.len(), sizes[call]);
            assert!(bytes.iter().enumerate().all(|(k, b)| *b == (k * 31 + call) as u8));
        }
    }
}

#[test]
fn a_frame_that_comes_byte_by_byte_is_one_frame() {
    let (one, mut raw) = sockets();
    let mut a = tcp(0, one);
    let bytes =
        [encoded(FrameKind::Data, CallNumber(3), b"split"), encoded(FrameKind::Credit, CallNumber(4), b"")]
            .concat();
    let mut events = Vec::new();
    for byte in bytes {
        raw.write_all(&[byte]).unwrap();
        a.poll(Duration::from_millis(1), &mut events);
    }
    until(&mut a, |more| calls(&events).len() + calls(more).len() == 2);
}

#[test]
fn damage_closes_the_connection_with_its_cause() {
    let good = encoded(FrameKind::Data, CallNumber(1), &[5; 1000]);
    let mut cases: Vec<(Vec<u8>, &str)> = vec![(
        b"GET / HTTP/1.1\r\nHost: example.org\r\nAccept: text/html,text/plain\r\n\r\n".to_vec(),
        "not a Skyphos frame",
    )];
    let bits = [
        (2, 0x40, "version"),
        (3, 0x40, "kind"),
        (34, 0x02, "at most"),
        (35, 0x80, "lent, on a connection without lending"),
        (60, 0x40, "call kind"),
        (10, 0x40, "checksum"),
        (35, 0x40, "checksum"),
        (500, 0x40, "checksum"),
    ];
    for (at, bit, what) in bits {
        let mut bytes = good.clone();
        bytes[at] ^= bit;
        cases.push((bytes, what));
    }
    for (bytes, what) in cases {
        let (one, mut raw) = sockets();
        let mut a = tcp(0, one);
        raw.write_all(&good).unwrap();
        raw.write_all(&bytes).unwrap();
        let events = until(&mut a, |e| down(e).is_some());
        assert_eq!(calls(&events), [1], "the good frame before it still counts");
        let (cause, orderly) = down(&events).unwrap();
        assert!(cause.contains(what) && !orderly, "{cause}");
        raw.set_read_timeout(Some(LONG)).unwrap();
        let mut notice = Vec::new();
        raw.read_to_end(&mut notice).unwrap();
        assert_eq!(
            notice,
            Header::control(FrameKind::GivenUp, CommId(0), CallNumber(0)).encode(&[]),
            "the peer may live, so it gets a notice before the end"
        );
        let mut more = Vec::new();
        a.post(WorldRank(1), frame(FrameKind::Data, CallNumber(2), b"dropped"));
        a.poll(Duration::from_millis(5), &mut more);
        assert!(more.is_empty() && a.backlog(WorldRank(1)) == 0, "reported once");
    }
}

#[test]
fn a_peer_that_is_given_up_gets_the_notice_after_the_frame_that_had_begun() {
    for (mut a, mut b) in pairs() {
        // More than the kernel takes: a frame has begun, and others wait behind it.
        for call in 0..200 {
            a.post(WorldRank(1), frame(FrameKind::Data, CallNumber(call), &vec![3; CHUNK_BYTES]));
        }
        let mut events = Vec::new();
        a.peers_mut()[1].lose(1, "silent", Loss::Silent, &mut events);
        assert!(
            matches!(&events[..], [Event::PeerDown { loss: Loss::Silent, .. }])
                && a.backlog(WorldRank(1)) == 0
        );
        let (start, mut heard) = (Instant::now(), Vec::new());
        while down(&heard).is_none() {
            assert!(start.elapsed() < LONG);
            a.poll(Duration::from_millis(1), &mut events);
            b.poll(Duration::from_millis(1), &mut heard);
        }
        let loss = heard.iter().find_map(|e| match e {
            Event::PeerDown { loss, cause, .. } => Some((*loss, cause.clone())),
            _ => None,
        });
        let (loss, cause) = loss.unwrap();
        assert!(loss == Loss::Silent && cause.contains("given this rank up"), "{cause}");
        let whole = calls(&heard);
        assert!(!whole.is_empty() && whole.len() < 200 && whole.is_sorted());
        assert_eq!(events.len(), 1, "reported once");
    }
}

#[test]
fn the_end_of_a_connection_is_orderly_only_after_a_goodbye() {
    let bye = encoded(FrameKind::Bye, CallNumber(0), b"");
    let data = encoded(FrameKind::Data, CallNumber(1), &[1; 300]);
    let cases = [
        (bye.clone(), "closed its Comm", true, 0),
        ([data.clone(), bye].concat(), "closed its Comm", true, 1),
        (data.clone(), "without a goodbye", false, 1),
        (data[..HEADER_BYTES + 7].to_vec(), "middle of a frame", false, 0),
        (data[..9].to_vec(), "middle of a frame", false, 0),
        (Vec::new(), "without a goodbye", false, 0),
    ];
    for (bytes, cause, orderly, frames) in cases {
        for half_closed in [false, true] {
            let (one, mut raw) = sockets();
            let mut a = tcp(0, one);
            raw.write_all(&bytes).unwrap();
            if half_closed {
                raw.shutdown(Shutdown::Write).unwrap();
            }
            let raw = half_closed.then_some(raw);
            let events = until(&mut a, |e| down(e).is_some());
            let (text, was_orderly) = down(&events).unwrap();
            assert!(text.contains(cause) && was_orderly == orderly, "{text}");
            assert_eq!(calls(&events).len(), frames);
            drop(raw);
        }
    }
}

#[test]
fn frames_before_a_reset_are_delivered() {
    let (one, mut raw) = sockets();
    let mut a = tcp(0, one);
    raw.write_all(&encoded(FrameKind::Data, CallNumber(1), &[1; 5000])).unwrap();
    raw.write_all(&encoded(FrameKind::Bye, CallNumber(0), b"")).unwrap();
    // The peer has unread input, so closing its socket resets the connection.
    a.post(WorldRank(1), frame(FrameKind::Data, CallNumber(2), &[0; 100]));
    raw.peek(&mut [0]).unwrap();
    drop(raw);
    // Writing fails before anything is read.
    for call in 0..50 {
        a.post(WorldRank(1), frame(FrameKind::Data, CallNumber(call), &[0; 1000]));
    }
    let events = until(&mut a, |e| down(e).is_some());
    assert_eq!(calls(&events), [1]);
    assert_eq!(down(&events), Some(("it has closed its Comm", true)));
}

#[test]
fn control_frames_overtake_queued_data() {
    for (mut a, mut b) in pairs() {
        let chunk = vec![1; CHUNK_BYTES];
        let mut posted = 0;
        // More than both sockets' buffers hold, so that data is queued.
        while a.backlog(WorldRank(1)) < 4 * CHUNK_BYTES {
            a.post(WorldRank(1), frame(FrameKind::Data, CallNumber(posted), &chunk));
            posted += 1;
        }
        a.post(WorldRank(1), frame(FrameKind::Abort, CallNumber(1000), b"stop"));
        a.post(WorldRank(1), frame(FrameKind::Credit, CallNumber(1001), b""));
        let (start, mut events, mut relief) = (Instant::now(), Vec::new(), Vec::new());
        while calls(&events).len() < posted as usize + 2 && start.elapsed() < LONG {
            a.poll(Duration::ZERO, &mut relief);
            b.poll(Duration::from_millis(1), &mut events);
        }
        let calls = calls(&events);
        let place = calls.iter().position(|c| *c == 1000).expect("received");
        assert_eq!(calls[place + 1], 1001);
        assert!(place <= posted as usize - 3, "at {place} of {posted}");
        let data: Vec<u64> = calls.into_iter().filter(|c| *c < 1000).collect();
        assert_eq!(data, (0..posted).collect::<Vec<_>>());
        assert!(relief.iter().any(|e| matches!(e, Event::Writable { rank: WorldRank(1) })));
        assert_eq!(a.backlog(WorldRank(1)), 0);
    }
}

#[test]
fn closing_delivers_everything_even_with_input_unread() {
    for (mut a, mut b) in pairs() {
        let chunk = vec![3; CHUNK_BYTES];
        const FRAMES: u64 = 200;
        // Input that `a` never polls for.
        for call in 0..3 {
            b.post(WorldRank(0), frame(FrameKind::Data, CallNumber(call), &chunk));
        }
        for call in 0..FRAMES {
            a.post(WorldRank(1), frame(FrameKind::Data, CallNumber(call), &chunk));
        }
        let closing = std::thread::spawn(move || {
            a.close(LONG).unwrap();
            let mut after = Vec::new();
            a.post(WorldRank(1), frame(FrameKind::Data, CallNumber(0), b"late"));
            a.poll(Duration::from_millis(5), &mut after);
            assert!(after.is_empty());
        });
        let events = until(&mut b, |e| down(e).is_some());
        assert_eq!(calls(&events), (0..FRAMES).collect::<Vec<_>>());
        assert_eq!(down(&events), Some(("it has closed its Comm", true)));
        closing.join().unwrap();
    }
}

#[test]
fn closing_waits_at_most_its_limit_for_a_peer_that_does_not_read() {
    let (one, raw) = sockets();
    let mut a = tcp(0, one);
    let chunk = vec![3; CHUNK_BYTES];
    while a.backlog(WorldRank(1)) < 4 * CHUNK_BYTES {
        a.post(WorldRank(1), frame(FrameKind::Data, CallNumber(0), &chunk));
    }
    let start = Instant::now();
    a.close(Duration::from_millis(50)).unwrap();
    assert!(start.elapsed() < Duration::from_secs(2));
    drop(raw);
}

#[test]
fn closing_does_not_wait_for_a_peer_that_is_gone() {
    for goodbye in [false, true] {
        let (one, mut raw) = sockets();
        let mut a = tcp(0, one);
        if goodbye {
            raw.write_all(&encoded(FrameKind::Bye, CallNumber(0), b"")).unwrap();
        }
        drop(raw);
        // The peer's kernel answers our goodbye with a reset, before or after `close` checks.
        let start = Instant::now();
        a.close(LONG).unwrap();
        assert!(start.elapsed() < LONG / 4);
    }
}

#[test]
fn dropping_without_closing_is_not_orderly_and_both_may_close_at_once() {
    for (a, mut b) in pairs() {
        drop(a);
        let events = until(&mut b, |e| down(e).is_some());
        assert!(!down(&events).unwrap().1);
    }
    for (mut a, mut b) in pairs() {
        let other = std::thread::spawn(move || b.close(LONG));
        let start = Instant::now();
        a.close(LONG).unwrap();
        other.join().unwrap().unwrap();
        assert!(start.elapsed() < Duration::from_secs(5));
    }
}

#[test]
fn a_waker_ends_a_wait_and_a_zero_wait_does_not_wait() {
    let (mut a, _b) = pair();
    let waker = a.waker();
    let start = Instant::now();
    let other = std::thread::spawn(move || waker());
    let mut events = Vec::new();
    a.poll(LONG, &mut events);
    assert!(events.is_empty() && start.elapsed() < LONG / 2);
    other.join().unwrap();
    let start = Instant::now();
    for _ in 0..1000 {
        a.poll(Duration::ZERO, &mut events);
    }
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
}

#[test]
fn one_peer_does_not_keep_the_others_waiting() {
    let (one, mut raw) = sockets();
    let mut a = tcp(0, one);
    let writer = std::thread::spawn(move || {
        let chunk = encoded(FrameKind::Data, CallNumber(1), &vec![9; CHUNK_BYTES]);
        (0..200).for_each(|_| raw.write_all(&chunk).unwrap());
        raw
    });
    let mut total = 0;
    while total < 200 {
        let mut events = Vec::new();
        a.poll(Duration::from_millis(100), &mut events);
        assert!(events.len() <= 10, "{} frames of 128 KB in one poll", events.len());
        total += calls(&events).len();
    }
    writer.join().unwrap();
}

#[test]
fn a_forged_tls_record_ends_the_connection_on_both_sides() {
    let tls = Tls::load(&certificates::shared(), 0).unwrap();
    let (one, other) = sockets();
    let mut raw = one.try_clone().unwrap();
    let (mut a, mut b) = encrypted(&tls, one, other);
    a.post(WorldRank(1), frame(FrameKind::Data, CallNumber(1), b"good"));
    // A well-formed TLS record that was not encrypted with the key of the connection.
    raw.write_all(&[&[23, 3, 3, 0, 40][..], &[7; 40]].concat()).unwrap();
    let events = until(&mut b, |e| down(e).is_some());
    let (cause, orderly) = down(&events).unwrap();
    assert!(calls(&events) == [1] && cause.contains("TLS") && !orderly, "{cause}");
    let events = until(&mut a, |e| down(e).is_some());
    let (cause, orderly) = down(&events).unwrap();
    assert!(cause.contains("TLS") && !orderly, "{cause}");
}

/// Encrypted bytes that wait for the socket count as unsent; a `Writable` event reports when they were sent.
#[test]
fn bytes_that_wait_encrypted_are_backlog() {
    let tls = Tls::load(&certificates::shared(), 0).unwrap();
    let (one, other) = sockets();
    socket2::SockRef::from(&one).set_send_buffer_size(4096).unwrap();
    socket2::SockRef::from(&other).set_recv_buffer_size(4096).unwrap();
    let (mut a, mut b) = encrypted(&tls, one, other);
    a.post(WorldRank(1), frame(FrameKind::Data, CallNumber(1), &vec![5; CHUNK_BYTES]));
    assert!((1..CHUNK_BYTES + 2000).contains(&a.backlog(WorldRank(1))), "{}", a.backlog(WorldRank(1)));
    let (start, mut at_a, mut events, mut before) =
        (Instant::now(), Vec::new(), Vec::new(), a.backlog(WorldRank(1)));
    while calls(&events).is_empty() || a.backlog(WorldRank(1)) > 0 {
        assert!(start.elapsed() < LONG, "{} wait", a.backlog(WorldRank(1)));
        a.poll(Duration::from_millis(1), &mut at_a);
        assert!(a.backlog(WorldRank(1)) <= before);
        assert!(
            a.backlog(WorldRank(1)) == 0 || calls(&events).is_empty(),
            "all frames have arrived, so none waits"
        );
        before = a.backlog(WorldRank(1));
        b.poll(Duration::from_millis(1), &mut events);
    }
    assert!(matches!(at_a.last(), Some(Event::Writable { rank: WorldRank(1) })));
}

/// Frames may arrive in one piece with the last message of the bring-up, and then no event reports them.
#[test]
fn frames_that_came_with_the_bring_up_are_found_without_an_event() {
    let tls = Tls::load(&certificates::shared(), 0).unwrap();
    let (one, other) = sockets();
    let [mut one, mut other] = encrypted_wires(&tls, one, other);
    let bytes = [
        b"!".to_vec(),
        encoded(FrameKind::Data, CallNumber(1), &[7; 3000]),
        encoded(FrameKind::Data, CallNumber(2), b""),
    ]
    .concat();
    assert_eq!(one.write(&[IoSlice::new(&bytes)], bytes.len()).unwrap(), (bytes.len(), false));
    while other.read(&mut [0]).is_err() {
        std::thread::yield_now();
    }
    let (start, mut events, mut b) = (Instant::now(), Vec::new(), over(1, other.detach()));
    b.poll(LONG, &mut events);
    assert!(start.elapsed() < LONG / 2);
    assert_eq!(calls(&events), [1, 2]);
}

/// One key may encrypt 2^24 records (some 270 GB). Then it is changed in the middle of the stream.
#[test]
fn a_stream_outlives_its_keys() {
    let mut provider = rustls::crypto::ring::default_provider();
    let suite = provider.cipher_suites[0].tls13().unwrap();
    let common = rustls::crypto::CipherSuiteCommon { confidentiality_limit: 50, ..suite.common };
    let short_lived = Box::leak(Box::new(rustls::Tls13CipherSuite { common, ..*suite }));
    provider.cipher_suites = vec![rustls::SupportedCipherSuite::Tls13(short_lived)];
    let tls = read(&certificates::shared(), provider).unwrap();
    let (one, other) = sockets();
    let (mut a, mut b) = encrypted(&tls, one, other);
    let chunk = vec![1; CHUNK_BYTES];
    const FRAMES: u64 = 300;
    for call in 0..FRAMES {
        a.post(WorldRank(1), frame(FrameKind::Data, CallNumber(call), &chunk));
        b.post(WorldRank(0), frame(FrameKind::Data, CallNumber(call), &chunk));
    }
    let (start, mut at_a, mut at_b) = (Instant::now(), Vec::new(), Vec::new());
    while calls(&at_a).len() + calls(&at_b).len() < 2 * FRAMES as usize {
        assert!(start.elapsed() < LONG && down(&at_a).is_none() && down(&at_b).is_none());
        a.poll(Duration::from_millis(1), &mut at_a);
        b.poll(Duration::from_millis(1), &mut at_b);
    }
    assert_eq!((calls(&at_a), calls(&at_b)), ((0..FRAMES).collect(), (0..FRAMES).collect()));
    assert_eq!((a.backlog(WorldRank(1)), b.backlog(WorldRank(0))), (0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn arbitrary_bytes_never_panic(
        prefix in 0..3usize,
        noise in proptest::collection::vec(any::<u8>(), 1..600),
        flips in proptest::collection::vec((0..200usize, any::<u8>()), 0..3),
    ) {
        // Some good frames, a damaged one, noise.
        let mut bytes: Vec<u8> = (0..prefix).flat_map(|k| encoded(FrameKind::Data, CallNumber(k as u64), &[1; 50])).collect();
        let mut damaged = encoded(FrameKind::Data, CallNumber(9), &[2; 136]);
        for (at, mask) in flips {
            damaged[at % 200] ^= mask;
        }
        bytes.extend(damaged);
        bytes.extend(noise);
        let (one, mut raw) = sockets();
        let mut a = tcp(0, one);
        raw.write_all(&bytes).unwrap();
        drop(raw);
        let events = until(&mut a, |e| down(e).is_some());
        prop_assert!(calls(&events).len() >= prefix);
    }
    #[test]
    fn arbitrary_bytes_before_a_tls_handshake_end_the_connection(
        opens in any::<bool>(),
        keep in 0..400usize,
        flips in proptest::collection::vec((0..400usize, any::<u8>()), 0..3),
        noise in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let tls = Tls::load(&certificates::shared(), 0).unwrap();
        let mut bytes = Vec::new();
        if opens {
            tls.connection(false).unwrap().write_tls(&mut bytes).unwrap();
            bytes.truncate(keep);
        }
        bytes.extend(noise);
        for (at, mask) in flips {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= mask;
            }
        }
        let (one, mut raw) = sockets();
        one.set_nonblocking(true).unwrap();
        let mut wire = Wire::new(mio::net::TcpStream::from_std(one), Some(&tls), true).unwrap();
        raw.write_all(&bytes).unwrap();
        drop(raw);
        // The read ends with the end of the stream, or with the error of TLS.
        let start = Instant::now();
        loop {
            match wire.read(&mut [0; 10]) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => prop_assert!(start.elapsed() < LONG),
                Err(_) | Ok(0) => break,
                Ok(_) => prop_assert!(false, "no bytes before the handshake"),
            }
        }
        prop_assert!(wire.channel_binding(&[0; 32]).is_none());
    }
}
