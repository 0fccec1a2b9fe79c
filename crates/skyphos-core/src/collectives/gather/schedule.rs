//! Schedules of an allgather.
//!
//! | schedule | rounds | messages of a rank | source |
//! |---|---|---|---|
//! | direct | 1 | P - 1, of one item each | |
//! | ring | P - 1 | of one item, to one neighbour | |
//! | recursive doubling | ⌊log2 P⌋ (+ 2 if P is no power of two) | of 1, 2, 4, … items | Thakur et al. 2005, §4.1 |
//! | Bruck | ⌈log2 P⌉ | of 1, 2, 4, … items | Bruck et al. 1997, §III |
//! | neighbour exchange | P/2 (+ 2 if P is odd) | of two items, to both neighbours in turn | Chen et al. 2005, §3 |
//! | dissemination | ⌈log2 P⌉ | of 1, 2, 4, … items | Hensgen et al. 1988 |
//!
//! A schedule is computed as a list of rounds before anything is sent. Works for any P.

/// A schedule of an allgather.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Schedule {
    /// Each rank sends its item to all others.
    #[default]
    Direct,
    /// Each item travels once around the ring of ranks.
    Ring,
    /// In round i a rank exchanges all its items with rank XOR 2^i.
    RecursiveDoubling,
    /// In round i a rank sends to rank - 2^i the items that the receiver lacks.
    Bruck,
    /// A rank exchanges items with its left and its right neighbour in turn.
    NeighbourExchange,
    /// In round i a rank sends to rank + 2^i the items that the receiver lacks.
    Dissemination,
}

impl Schedule {
    /// All schedules.
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

/// The peer of a message, and the ranks whose items the message has.
pub type Parcel = (u32, Vec<u32>);

/// The messages of one rank in one round; all are under way at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScheduleRound {
    /// Messages that the rank sends.
    pub sends: Vec<Parcel>,
    /// Messages that the rank receives.
    pub receives: Vec<Parcel>,
}

/// The rounds of rank `me` of `size`.
pub fn rounds(schedule: Schedule, me: u32, size: u32) -> Vec<ScheduleRound> {
    match schedule {
        _ if size == 1 => Vec::new(),
        Schedule::Direct => {
            let peers = || (1..size).map(|step| (me + step) % size);
            let sends = peers().map(|peer| (peer, vec![me])).collect();
            vec![ScheduleRound { sends, receives: peers().map(|peer| (peer, vec![peer])).collect() }]
        }
        Schedule::Ring => (0..size - 1)
            .map(|step| {
                exchange_round(
                    (me + 1) % size,
                    vec![(me + size - step) % size],
                    (me + size - 1) % size,
                    |_| vec![(me + 2 * size - 1 - step) % size],
                )
            })
            .collect(),
        Schedule::Bruck => bruck_rounds(me, size, false),
        Schedule::Dissemination => bruck_rounds(me, size, true),
        Schedule::RecursiveDoubling => {
            let core = 1 << size.ilog2();
            with_extras(me, size, core, |me| {
                let mut all = Vec::new();
                let mut step = 1;
                while step < core {
                    // The aligned group of `step` ranks that includes `rank`.
                    let group =
                        |rank: u32| (rank / step * step..rank / step * step + step).collect::<Vec<_>>();
                    all.push(exchange_round(me ^ step, group(me), me ^ step, group));
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

/// A round in which a rank sends one message and receives one.
fn exchange_round(to: u32, items: Vec<u32>, from: u32, items_of: impl Fn(u32) -> Vec<u32>) -> ScheduleRound {
    ScheduleRound { sends: vec![(to, items)], receives: vec![(from, items_of(from))] }
}

/// Bruck's rounds, in which items travel to lower ranks; with `forward` those of dissemination, in which they travel to higher
/// ranks.
fn bruck_rounds(me: u32, size: u32, forward: bool) -> Vec<ScheduleRound> {
    let upstream =
        |rank: u32, steps: u32| if forward { (rank + size - steps) % size } else { (rank + steps) % size };
    let downstream = |rank: u32, steps: u32| upstream(rank, size - steps);
    let (mut all, mut count) = (Vec::new(), 1);
    while count < size {
        let moving = count.min(size - count);
        // A rank has `count` items: its own and those of the next ranks upstream.
        let items = |rank: u32| (0..moving).map(|k| upstream(rank, k)).collect::<Vec<_>>();
        all.push(exchange_round(downstream(me, count), items(me), upstream(me, count), items));
        count += moving;
    }
    all
}

/// Chen et al.: pairs of ranks exchange their items, then each rank forwards the pair of items that it received last.
fn neighbour_exchange(me: u32, size: u32) -> Vec<ScheduleRound> {
    // Computes the rounds of all ranks, since a rank receives the items that its neighbour received in the round before.
    let partner = |rank: u32, round: u32| {
        let right = rank.is_multiple_of(2) == round.is_multiple_of(2);
        if right { (rank + 1) % size } else { (rank + size - 1) % size }
    };
    let pair = |rank: u32| vec![rank / 2 * 2, rank / 2 * 2 + 1];
    let mut last: Vec<Vec<u32>> = (0..size).map(|rank| vec![rank]).collect();
    let mut all = Vec::new();
    for round in 0..size / 2 {
        // In the second round a rank sends the items of its own pair, later the pair that it received last.
        let sent: Vec<Vec<u32>> =
            (0..size).map(|rank| if round == 1 { pair(rank) } else { last[rank as usize].clone() }).collect();
        let from = partner(me, round);
        all.push(exchange_round(from, sent[me as usize].clone(), from, |rank| sent[rank as usize].clone()));
        last = (0..size).map(|rank| sent[partner(rank, round) as usize].clone()).collect();
    }
    all
}

/// Extends `inner`, a schedule of ranks 0 to `core` - 1, to `size` ranks. In an additional first round each extra rank sends its
/// item to rank - `core`, which then sends it along with its own; in an additional last round the extra rank gets all other items.
fn with_extras(
    me: u32,
    size: u32,
    core: u32,
    inner: impl Fn(u32) -> Vec<ScheduleRound>,
) -> Vec<ScheduleRound> {
    let extra = |rank: u32| Some(rank + core).filter(|e| *e < size);
    let rest = |rank: u32| (0..size).filter(|r| *r != rank).collect::<Vec<_>>();
    let with_extra =
        |items: &[u32]| items.iter().flat_map(|r| [Some(*r), extra(*r)]).flatten().collect::<Vec<_>>();
    let (mut first, mut last) = (ScheduleRound::default(), ScheduleRound::default());
    let middle: Vec<ScheduleRound> = if me >= core {
        first.sends.push((me - core, vec![me]));
        last.receives.push((me - core, rest(me)));
        // Empty rounds, so that round numbers agree on all ranks.
        inner(0).iter().map(|_| ScheduleRound::default()).collect()
    } else {
        if let Some(extra) = extra(me) {
            first.receives.push((extra, vec![extra]));
            last.sends.push((extra, rest(extra)));
        }
        let widen = |parcels: Vec<Parcel>| {
            parcels.into_iter().map(|(rank, items)| (rank, with_extra(&items))).collect()
        };
        inner(me)
            .into_iter()
            .map(|r| ScheduleRound { sends: widen(r.sends), receives: widen(r.receives) })
            .collect()
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
    fn every_rank_gets_every_item_once() {
        for schedule in Schedule::ALL {
            for size in 1..=40u32 {
                let plans: Vec<Vec<ScheduleRound>> = (0..size).map(|me| rounds(schedule, me, size)).collect();
                let mut items_of: Vec<BTreeSet<u32>> = (0..size).map(|me| [me].into()).collect();
                for k in 0..plans[0].len() {
                    let before = items_of.clone();
                    for (me, plan) in plans.iter().enumerate() {
                        assert_eq!(plan.len(), plans[0].len(), "{schedule:?} {size}");
                        for (to, items) in &plan[k].sends {
                            assert!(
                                items.iter().all(|i| before[me].contains(i)),
                                "{schedule:?} {size}: {me} sends an item that it lacks"
                            );
                            let expected = &plans[*to as usize][k].receives;
                            assert!(
                                expected.contains(&(me as u32, items.clone())),
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
                                    items_of[me].insert(*item),
                                    "{schedule:?} {size}: {me} gets {item} twice"
                                );
                            }
                        }
                    }
                }
                assert!(
                    items_of.iter().all(|h| h.len() == size as usize),
                    "{schedule:?} {size}: {items_of:?}"
                );
            }
        }
    }

    #[test]
    fn numbers_of_rounds_are_as_in_the_papers() {
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
