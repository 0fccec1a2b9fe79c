//! Point-to-point messages: matching, order, and failures of ranks.

use crate::common::{MakeGroup, local, on_all, settings, shared_memory, tcp, tls};
use proptest::prelude::*;
use skyphos::{Comm, Error, ReceiveInto, ReceivedMessage, Status};

const TRANSPORTS: [(&str, MakeGroup); 4] =
    [("local", local), ("tcp", tcp), ("shared memory", shared_memory), ("tls", tls)];

/// Runs a body on all ranks of a group, on each transport.
fn everywhere(size: u32, body: impl Fn(&Comm) + Sync) {
    for (name, make) in TRANSPORTS {
        println!("over {name}");
        on_all(make(size), &body);
    }
}

type Received = ReceivedMessage<Vec<u8>>;

fn send(comm: &Comm, dest: u32, tag: u32, bytes: &[u8]) -> Result<(), Error> {
    comm.send(dest, tag, vec![bytes.to_vec()])?.run()
}

fn receive(comm: &Comm, source: Option<u32>, tag: Option<u32>) -> Result<Received, Error> {
    comm.receive(source, tag, None)?.run()
}

#[test]
fn parts_arrive_as_they_were_sent() {
    let sizes: [&[usize]; 6] = [&[], &[0], &[1], &[3, 0, 5], &[20, 300_000], &[10, 20_000_000, 7]];
    let part = |k: usize, len: usize| (0..len).map(|b| (b * 7 + k) as u8).collect::<Vec<u8>>();
    let parts_of = |lens: &[usize]| lens.iter().enumerate().map(|(k, len)| part(k, *len)).collect::<Vec<_>>();
    everywhere(2, |comm| {
        for (tag, lens) in sizes.iter().enumerate() {
            let parts = parts_of(lens);
            if comm.rank() == 0 {
                comm.send(1, tag as u32, parts).unwrap().run().unwrap();
                continue;
            }
            let got = receive(comm, Some(0), Some(tag as u32)).unwrap();
            let bytes = 8 * (1 + lens.len() as u64) + lens.iter().sum::<usize>() as u64;
            assert_eq!(got.status, Status { source: 0, tag: tag as u32, bytes });
            assert!(got.parts == parts && got.memory.is_none(), "{lens:?}");
        }
    });
}

#[test]
fn a_message_is_received_into_given_memory_if_its_first_part_matches() {
    everywhere(2, |comm| {
        let into = |first: &[u8], len: usize| ReceiveInto { first: first.to_vec(), memory: vec![0; len] };
        if comm.rank() == 0 {
            for _ in 0..4 {
                comm.send(1, 0, vec![b"array".to_vec(), vec![7; 1000]]).unwrap().run().unwrap();
            }
            return;
        }
        let get = |into| comm.receive(Some(0), None, into).unwrap().run().unwrap();
        let got = get(Some(into(b"array", 1000)));
        assert_eq!((got.parts, got.memory), (vec![b"array".to_vec()], Some(vec![7; 1000])));
        for other in [None, Some(into(b"vector", 1000)), Some(into(b"array", 999))] {
            let got = get(other);
            assert_eq!((got.parts, got.memory), (vec![b"array".to_vec(), vec![7; 1000]], None));
        }
    });
}

#[test]
fn a_rank_may_send_to_itself() {
    let comm = Comm::local(1, &settings()).unwrap().into_vec().remove(0);
    send(&comm, 0, 3, b"mine").unwrap();
    assert_eq!(comm.probe_now(None, None).unwrap().unwrap().tag, 3);
    assert_eq!(receive(&comm, Some(0), None).unwrap().parts, [b"mine"]);
    // A message larger than the window, in both directions at once.
    let big = vec![9; 20 << 20];
    let sending = comm.send(0, 0, vec![big.clone()]).unwrap().start();
    assert!(receive(&comm, None, None).unwrap().parts == [big]);
    sending.wait().unwrap();
    let error = comm.fail_send(0, 5, Error::bad_input("no such thing")).to_string();
    assert_eq!(error, "no such thing");
    let got = receive(&comm, Some(0), Some(5)).map(|_| ()).unwrap_err().to_string();
    assert_eq!(got, "rank 0: no such thing");
}

#[test]
fn probes_do_not_receive() {
    everywhere(2, |comm| {
        if comm.rank() == 1 {
            let status = comm.probe(None, Some(8)).unwrap().run().unwrap();
            assert_eq!((status.source, status.tag, status.bytes), (0, 8, 8 + 8 + 3));
            assert_eq!(comm.probe_now(Some(0), None).unwrap().unwrap().tag, 7, "the first one");
            assert_eq!(comm.probe_now(Some(1), None).unwrap(), None);
            assert_eq!(receive(comm, Some(0), Some(8)).unwrap().parts, [b"two"]);
            assert_eq!(
                comm.probe_now(None, Some(8)).unwrap(),
                None,
                "no such message, even after rank 0 has left"
            );
            assert_eq!(receive(comm, None, None).unwrap().parts, [b"one"]);
            return;
        }
        send(comm, 1, 7, b"one").unwrap();
        send(comm, 1, 8, b"two").unwrap();
    });
}

#[test]
fn bad_arguments_are_refused_without_a_message() {
    let comm = Comm::local(1, &settings()).unwrap().into_vec().remove(0);
    let texts = [
        send(&comm, 1, 0, b"").unwrap_err().to_string(),
        receive(&comm, Some(4), None).map(|_| ()).unwrap_err().to_string(),
        comm.probe_now(Some(1), None).unwrap_err().to_string(),
    ];
    assert_eq!(
        texts,
        [
            "dest=1: a group of 1 has ranks 0 to 0",
            "source=4: a group of 1 has ranks 0 to 0",
            "source=1: a group of 1 has ranks 0 to 0"
        ]
    );
}

#[test]
fn time_outs_of_unmatched_messages_name_the_missing_ranks() {
    let settings = skyphos::Settings { timeout: std::time::Duration::from_millis(300), ..settings() };
    let all_gave_up = std::sync::Barrier::new(3);
    let texts = Comm::local(3, &settings).unwrap().map_ranks(|comm| {
        let error = match comm.rank() {
            0 => receive(&comm, Some(1), Some(4)).map(|_| ()).unwrap_err(),
            1 => comm.send(2, 9, vec![vec![0; 30 << 20]]).unwrap().run().unwrap_err(),
            _ => receive(&comm, None, Some(5)).map(|_| ()).unwrap_err(),
        };
        all_gave_up.wait(); // a rank that leaves earlier is reported as lost
        error.to_string()
    });
    let wants = [
        "in recv(source=1, tag=4): rank 1 has sent no such message",
        "in send(dest=2, tag=9): rank 2 has not received it",
        "in recv(source=any, tag=5): ranks 0, 1 have sent no such message",
    ];
    for (text, want) in texts.iter().zip(wants) {
        assert!(text.ends_with(want), "{text} / {want}");
    }
}

#[test]
fn a_timed_out_receive_leaves_its_message_to_the_next() {
    let settings = skyphos::Settings { timeout: std::time::Duration::from_millis(1000), ..settings() };
    Comm::local(2, &settings).unwrap().map_ranks(|comm| {
        if comm.rank() == 0 {
            let error = receive(&comm, Some(1), None).map(|_| ()).unwrap_err();
            assert!(matches!(error, Error::Timeout { .. }), "{error}");
            send(&comm, 1, 0, b"go").unwrap();
            assert_eq!(receive(&comm, Some(1), None).unwrap().parts, [b"late"]);
            return comm.barrier().run().unwrap(); // a failed receive affects no other rank
        }
        while comm.probe_now(Some(0), None).unwrap().is_none() {
            std::thread::yield_now();
        }
        receive(&comm, Some(0), None).unwrap();
        send(&comm, 0, 0, b"late").unwrap();
        comm.barrier().run().unwrap();
    });
}

#[test]
fn a_rank_that_closes_is_lost_after_its_messages_are_received() {
    everywhere(3, |comm| match comm.rank() {
        0 => send(comm, 1, 1, b"last").unwrap(),
        1 => {
            // A receive from any rank fails only when all other ranks have left.
            assert_eq!(receive(comm, Some(0), None).unwrap().parts, [b"last"]);
            let error = receive(comm, Some(0), None).map(|_| ()).unwrap_err();
            assert!(matches!(&error, Error::PeerLost { rank: 0, .. }), "{error}");
            assert!(error.to_string().contains("this rank was in recv(source=0, tag=any)"), "{error}");
            let error = send(comm, 0, 0, b"").unwrap_err();
            assert!(matches!(&error, Error::PeerLost { rank: 0, .. }), "{error}");
            send(comm, 2, 0, b"still here").unwrap();
            assert_eq!(receive(comm, None, None).unwrap().parts, [b"answer"]);
            let error = receive(comm, None, None).map(|_| ()).unwrap_err();
            assert!(matches!(&error, Error::PeerLost { .. }), "{error}");
        }
        _ => {
            assert_eq!(receive(comm, Some(1), None).unwrap().parts, [b"still here"]);
            send(comm, 1, 0, b"answer").unwrap();
        }
    });
}

#[test]
fn messages_and_collectives_do_not_interfere() {
    everywhere(3, |comm| {
        let (me, size) = (comm.rank(), comm.size());
        let sub = comm.split(Some(0), -i64::from(me)).unwrap().unwrap();
        for step in 0..20u32 {
            let next = (me + 1) % size;
            let receiving = comm.receive::<Vec<u8>>(Some((me + 2) % size), Some(step), None).unwrap().start();
            send(comm, next, step, &[me as u8; 5]).unwrap();
            send(&sub, sub.rank(), step, b"sub").unwrap();
            comm.barrier().run().unwrap();
            assert_eq!(receiving.wait().unwrap().parts, [vec![((me + 2) % size) as u8; 5]]);
            assert_eq!(receive(&sub, None, None).unwrap().parts, [b"sub"]);
        }
    });
}

/// A receive of rank 0.
#[derive(Clone, Debug)]
struct Receive {
    source: Option<u32>,
    tag: Option<u32>,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// Each receive gets the first matching message of each sender, whichever receives were posted before.
    #[test]
    fn receives_get_the_first_matching_message(
        sent in proptest::collection::vec((1u32..4, 0u32..3, 0usize..4), 1..40),
        order in proptest::collection::vec(any::<proptest::sample::Index>(), 40),
        wildcards in proptest::collection::vec((any::<bool>(), any::<bool>()), 40),
        any_sources in any::<bool>(),
        early in any::<bool>(),
        transport in 0..TRANSPORTS.len(),
    ) {
        let lens = [0usize, 10, 3000, 300_000];
        // Each message has one receive that matches it; a receive with a wildcard may get another message instead.
        let mut unmatched: Vec<usize> = (0..sent.len()).collect();
        let mut receives = Vec::new();
        for (pick, (any_source, any_tag)) in order.iter().zip(&wildcards).take(sent.len()) {
            let (source, tag, _) = sent[unmatched.swap_remove(pick.index(unmatched.len()))];
            receives.push(Receive { source: (!any_source).then_some(source), tag: (!any_tag).then_some(tag) });
        }
        // Receives without wildcards come first and those with two last, so that none gets a message that a later one needs.
        // Of those with one wildcard, a case has only one kind: of any source, or of any tag.
        let kind = |receive: &Receive| (receive.source.is_none(), receive.tag.is_none());
        receives.sort_by_key(|receive| match kind(receive) { (false, false) => 0, (true, true) => 2, _ => 1 });
        receives.retain(|receive| kind(receive) != (!any_sources, any_sources));
        let results = on_all(TRANSPORTS[transport].1(4), |comm| {
            if comm.rank() > 0 {
                for (k, (_, tag, len)) in sent.iter().enumerate().filter(|(_, s)| s.0 == comm.rank()) {
                    let mut bytes = vec![k as u8; lens[*len]];
                    bytes.push(k as u8);
                    send(comm, 0, *tag, &bytes).unwrap();
                }
                comm.barrier().run().unwrap();
                return Vec::new();
            }
            let get = |receive: &Receive| comm.receive::<Vec<u8>>(receive.source, receive.tag, None).unwrap();
            let got: Vec<Received> = match early {
                true => {
                    let works: Vec<_> = receives.iter().map(|receive| get(receive).start()).collect();
                    comm.barrier().run().unwrap();
                    works.into_iter().map(|work| work.wait().unwrap()).collect()
                }
                false => {
                    comm.barrier().run().unwrap();
                    receives.iter().map(|receive| get(receive).run().unwrap()).collect()
                }
            };
            got.into_iter().map(|got| (got.status, got.parts)).collect()
        });
        let mut unreceived: Vec<usize> = (0..sent.len()).collect();
        for (receive, (status, parts)) in receives.iter().zip(&results[0]) {
            let k = usize::from(*parts[0].last().unwrap());
            let (source, tag, len) = sent[k];
            prop_assert_eq!((status.source, status.tag), (source, tag));
            prop_assert_eq!(parts[0].len(), lens[len] + 1);
            prop_assert!(receive.source.is_none_or(|s| s == source) && receive.tag.is_none_or(|t| t == tag));
            let first = unreceived.iter().find(|j| {
                sent[**j].0 == source && receive.tag.is_none_or(|t| t == sent[**j].1)
            });
            prop_assert_eq!(first, Some(&k), "the first matching message of its sender");
            unreceived.retain(|j| *j != k);
        }
    }
}
