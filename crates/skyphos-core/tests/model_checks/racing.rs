//! Racing of replicas in every order of events, explored by a model checker: chunks of a message from a rank of two processes to
//! another, deaths that lose some of the bytes sent, and time-outs that come too early.

use skyphos_core::frame::{FrameKind, Header};
use skyphos_core::replicated::{Acknowledgement, Action, Body, Chunk, Inflow, Numbering, Outflow};
use skyphos_types::{CallNumber, CommId, ProcessId, WorldRank};
use stateright::{Checker, Model, Property};
use std::collections::VecDeque;
use std::time::Duration;

/// A chunk whose content is its number.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Number(u32);

impl Body for Number {
    fn bytes(&self) -> usize {
        1
    }

    fn checksum(&self) -> u32 {
        self.0
    }
}

/// A frame in flight from one process to another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Item {
    /// A chunk: its frame's kind, its number and, if it was forwarded, its original sender.
    Chunk(u8, u32, u16),
    Acknowledgement(Acknowledgement),
    /// The end of the connection.
    Gone,
}

/// A process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Process {
    out: Outflow<Number>,
    inflow: Inflow<Number>,
    posted: u32,
    received: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    /// `None` after its death.
    processes: Vec<Option<Process>>,
    channels: Vec<VecDeque<Item>>,
    deaths: u32,
    /// Time-outs so far.
    expired: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Event {
    /// A replica of rank 0 produces its next chunk.
    Posts { process: usize },
    /// A connection can take more bytes.
    Takes { from: usize, to: usize },
    /// The next frame on a channel arrives.
    Arrives { from: usize, to: usize },
    /// A time-out: all that others owe is overdue. `stuck`: bytes to other processes do not seem to arrive.
    Expires { process: usize, stuck: bool },
    /// A process dies; of the frames that it sent to each process `p`, only the first `arriving[p]` still arrive.
    Dies { process: usize, arriving: Vec<usize> },
}

/// A time at which all that others owe is overdue.
const LATER: Duration = Duration::from_secs(3600);

/// Two ranks of several processes each, the chunks that rank 0 sends to rank 1, and the number of each kind of fault.
#[derive(Clone)]
struct Race {
    replicas: u32,
    chunks: u32,
    deaths: u32,
    expiries: u32,
}

/// The longest channel of which a death may lose any suffix; of longer ones it loses all or nothing.
const LONGEST_CUT: usize = 2;

impl Race {
    fn size(&self) -> usize {
        2 * self.replicas as usize
    }

    fn done(&self, process: usize, one: &Process) -> bool {
        process.is_multiple_of(2) || one.received.len() as u32 == self.chunks
    }
}

impl World {
    fn channel(&mut self, from: usize, to: usize) -> &mut VecDeque<Item> {
        let size = self.processes.len();
        &mut self.channels[from * size + to]
    }

    fn is_quiet(&self, race: &Race) -> bool {
        self.channels.iter().all(VecDeque::is_empty)
            && self.processes.iter().enumerate().all(|(process, one)| {
                one.as_ref().is_none_or(|one| {
                    let mut out = one.out.clone();
                    let posted = process % 2 == 1 || one.posted == race.chunks;
                    let mut nothing =
                        || (0..race.size() as u32).all(|to| out.take(ProcessId(to), || 0).is_none());
                    let now = posted && nothing();
                    // A time-out would not make it send anything either.
                    out.check(LATER, |_| 0, |_| false);
                    let mut nothing =
                        || (0..race.size() as u32).all(|to| out.take(ProcessId(to), || 0).is_none());
                    now && nothing()
                })
            })
    }

    fn arrive(&mut self, from: usize, to: usize) {
        let item = self.channel(from, to).pop_front().expect("enabled");
        let size = self.processes.len();
        let Some(one) = &mut self.processes[to] else { return };
        let mut actions = Vec::new();
        match item {
            Item::Chunk(kind, seq, origin) => {
                let kind = [FrameKind::Data, FrameKind::Forward, FrameKind::Forwarded][kind as usize];
                let header = Header { seq, origin, ..Header::control(kind, CommId(0), CallNumber(0)) };
                let by = if kind == FrameKind::Forwarded { u32::from(origin) } else { from as u32 };
                let differ = one.inflow.chunk(
                    ProcessId(from as u32),
                    ProcessId(by),
                    header,
                    Number(seq),
                    false,
                    &mut actions,
                );
                assert_eq!(differ, None);
            }
            Item::Acknowledgement(Acknowledgement { chunk, sum, by }) => {
                // The sender names the chunk by its receiver's rank.
                let chunk = Chunk { rank: WorldRank(from as u32 % 2), ..chunk };
                assert_eq!(
                    one.out.acknowledge(Duration::ZERO, ProcessId(from as u32), chunk, sum, by, false),
                    None
                );
            }
            Item::Gone => {
                one.out.lose(ProcessId(from as u32));
                one.inflow.lose(ProcessId(from as u32), false, &mut actions);
            }
        }
        for action in actions {
            match action {
                Action::Deliver(WorldRank(0), header, Number(number)) => {
                    assert_eq!(header.seq, number);
                    one.received.push(number);
                }
                Action::Forward(header, body) => {
                    for sibling in (0..size).filter(|p| p % 2 == to % 2 && *p != to) {
                        one.out.forward(ProcessId(sibling as u32), header, body.clone());
                    }
                }
                other => panic!("{other:?}"),
            }
        }
        let acknowledgements = one.inflow.take_acknowledgements();
        for (process, notices) in acknowledgements {
            if self.processes[process.index()].is_some() {
                let items = notices.into_iter().map(Item::Acknowledgement);
                self.channel(to, process.index()).extend(items);
            }
        }
    }
}

impl Model for Race {
    type State = World;
    type Action = Event;

    fn init_states(&self) -> Vec<World> {
        let size = self.size();
        let process = |me: usize| {
            let numbering = Numbering::new(size as u32, self.replicas, ProcessId(me as u32)).unwrap();
            Some(Process {
                out: Outflow::new(numbering),
                inflow: Inflow::new(numbering),
                posted: 0,
                received: Vec::new(),
            })
        };
        let processes = (0..size).map(process).collect();
        vec![World { processes, channels: vec![VecDeque::new(); size * size], deaths: 0, expired: 0 }]
    }

    fn actions(&self, world: &World, events: &mut Vec<Event>) {
        let size = self.size();
        for (process, one) in world.processes.iter().enumerate() {
            let Some(one) = one else { continue };
            if process.is_multiple_of(2) && one.posted < self.chunks {
                events.push(Event::Posts { process });
            }
            let mut out = one.out.clone();
            if world.expired < self.expiries && out.next_check().is_some() {
                events.extend([false, true].map(|stuck| Event::Expires { process, stuck }));
            }
            for to in (0..size).filter(|to| *to != process) {
                if one.out.clone().take(ProcessId(to as u32), || 0).is_some() {
                    events.push(Event::Takes { from: process, to });
                }
            }
            // If the last process of a rank dies, the rank is lost and nothing is promised.
            let others = (0..size).filter(|p| p % 2 == process % 2 && *p != process);
            if world.deaths < self.deaths && others.into_iter().any(|p| world.processes[p].is_some()) {
                let mut all = vec![Vec::new()];
                for to in 0..size {
                    let length = world.channels[process * size + to].len();
                    let some: Vec<usize> =
                        (0..=length).filter(|k| length <= LONGEST_CUT || *k == 0 || *k == length).collect();
                    let longer = |arriving: &Vec<usize>| {
                        let arriving = arriving.clone();
                        some.clone().into_iter().map(move |k| [&arriving[..], &[k]].concat())
                    };
                    all = all.iter().flat_map(longer).collect();
                }
                events.extend(all.into_iter().map(|arriving| Event::Dies { process, arriving }));
            }
        }
        for from in 0..size {
            for to in (0..size).filter(|to| !world.channels[from * size + to].is_empty()) {
                events.push(Event::Arrives { from, to });
            }
        }
    }

    fn next_state(&self, before: &World, event: Event) -> Option<World> {
        let mut world = before.clone();
        match event {
            Event::Posts { process } => {
                let one = world.processes[process].as_mut()?;
                let header =
                    Header { seq: one.posted, ..Header::control(FrameKind::Data, CommId(0), CallNumber(0)) };
                let differ = one.out.post(Duration::ZERO, WorldRank(1), header, Number(one.posted), |_| true);
                assert_eq!(differ, None);
                one.posted += 1;
            }
            Event::Takes { from, to } => {
                let (header, Number(number)) =
                    world.processes[from].as_mut()?.out.take(ProcessId(to as u32), || 0)?;
                let kinds = [FrameKind::Data, FrameKind::Forward, FrameKind::Forwarded];
                let kind = kinds.iter().position(|kind| *kind == header.kind)? as u8;
                if world.processes[to].is_some() {
                    world.channel(from, to).push_back(Item::Chunk(kind, number, header.origin));
                }
            }
            Event::Arrives { from, to } => world.arrive(from, to),
            Event::Expires { process, stuck } => {
                world.expired += 1;
                world.processes[process].as_mut()?.out.check(LATER, |_| 0, |_| stuck);
            }
            Event::Dies { process, arriving } => {
                world.deaths += 1;
                world.processes[process] = None;
                for (to, count) in arriving.into_iter().enumerate() {
                    world.channel(to, process).clear();
                    let alive = world.processes[to].is_some();
                    let channel = world.channel(process, to);
                    channel.truncate(count);
                    if alive {
                        channel.push_back(Item::Gone);
                    } else {
                        channel.clear();
                    }
                }
            }
        }
        (world != *before).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Race>> {
        fn alive(world: &World) -> impl Iterator<Item = (usize, &Process)> {
            world.processes.iter().enumerate().filter_map(|(p, one)| one.as_ref().map(|one| (p, one)))
        }
        vec![
            Property::always("in order", |_, world: &World| {
                alive(world).all(|(_, one)| one.received.iter().copied().eq(0..one.received.len() as u32))
            }),
            Property::always("once nothing moves, all have everything", |race: &Race, world: &World| {
                !world.is_quiet(race) || alive(world).all(|(process, one)| race.done(process, one))
            }),
            Property::always("once nothing moves, no chunk is kept", |race: &Race, world: &World| {
                // Chunks for processes that are gone are dropped when they are looked at.
                let is_idle = |one: &Process| {
                    let mut out = one.out.clone();
                    (0..race.size() as u32).all(|to| out.take(ProcessId(to), || 0).is_none()) && out.is_idle()
                };
                !world.is_quiet(race) || alive(world).all(|(_, one)| is_idle(one))
            }),
            Property::always("without a fault no chunk is sent twice", |race: &Race, world: &World| {
                let calm = world.deaths == 0 && world.expired == 0;
                !calm
                    || alive(world).all(|(_, one)| {
                        (0..race.size() as u32).all(|p| one.inflow.races(ProcessId(p)).1 == 0)
                    })
            }),
            Property::sometimes("a race is lost", |race: &Race, world: &World| {
                race.expiries == 0
                    || alive(world)
                        .any(|(_, one)| (0..race.size() as u32).any(|p| one.inflow.races(ProcessId(p)).1 > 0))
            }),
            Property::sometimes("the end is reached", |race: &Race, world: &World| {
                world.is_quiet(race) && world.deaths == race.deaths
            }),
        ]
    }
}

fn explore(race: Race) {
    let checker = race.checker().threads(2).spawn_bfs().join();
    println!("{} states, {} of them different", checker.state_count(), checker.unique_state_count());
    checker.assert_properties();
}

#[test]
fn two_replicas_and_a_death() {
    explore(Race { replicas: 2, chunks: 1, deaths: 1, expiries: 2 });
    explore(Race { replicas: 2, chunks: 2, deaths: 1, expiries: 0 });
}

#[test]
#[ignore = "minutes"]
fn two_deaths_and_three_replicas() {
    explore(Race { replicas: 2, chunks: 2, deaths: 2, expiries: 2 });
    explore(Race { replicas: 2, chunks: 3, deaths: 1, expiries: 1 });
    explore(Race { replicas: 3, chunks: 1, deaths: 2, expiries: 1 });
}
