//! The agreement of survivors in every order of events, explored by a model checker at small sizes: messages, deaths that lose some of
//! the bytes sent, and ranks that lose each other although both live.

use skyphos_core::survivors::{Decision, Message, Survivor};
use skyphos_core::transport::Loss;
use stateright::{Checker, Model, Property};
use std::collections::VecDeque;

/// A message in flight from one rank to another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Item {
    Message(Message),
    /// The end of the connection.
    Gone(Loss),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    /// `None` after its death.
    ranks: Vec<Option<Survivor>>,
    /// From each rank to each other.
    channels: Vec<VecDeque<Item>>,
    deaths: usize,
    partings: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Event {
    /// The next message on a channel arrives.
    Arrives { from: usize, to: usize },
    /// A rank dies; of the messages that it sent to each rank `r`, only the first `arriving[r]` still arrive.
    Dies { rank: usize, arriving: Vec<usize> },
    /// A rank gives up a silent one; of the messages that it sent to `other`, only the first `arriving` still arrive.
    GivesUp { rank: usize, other: usize, arriving: usize },
}

/// Number of ranks, of deaths, and of partings: events in which a rank gives up another one that lives.
struct Faults {
    ranks: usize,
    deaths: usize,
    partings: usize,
}

impl World {
    fn channel(&mut self, from: usize, to: usize) -> &mut VecDeque<Item> {
        let size = self.ranks.len();
        &mut self.channels[from * size + to]
    }

    /// Sends a rank's pending messages.
    fn send(&mut self, from: usize) {
        let Some(rank) = &mut self.ranks[from] else { return };
        for (to, message) in rank.take_messages() {
            if self.ranks[to as usize].is_some() {
                self.channel(from, to as usize).push_back(Item::Message(message));
            }
        }
    }

    fn is_quiet(&self) -> bool {
        self.channels.iter().all(VecDeque::is_empty)
    }

    /// Ranks that live and have decided to continue, with the members of their groups.
    fn continuing(&self) -> impl Iterator<Item = (usize, &Survivor, &Vec<u32>)> {
        self.ranks.iter().enumerate().filter_map(|(rank, one)| {
            let one = one.as_ref()?;
            match one.decision() {
                Some(Decision::Continue(ranks)) => Some((rank, one, ranks)),
                _ => None,
            }
        })
    }

    /// Groups all of whose members live and have decided so.
    fn groups(&self) -> Vec<&Vec<u32>> {
        let decided = |rank: u32, ranks: &Vec<u32>| {
            self.continuing().any(|(one, _, its)| one == rank as usize && its == ranks)
        };
        let mut groups: Vec<&Vec<u32>> = self.continuing().map(|(_, _, ranks)| ranks).collect();
        groups.retain(|ranks| ranks.iter().all(|rank| decided(*rank, ranks)));
        groups.sort();
        groups.dedup();
        groups
    }
}

impl Model for Faults {
    type State = World;
    type Action = Event;

    fn init_states(&self) -> Vec<World> {
        let ranks = (0..self.ranks).map(|rank| Some(Survivor::new(rank as u32, vec![None; self.ranks])));
        let channels = vec![VecDeque::new(); self.ranks * self.ranks];
        let mut world = World { ranks: ranks.collect(), channels, deaths: 0, partings: 0 };
        (0..self.ranks).for_each(|rank| world.send(rank));
        vec![world]
    }

    fn actions(&self, world: &World, events: &mut Vec<Event>) {
        let lives = |rank: &usize| world.ranks[*rank].is_some();
        let length = |from: usize, to: usize| world.channels[from * self.ranks + to].len();
        for from in 0..self.ranks {
            for to in (0..self.ranks).filter(|to| length(from, *to) > 0) {
                events.push(Event::Arrives { from, to });
            }
        }
        if world.deaths < self.deaths {
            for rank in (0..self.ranks).filter(lives) {
                let mut all = vec![Vec::new()];
                for to in 0..self.ranks {
                    let longer = |arriving: &Vec<usize>| {
                        let arriving = arriving.clone();
                        (0..=length(rank, to)).map(move |k| [&arriving[..], &[k]].concat())
                    };
                    all = all.iter().flat_map(longer).collect();
                }
                events.extend(all.into_iter().map(|arriving| Event::Dies { rank, arriving }));
            }
        }
        if world.partings < self.partings {
            for rank in (0..self.ranks).filter(lives) {
                let survivor = world.ranks[rank].as_ref().expect("it lives");
                for other in (0..self.ranks).filter(|other| *other != rank && lives(other)) {
                    if !survivor.has_lost(other as u32) {
                        let counts = 0..=length(rank, other);
                        events.extend(counts.map(|arriving| Event::GivesUp { rank, other, arriving }));
                    }
                }
            }
        }
    }

    fn next_state(&self, world: &World, event: Event) -> Option<World> {
        let mut world = world.clone();
        match event {
            Event::Arrives { from, to } => {
                let item = world.channel(from, to).pop_front()?;
                let rank = world.ranks[to].as_mut()?;
                match item {
                    Item::Message(message) => rank.receive(from as u32, message),
                    Item::Gone(loss) => rank.lose(from as u32, loss),
                }
                world.send(to);
            }
            Event::Dies { rank, arriving } => {
                (world.ranks[rank], world.deaths) = (None, world.deaths + 1);
                for (to, count) in arriving.into_iter().enumerate() {
                    world.channel(to, rank).clear();
                    world.channel(rank, to).truncate(count);
                    if to != rank && world.ranks[to].is_some() {
                        world.channel(rank, to).push_back(Item::Gone(Loss::Ended));
                    } else {
                        world.channel(rank, to).clear();
                    }
                }
            }
            Event::GivesUp { rank, other, arriving } => {
                world.partings += 1;
                world.channel(other, rank).clear();
                world.channel(rank, other).truncate(arriving);
                world.channel(rank, other).push_back(Item::Gone(Loss::Silent));
                world.ranks[rank].as_mut()?.lose(other as u32, Loss::Silent);
                world.send(rank);
            }
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Faults>> {
        vec![
            Property::always("ranks that can reach each other agree", |_, world: &World| {
                world.continuing().all(|(a, one, ranks)| {
                    world.continuing().all(|(b, other, others)| {
                        let apart = one.has_lost(b as u32) || other.has_lost(a as u32);
                        let meant = others.contains(&(a as u32)) && ranks.contains(&(b as u32));
                        apart || !meant || ranks == others
                    })
                })
            }),
            Property::always("one group at most", |_, world: &World| world.groups().len() <= 1),
            Property::always("a rank that continues is a member of its group", |_, world: &World| {
                world.continuing().all(|(rank, _, ranks)| ranks.contains(&(rank as u32)) && ranks.is_sorted())
            }),
            Property::always("no rank waits for ever", |_, world: &World| {
                !world.is_quiet() || world.ranks.iter().flatten().all(|rank| rank.decision().is_some())
            }),
            Property::always("without partings all that live continue", |_, world: &World| {
                let alive = world.ranks.iter().flatten().count();
                world.partings > 0 || !world.is_quiet() || world.continuing().count() == alive
            }),
            Property::sometimes("a smaller group", |_, world: &World| {
                world.groups().iter().any(|group| group.len() < world.ranks.len())
            }),
        ]
    }
}

#[track_caller]
fn check(faults: Faults) {
    let checker = faults.checker().threads(2).spawn_bfs().join();
    println!("{} states, {} deep", checker.unique_state_count(), checker.max_depth());
    checker.assert_properties();
}

#[test]
fn deaths() {
    check(Faults { ranks: 2, deaths: 1, partings: 0 });
    check(Faults { ranks: 3, deaths: 2, partings: 0 });
}

#[test]
fn partings() {
    check(Faults { ranks: 2, deaths: 0, partings: 2 });
    check(Faults { ranks: 3, deaths: 0, partings: 2 });
}

#[test]
fn deaths_and_partings() {
    check(Faults { ranks: 3, deaths: 1, partings: 1 });
    check(Faults { ranks: 3, deaths: 1, partings: 2 });
    check(Faults { ranks: 4, deaths: 1, partings: 0 });
    check(Faults { ranks: 4, deaths: 2, partings: 0 });
    check(Faults { ranks: 4, deaths: 0, partings: 1 });
}

/// Takes a minute, for 2.6 million states: run by name, with `--release`.
#[test]
#[ignore = "takes a minute: cargo test --release -p skyphos-core --test model_checks -- --ignored"]
fn four_ranks_a_death_and_a_parting() {
    check(Faults { ranks: 4, deaths: 1, partings: 1 });
}
