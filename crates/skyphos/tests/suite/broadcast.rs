//! Broadcast on every route and transport, with data and with lengths only.

use crate::common::{MakeGroup, local, on_all, shared_memory, tcp};
use proptest::prelude::*;
use skyphos::{
    BroadcastOptions, Comm, Error, HostCopy, MessageBuffer, ReceiveBuffer, ReceivedPart, Result, Route,
    Topology,
};

/// Ranks of `tcp` share no memory.
const TRANSPORTS: [(&str, MakeGroup); 3] = [("local", local), ("shared memory", shared_memory), ("tcp", tcp)];

/// A receive buffer that refuses messages of more than this number of bytes.
struct LimitedBuffer(usize);

impl ReceiveBuffer for LimitedBuffer {
    fn allocate(&mut self, lengths: &[usize]) -> Result<()> {
        match lengths.iter().sum::<usize>() > self.0 {
            true => Err(Error::bad_input("too large")),
            false => Ok(()),
        }
    }

    fn write(&mut self, _: usize, _: &[u8]) {}

    fn read(&self, _: usize, _: &mut [u8]) {}

    fn set_shared(&mut self, _: HostCopy, _: Vec<std::ops::Range<usize>>) {}
}

fn parts_of(buffer: MessageBuffer) -> Vec<Vec<u8>> {
    buffer.into_parts().iter().map(|part| part.as_ref().to_vec()).collect()
}

fn message(lengths: &[usize], salt: usize) -> Vec<Vec<u8>> {
    let byte = |k: usize| ((k * 31 + salt) % 251) as u8;
    lengths.iter().enumerate().map(|(part, len)| (0..*len).map(|k| byte(k + 7 * part)).collect()).collect()
}

/// Broadcasts a message. Returns the parts that this rank has at the end.
fn broadcast(comm: &Comm, root: u32, message: &[Vec<u8>], options: BroadcastOptions) -> Result<Vec<Vec<u8>>> {
    let parts = (comm.rank() == root).then(|| message.iter().collect());
    let done = comm.broadcast::<&Vec<u8>, _>(root, parts, MessageBuffer::default()).options(options).run()?;
    assert!(done.missed.is_none(), "{:?}", done.missed);
    Ok(if comm.rank() == root { message.to_vec() } else { parts_of(done.buffer) })
}

fn routes() -> impl Iterator<Item = Option<Route>> {
    [None].into_iter().chain(Route::ALL.map(Some))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn every_rank_gets_the_parts(
        size in 1u32..14,
        root in any::<prop::sample::Index>(),
        lengths in prop::collection::vec(prop_oneof![Just(0usize), 1usize..200, 20_000usize..300_000], 0..6),
        chunk_bytes in prop_oneof![Just(None), (1000usize..=128 * 1024).prop_map(Some)],
        salt in 0usize..1000,
        hosts in prop::collection::vec(0u32..5, 14),
    ) {
        let hosts = &hosts[..size as usize];
        let racks: Vec<u32> = hosts.iter().map(|host| host % 2).collect();
        let topology = Topology::new(hosts, &racks).unwrap();
        let (root, message) = (root.index(size as usize) as u32, message(&lengths, salt));
        for (name, make) in TRANSPORTS {
            let got = on_all(make(size), |comm| {
                let comm = &comm.with_topology(Some(&topology)).unwrap();
                routes().map(|route| broadcast(comm, root, &message, BroadcastOptions { route, chunk_bytes, ..BroadcastOptions::default() }).unwrap()).collect::<Vec<_>>()
            });
            for (rank, all) in got.iter().enumerate() {
                for (route, got) in routes().zip(all) {
                    prop_assert!(got == &message, "{} rank {} of {}, {:?}", name, rank, size, route);
                }
            }
        }
    }
}

/// Messages larger than the window, so that credits count, several of them in flight at once.
#[test]
fn concurrent_long_messages_arrive() {
    let first = message(&[20 << 20, 0, 5], 1);
    let second = message(&[9 << 20], 2);
    for (_, make) in TRANSPORTS {
        for route in routes() {
            on_all(make(5), |comm| {
                let options = BroadcastOptions { route, ..BroadcastOptions::default() };
                let start = |root: u32, message: &Vec<Vec<u8>>| {
                    let parts = (comm.rank() == root).then(|| message.clone());
                    comm.broadcast(root, parts, MessageBuffer::default()).options(options).start().unwrap()
                };
                let works = [(0, start(0, &first)), (3, start(3, &second))];
                for ((root, work), want) in works.into_iter().zip([&first, &second]) {
                    let done = work.wait().unwrap();
                    assert_eq!(done.bytes, want.iter().map(Vec::len).sum::<usize>());
                    assert!(comm.rank() == root || &parts_of(done.buffer) == want);
                }
            });
        }
    }
}

/// The bytes that the busiest rank sends, as a multiple of the message's length.
#[test]
fn bytes_sent_depend_on_the_route() {
    let (size, message) = (8u32, message(&[4 << 20], 3));
    for (route, multiple) in
        [(Route::Chain, 1.0), (Route::ScatterAllgather, 2.0), (Route::Binomial, 3.0), (Route::Simple, 7.0)]
    {
        let sent = on_all(local(size), |comm| {
            let comm = comm.with_topology(Some(&Topology::flat(size))).unwrap();
            let parts = (comm.rank() == 2).then(|| message.iter().collect::<Vec<_>>());
            let options = BroadcastOptions { route: Some(route), ..BroadcastOptions::default() };
            let done = comm.broadcast(2, parts, MessageBuffer::default()).options(options).run().unwrap();
            assert_eq!(done.choice.route, route);
            done.traffic.sent_bytes as f64 / f64::from(4 << 20)
        });
        let largest = sent.iter().copied().fold(0.0, f64::max);
        assert!((largest / multiple - 1.0).abs() < 0.13, "{route:?}: {sent:?}");
    }
}

#[test]
fn errors_raise_on_all_ranks() {
    for (_, make) in TRANSPORTS {
        let large = message(&[100_000], 4);
        let errors = on_all(make(4), |comm| {
            let broadcast_byte = |root: u32, parts: Option<Vec<&[u8; 1]>>| {
                comm.broadcast(root, parts, MessageBuffer::default()).run().map(drop)
            };
            let all: Vec<String> = [
                // A rank that refuses the message.
                {
                    let parts = (comm.rank() == 0).then(|| large.iter().collect::<Vec<_>>());
                    let buffer = LimitedBuffer(if comm.rank() == 2 { 10 } else { usize::MAX });
                    comm.broadcast(0, parts, buffer).run().map(drop)
                },
                // A root that is not a rank; a root without data; two roots; a chunk length of 0.
                broadcast_byte(9, None),
                broadcast_byte(1, None),
                broadcast_byte(comm.rank() % 2, Some(vec![b"x"])),
                comm.broadcast::<&[u8], _>(0, None, MessageBuffer::default())
                    .options(BroadcastOptions { chunk_bytes: Some(0), ..BroadcastOptions::default() })
                    .run()
                    .map(drop),
            ]
            .into_iter()
            .map(|done| done.unwrap_err().to_string())
            .collect();
            assert_eq!(broadcast(comm, 3, &large, BroadcastOptions::default()).unwrap(), large);
            all
        });
        for all in errors {
            for (error, part) in
                all.iter().zip(["too large", "root=9", "rank 1 is the root", "root", "0 bytes"])
            {
                assert!(error.contains(part), "{error}");
            }
        }
    }
}

/// A rank's writes to its copy do not change other ranks' copies, even when the memory is used again.
#[test]
fn copies_on_one_host_are_independent() {
    let size = 4;
    on_all(shared_memory(size), |comm| {
        let mut copies = Vec::new();
        for call in 0..12usize {
            let root = call as u32 % size;
            let message = message(&[500_000, 3, 70_000], call);
            let parts = (comm.rank() == root).then(|| message.iter().collect::<Vec<_>>());
            let done = comm.broadcast(root, parts, MessageBuffer::default()).run().unwrap();
            assert!(done.traffic.sent_bytes < 2000, "no part goes from rank to rank");
            if comm.rank() != root {
                let parts = done.buffer.into_parts();
                for part in &parts {
                    let ReceivedPart::Shared(copy, range) = part else { panic!("the part is not shared") };
                    // SAFETY: this rank's own page, to which no other reference exists.
                    unsafe { *copy.as_mut_ptr(range.clone()) = 100 + comm.rank() as u8 };
                }
                copies.push((message, parts));
            }
            comm.barrier().run().unwrap();
            for (want, got) in &copies {
                for (want, got) in want.iter().zip(got) {
                    assert_eq!((got.as_ref()[0], &got.as_ref()[1..]), (100 + comm.rank() as u8, &want[1..]));
                }
            }
            // Some copies are dropped, so that their memory may be used again.
            if call % 3 == 2 {
                copies.remove(0);
            }
        }
    });
}
