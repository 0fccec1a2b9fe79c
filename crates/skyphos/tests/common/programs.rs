//! One program per collective, on data that depends only on the rank. Results are bits, which all replicas must share.

use skyphos::{
    Algorithm, AllreduceOptions, ArrayMove, BlockLimits, BroadcastOptions, Comm, ConfigureOptions, Error,
    IndexList, MessageBuffer, NO_MEMBER, Result, Route, Schedule, SparseVec,
};

pub const N: u64 = 60_000;

/// A program: its name, and a function that returns its result as words.
pub type Program = (&'static str, fn(&Comm, usize) -> Result<Vec<u64>>);

/// A rank's vector of about `count` entries, some of them neighbours, some shared with other ranks.
pub fn vector(rank: u32, salt: u64, count: usize) -> SparseVec<f64> {
    let mut at = u64::from(rank) * 7 + salt;
    let mut indices = Vec::new();
    for k in 0..count as u64 {
        at += 1 + (k * 2_654_435_761 + u64::from(rank)) % (N / count.max(1) as u64).max(1);
        if at >= N {
            break;
        }
        indices.push(at as u32);
    }
    let values = indices.iter().map(|i| 0.1 + f64::from(i % 97) / f64::from(rank + 3)).collect();
    SparseVec::new(N, 1, IndexList::Narrow(indices), values).unwrap()
}

fn array(rank: u32, len: usize) -> Vec<f64> {
    (0..len).map(|k| 0.1 + (k % 89) as f64 / f64::from(rank + 3)).collect()
}

fn words(vectors: &[SparseVec<f64>]) -> Vec<u64> {
    let each = vectors.iter().map(|vector| {
        let (indices, values) = vector.entries();
        indices.into_iter().chain(values.into_iter().map(f64::to_bits)).collect::<Vec<_>>()
    });
    each.flat_map(|list| [vec![list.len() as u64], list].concat()).collect()
}

fn bits(values: &[f64]) -> Vec<u64> {
    values.iter().map(|v| v.to_bits()).collect()
}

fn allreduce(comm: &Comm, count: usize, algorithm: Algorithm, degrees: Option<Vec<u32>>) -> Result<Vec<u64>> {
    let options = AllreduceOptions { algorithm, degrees, ..AllreduceOptions::default() };
    let mine = vector(comm.rank(), 0, count);
    Ok(words(&[comm.allreduce(&mine).options(options.clone()).run()?.sum]))
}

fn dense(comm: &Comm, count: usize, algorithm: Algorithm) -> Result<Vec<u64>> {
    let options = AllreduceOptions { algorithm, ..AllreduceOptions::default() };
    let mut out = vec![0.0; count];
    comm.allreduce_dense(&array(comm.rank(), count), &mut out).options(options.clone()).run()?;
    Ok(bits(&out))
}

/// The indices that a rank contributes, those that it wants (the next rank contributes them), and its values.
fn sets(comm: &Comm, count: usize) -> (Vec<u64>, Vec<u64>, Vec<f64>) {
    let entries = |rank: u32| vector(rank % comm.size(), 0, count).entries();
    let (contribute, values) = entries(comm.rank());
    (contribute, entries(comm.rank() + 1).0.into_iter().rev().collect(), values)
}

fn to_each(comm: &Comm, count: usize) -> Vec<SparseVec<f64>> {
    (0..comm.size()).map(|to| vector(comm.rank(), u64::from(to), count)).collect()
}

fn moved(comm: &Comm, what: ArrayMove, len: usize, out: usize) -> Result<Vec<u64>> {
    let mut result = vec![0.0; out];
    comm.move_arrays(what, &array(comm.rank(), len), &mut result).run()?;
    Ok(bits(&result))
}

/// Prefix of the error on ranks that have received the message although a rank was lost.
pub const HAS_MESSAGE: &str = "the message has arrived, but: ";

/// The root of broadcasts.
pub fn root_of(size: u32) -> u32 {
    1 % size
}

/// Broadcasts. Compares the data before it reports a lost rank.
fn broadcast(comm: &Comm, count: usize, route: Option<Route>) -> Result<Vec<u64>> {
    let (root, message) = (root_of(comm.size()), array(7, 16 * count));
    let part: Vec<u8> = message.iter().flat_map(|v| v.to_le_bytes()).collect();
    let halves = part.split_at(part.len() / 2);
    let parts: [&[u8]; 3] = [halves.0, &[], halves.1];
    let own = (comm.rank() == root).then(|| parts.to_vec());
    let options = BroadcastOptions { route, ..BroadcastOptions::default() };
    let done = comm.broadcast(root, own.clone(), MessageBuffer::default()).options(options).run()?;
    let received: Vec<u8> = match own {
        Some(parts) => parts.concat(),
        None => done.buffer.into_parts().iter().flat_map(|part| part.as_ref()).copied().collect(),
    };
    let words = received.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
    match done.missed {
        Some(Error::PeerLost { rank, address, cause }) if words == bits(&message) => {
            Err(Error::PeerLost { rank, address, cause: format!("{HAS_MESSAGE}{cause}") })
        }
        _ => Ok(words),
    }
}

/// Exchanges blocks, some pushed and some fetched (two at a time), and takes them as they arrive.
fn exchange_blocks(comm: &Comm, count: usize) -> Result<Vec<u64>> {
    let len = |to: u32| count * 8 * ((comm.rank() + 2 * to) % 4) as usize;
    let block =
        |to| array(comm.rank() + to, count * 3).iter().flat_map(|v| v.to_le_bytes()).take(len(to)).collect();
    let blocks: Vec<Vec<u8>> = (0..comm.size()).map(block).collect();
    let mut exchange =
        comm.exchange_blocks(blocks, BlockLimits { push_bytes: count * 8, fetches: 2 })?.start();
    let mut words = Vec::new();
    while let Some((from, block)) = exchange.next_block()? {
        words.extend([u64::from(from), block.len() as u64]);
        words.extend(block.chunks(8).map(|word| u64::from_le_bytes(word.try_into().expect("whole words"))));
    }
    exchange.finish().map(|_| words)
}

/// Two messages to the next rank, received in reverse order, and one from each rank to the last.
fn messages(comm: &Comm, count: usize) -> Result<Vec<u64>> {
    let (me, size) = (comm.rank(), comm.size());
    let (next, previous, last) = ((me + 1) % size, (me + size - 1) % size, size - 1);
    let bytes = |tag: u32| bytemuck::cast_slice(&array(me + tag, 30 * count * tag as usize)).to_vec();
    let receives: Vec<_> = [2, 1]
        .into_iter()
        .map(|tag| Ok(comm.receive::<Vec<u8>>(Some(previous), Some(tag), None)?.start()))
        .collect::<Result<_>>()?;
    for tag in [1, 2] {
        comm.send::<Vec<u8>>(next, tag, vec![bytes(tag), vec![]])?.run()?;
    }
    comm.send(last, 3, vec![bytes(1)])?.run()?;
    let mut received = receives.into_iter().map(|work| work.wait()).collect::<Result<Vec<_>>>()?;
    for from in (0..size).filter(|_| me == last) {
        received.push(comm.receive(Some(from), None, None)?.run()?);
    }
    let words = received.iter().flat_map(|message| {
        let words =
            message.parts[0].chunks(8).map(|word| u64::from_le_bytes(word.try_into().expect("words")));
        [u64::from(message.status.source), u64::from(message.status.tag)].into_iter().chain(words)
    });
    Ok(words.collect())
}

/// All programs; `count` is the amount of data per rank.
pub const ALL: [Program; 31] = [
    ("barrier", |comm, _| comm.barrier().run().map(|()| vec![])),
    ("auto", |comm, count| allreduce(comm, count, Algorithm::Auto, None)),
    ("recursive_doubling", |comm, count| allreduce(comm, count, Algorithm::RecursiveDoubling, None)),
    ("split_allgather", |comm, count| allreduce(comm, count, Algorithm::SplitAllgather, None)),
    ("split_allgather_dense", |comm, count| allreduce(comm, count, Algorithm::SplitAllgatherDense, None)),
    ("butterfly", |comm, count| {
        let size = comm.size();
        let degrees = if size.is_multiple_of(2) && size > 2 { vec![2, size / 2] } else { vec![size] };
        allreduce(comm, count, Algorithm::Butterfly, Some(degrees))
    }),
    ("ring", |comm, count| allreduce(comm, count, Algorithm::Ring, None)),
    ("allgather and sum", |comm, count| allreduce(comm, count, Algorithm::Allgather, None)),
    ("dense", |comm, count| dense(comm, count, Algorithm::Dense)),
    ("dense_ring", |comm, count| dense(comm, count, Algorithm::DenseRing)),
    ("dense_rabenseifner", |comm, count| dense(comm, count, Algorithm::DenseRabenseifner)),
    ("dense auto", |comm, count| dense(comm, count, Algorithm::Auto)),
    ("plan", |comm, count| {
        let (contribute, want, values) = sets(comm, count);
        let mut plan = comm.configure(&contribute, &want).options(ConfigureOptions::with_n(N)).run()?;
        let mut all = Vec::new();
        for _ in 0..2 {
            let mut out = vec![0.0; want.len()];
            comm.reduce(&mut plan, &values, &mut out).run()?;
            all.extend(bits(&out));
        }
        Ok(all)
    }),
    ("configure_reduce", |comm, count| {
        let (contribute, want, values) = sets(comm, count);
        let mut out = vec![0.0; want.len()];
        let options = ConfigureOptions::with_n(N);
        comm.configure_reduce(&contribute, &want, &values, &mut out).options(options.clone()).run()?;
        Ok(bits(&out))
    }),
    ("reduce_scatter", |comm, count| {
        let mine = vector(comm.rank(), 0, count);
        let options = AllreduceOptions::default();
        let (part, range) =
            comm.reduce_scatter(&mine).options(options.clone()).run().map(|done| (done.part, done.owned))?;
        Ok([vec![range.start, range.end], words(&[part])].concat())
    }),
    ("reduce", |comm, count| {
        let mine = vector(comm.rank(), 0, count);
        let root = comm.size() - 1;
        let sum = comm.reduce_to_root(&mine, root).run()?;
        Ok(words(&sum.into_iter().collect::<Vec<_>>()))
    }),
    ("allgather", |comm, count| Ok(words(&comm.allgather(vector(comm.rank(), 0, count)).run()?.vectors))),
    ("gather", |comm, count| Ok(words(&comm.gather(vector(comm.rank(), 0, count), 0).run()?))),
    ("alltoall", |comm, count| Ok(words(&comm.alltoall(N, 1, to_each(comm, count)).run()?))),
    ("scatter", |comm, count| {
        let mine = if comm.rank() == 0 { to_each(comm, count) } else { vec![] };
        Ok(words(&[comm.scatter(N, 1, mine, 0).run()?]))
    }),
    ("allgather of arrays", |comm, count| {
        moved(comm, ArrayMove::Allgather(Schedule::Ring), count, count * comm.size() as usize)
    }),
    ("alltoall of arrays", |comm, count| {
        let each = count * comm.size() as usize;
        moved(comm, ArrayMove::Alltoall, each, each)
    }),
    ("topk_allreduce", |comm, count| {
        let mine = vector(comm.rank(), 0, count);
        let top = comm.topk_allreduce(&mine, (count / 4).max(1) as u64).run()?;
        Ok(words(&[top.sum]))
    }),
    ("split", |comm, count| {
        let half = comm.split(Some(u64::from(comm.rank() % 2)), 0)?.expect("a color");
        allreduce(&half, count, Algorithm::Auto, None).map_err(|error| in_first_group(comm, &half, error))
    }),
    ("broadcast", |comm, count| broadcast(comm, count, None)),
    ("broadcast chain", |comm, count| broadcast(comm, count, Some(Route::Chain))),
    ("broadcast binomial", |comm, count| broadcast(comm, count, Some(Route::Binomial))),
    ("broadcast scatter_allgather", |comm, count| broadcast(comm, count, Some(Route::ScatterAllgather))),
    ("exchange_blocks", exchange_blocks),
    ("messages", messages),
    (NON_BLOCKING, |comm, count| non_blocking(comm, count, 0)),
];

/// An error of a sub-group, with rank numbers of the whole group.
pub fn in_first_group(first: &Comm, part: &Comm, error: Error) -> Error {
    let outside = match &error {
        Error::PeerLost { address, .. } => (0..first.size()).find(|rank| first.address(*rank) == address),
        _ => None,
    };
    error.renumbered(|rank| match rank {
        NO_MEMBER => outside.expect("the address of a rank"),
        rank => part.world_rank(rank),
    })
}

/// The program of several non-blocking calls.
pub const NON_BLOCKING: &str = "non-blocking";

/// Three sums in flight at once, without the first `skip` of them.
fn non_blocking(comm: &Comm, count: usize, skip: u64) -> Result<Vec<u64>> {
    let calls: Vec<_> = (skip..3)
        .map(|k| {
            let mine = vector(comm.rank(), k, count);
            comm.allreduce(mine).prepare().map(|c| c.start())
        })
        .collect::<Result<_>>()?;
    let sums: Vec<SparseVec<f64>> =
        calls.into_iter().rev().map(|work| work.wait().map(|done| done.sum)).collect::<Result<_>>()?;
    Ok(words(&sums))
}

/// [`non_blocking`] on a rank whose first call fails before it begins. The rank makes the other calls.
pub fn non_blocking_after_failure(comm: &Comm, count: usize, error: Error) -> Result<Vec<u64>> {
    let error = comm.fail_call_and_go_on(error);
    non_blocking(comm, count, 1).and(Err(error))
}
