//! Five schedules by which every rank gets what every rank has.
//!
//! | schedule | rounds | messages | source |
//! |---|---|---|---|
//! | direct | 1 | P - 1 a rank | |
//! | ring | P - 1 | to one neighbour | |
//! | recursive doubling | log2 P (+ 2) | doubling | Thakur et al. 2005, §4.1 |
//! | Bruck | ⌈log2 P⌉ | doubling | Bruck et al. 1997, §III |
//! | neighbour exchange | P/2 (+ 2 if P is odd) | of two, to both neighbours in turn | Chen et al. 2005, §3 |
//! | dissemination | ⌈log2 P⌉ | doubling | Hensgen et al. 1988 |
//!
//! A schedule is worked out as a list of rounds before anything is sent: which ranks' items go to whom. Any P.

/// How an allgather goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Schedule {
    /// Everyone to everyone.
    #[default]
    Direct,
    /// Each item once around.
    Ring,
    /// With rank XOR 2^i, all that is held.
    RecursiveDoubling,
    /// To rank - 2^i, as much as it lacks.
    Bruck,
    /// With the left and the right neighbour in turn.
    NeighbourExchange,
    /// To rank + 2^i, as much as it lacks.
    Dissemination,
}

impl Schedule {
    /// All of them.
    pub const ALL: [Schedule; 6] = [
        Schedule::Direct,
        Schedule::Ring,
        Schedule::RecursiveDoubling,
        Schedule::Bruck,
        Schedule::NeighbourExchange,
        Schedule::Dissemination,
    ];

    /// The name that users write.
    pub fn name(self) -> &'static str {
        match self {
            Schedule::Direct => "direct",
            Schedule::Ring => "ring",
            Schedule::RecursiveDoubling => "recursive_doubling",
            Schedule::Bruck => "bruck",
            Schedule::NeighbourExchange => "neighbour_exchange",
            Schedule::Dissemination => "dissemination",
        }
    }
}

/// Items of these ranks, to or from a rank.
pub type Parcel = (u32, Vec<u32>);

/// What one rank sends and gets in one round; all of it at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// To whom, which ranks' items.
    pub sends: Vec<Parcel>,
    /// From whom, which ranks' items.
    pub receives: Vec<Parcel>,
}

/// The rounds of rank `me` of `size`.
pub fn rounds(schedule: Schedule, me: u32, size: u32) -> Vec<Round> {
    match schedule {
        _ if size == 1 => Vec::new(),
        Schedule::Direct => {
            let peers = || (1..size).map(|step| (me + step) % size);
            let sends = peers().map(|peer| (peer, vec![me])).collect();
            vec![Round { sends, receives: peers().map(|peer| (peer, vec![peer])).collect() }]
        }
        Schedule::Ring => (0..size - 1)
            .map(|step| {
                one((me + 1) % size, vec![(me + size - step) % size], (me + size - 1) % size, |_| {
                    vec![(me + 2 * size - 1 - step) % size]
                })
            })
            .collect(),
        Schedule::Bruck => doubling(me, size, false),
        Schedule::Dissemination => doubling(me, size, true),
        Schedule::RecursiveDoubling => {
            let core = 1 << size.ilog2();
            with_extras(me, size, core, |me| {
                let mut all = Vec::new();
                let mut step = 1;
                while step < core {
                    // Who is in the group of 2^i ranks around a core rank.
                    let group =
                        |rank: u32| (rank / step * step..rank / step * step + step).collect::<Vec<_>>();
                    all.push(one(me ^ step, group(me), me ^ step, group));
                    step *= 2;
                }
                all
            })
        }
        Schedule::NeighbourExchange => {
            let core = size - size % 2;
            with_extras(me, size, core, |me| neighbour_exchange(me, core))
        }
    }
}

/// A round with one message each way.
fn one(to: u32, items: Vec<u32>, from: u32, theirs: impl Fn(u32) -> Vec<u32>) -> Round {
    Round { sends: vec![(to, items)], receives: vec![(from, theirs(from))] }
}

/// Bruck's rounds, or their mirror image.
fn doubling(me: u32, size: u32, forward: bool) -> Vec<Round> {
    let ahead =
        |rank: u32, steps: u32| if forward { (rank + size - steps) % size } else { (rank + steps) % size };
    let back = |rank: u32, steps: u32| ahead(rank, size - steps);
    let (mut all, mut held) = (Vec::new(), 1);
    while held < size {
        let moving = held.min(size - held);
        // A rank holds the items of itself and of those ahead of it.
        let items = |rank: u32| (0..moving).map(|k| ahead(rank, k)).collect::<Vec<_>>();
        all.push(one(back(me, held), items(me), ahead(me, held), items));
        held += moving;
    }
    all
}

/// Chen et al.: rank pairs swap their own, then each passes on what the other side has not seen.
fn neighbour_exchange(me: u32, size: u32) -> Vec<Round> {
    // What a rank gets in a round, and from whom: simulated, since it is what its neighbour got before.
    let partner = |rank: u32, round: u32| {
        let right = rank.is_multiple_of(2) == round.is_multiple_of(2);
        if right { (rank + 1) % size } else { (rank + size - 1) % size }
    };
    let pair = |rank: u32| vec![rank / 2 * 2, rank / 2 * 2 + 1];
    let mut last: Vec<Vec<u32>> = (0..size).map(|rank| vec![rank]).collect();
    let mut all = Vec::new();
    for round in 0..size / 2 {
        // From the second round on a rank passes the pair that it got last; in the second, its own.
        let sent: Vec<Vec<u32>> =
            (0..size).map(|rank| if round == 1 { pair(rank) } else { last[rank as usize].clone() }).collect();
        let from = partner(me, round);
        all.push(one(from, sent[me as usize].clone(), from, |rank| sent[rank as usize].clone()));
        last = (0..size).map(|rank| sent[partner(rank, round) as usize].clone()).collect();
    }
    all
}

/// Ranks from `core` on hand their items to rank - core first, which counts them with its own, and get all others
/// last.
fn with_extras(me: u32, size: u32, core: u32, inner: impl Fn(u32) -> Vec<Round>) -> Vec<Round> {
    let extra = |rank: u32| Some(rank + core).filter(|e| *e < size);
    let rest = |rank: u32| (0..size).filter(|r| *r != rank).collect::<Vec<_>>();
    // Every rank has as many rounds, so that round numbers agree.
    let spread =
        |items: &[u32]| items.iter().flat_map(|r| [Some(*r), extra(*r)]).flatten().collect::<Vec<_>>();
    let (mut first, mut last) = (Round::default(), Round::default());
    let middle: Vec<Round> = if me >= core {
        first.sends.push((me - core, vec![me]));
        last.receives.push((me - core, rest(me)));
        inner(0).iter().map(|_| Round::default()).collect()
    } else {
        if let Some(extra) = extra(me) {
            first.receives.push((extra, vec![extra]));
            last.sends.push((extra, rest(extra)));
        }
        let widen =
            |parcels: Vec<Parcel>| parcels.into_iter().map(|(rank, items)| (rank, spread(&items))).collect();
        inner(me).into_iter().map(|r| Round { sends: widen(r.sends), receives: widen(r.receives) }).collect()
    };
    if size == core {
        return middle;
    }
    [vec![first], middle, vec![last]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn everyone_gets_everything_once() {
        for schedule in Schedule::ALL {
            for size in 1..=40u32 {
                let plans: Vec<Vec<Round>> = (0..size).map(|me| rounds(schedule, me, size)).collect();
                let mut held: Vec<BTreeSet<u32>> = (0..size).map(|me| [me].into()).collect();
                for k in 0..plans[0].len() {
                    let before = held.clone();
                    for (me, plan) in plans.iter().enumerate() {
                        assert_eq!(plan.len(), plans[0].len(), "{schedule:?} {size}");
                        for (to, items) in &plan[k].sends {
                            assert!(
                                items.iter().all(|i| before[me].contains(i)),
                                "{schedule:?} {size}: {me} lacks"
                            );
                            let due = &plans[*to as usize][k].receives;
                            assert!(
                                due.contains(&(me as u32, items.clone())),
                                "{schedule:?} {size} round {k}"
                            );
                        }
                        for (from, items) in &plan[k].receives {
                            let sent = &plans[*from as usize][k].sends;
                            assert!(
                                sent.contains(&(me as u32, items.clone())),
                                "{schedule:?} {size} round {k}"
                            );
                            for item in items {
                                assert!(
                                    held[me].insert(*item),
                                    "{schedule:?} {size}: {me} gets {item} twice"
                                );
                            }
                        }
                    }
                }
                assert!(held.iter().all(|h| h.len() == size as usize), "{schedule:?} {size}: {held:?}");
            }
        }
    }

    #[test]
    fn as_many_rounds_as_the_sources_say() {
        let count = |schedule, size| rounds(schedule, 0, size).len();
        assert_eq!(count(Schedule::Ring, 13), 12);
        assert_eq!(count(Schedule::Bruck, 13), 4);
        assert_eq!(count(Schedule::Dissemination, 8), 3);
        assert_eq!(count(Schedule::RecursiveDoubling, 8), 3);
        assert_eq!(count(Schedule::RecursiveDoubling, 13), 5);
        assert_eq!(count(Schedule::NeighbourExchange, 8), 4);
        assert_eq!(count(Schedule::NeighbourExchange, 13), 8);
    }
}
