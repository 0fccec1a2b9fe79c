//! Which way a sum goes: as named, or what should take the least time for what all ranks said.

use super::memory_check::{RankMemory, needed_bytes};
use super::options::{OuterAlgorithm, OuterOptions, OuterShape};
use crate::free_memory::available_bytes;
use crate::kernel_times::{pass_s, product_s};
use crate::probe::cpu_s;
use crate::tuning::start_profile;
use skyphos_core::Endpoint;
use skyphos_core::collectives::gather::Schedule;
use skyphos_core::collectives::outer_product::{Level, ProductShape, best_grid};
use skyphos_kernels::product::Factor;
use skyphos_plan::outer::Spread;
use skyphos_plan::{OuterPrediction, OuterWay, OuterWork, Profile};
use skyphos_tune::{Observations, PROFILE_WORDS, TuningParameters, agreed_profile, median};
use skyphos_types::{Error, Result};
use std::sync::OnceLock;
use std::time::Instant;

/// Places of what a rank says: its pairs (0), whether its result is fresh, bytes that are free, seconds of a multiply-add, of a
/// byte that is passed over and of a fresh one, its share of a core; then its profile.
const FRESH: usize = 1;
const FREE: usize = 2;
const PRODUCT: usize = 3;
const PASS: usize = 4;
const FRESH_BYTE: usize = 5;
const SHARE: usize = 6;
const PROFILE: usize = 7;

/// What was done, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct OuterTold {
    /// The way.
    pub algorithm: OuterAlgorithm,
    /// How all factors travelled, if they did.
    pub exchange: Option<Schedule>,
    /// Whose ranks owned G together.
    pub level: Level,
    /// Rows and columns of blocks of this rank's sub-group, where there are such.
    pub grid: Option<(u32, u32)>,
    /// What was predicted, where `auto` chose.
    pub predicted: Option<OuterPrediction>,
    /// Ways that were passed over, with the seconds that they should take.
    pub others: Vec<(String, f64)>,
    /// Pairs of all ranks.
    pub pairs: usize,
}

/// A way to go.
pub(super) struct Chosen {
    pub(super) told: OuterTold,
}

/// Processor time of a multiply-add, of a byte that is passed over, and of a fresh one, and the share of a core that there was
/// for it: measured once a process, some 25 ms. Ranks come to their first sum together, so those that share processors
/// measure what is left to each.
fn measured() -> [f64; 4] {
    static RATES: OnceLock<[f64; 4]> = OnceLock::new();
    *RATES.get_or_init(|| {
        let (start, cpu_start) = (Instant::now(), cpu_s());
        let (product, (pass, fresh)) = (product_s(), pass_s());
        let share = (cpu_s() - cpu_start) / start.elapsed().as_secs_f64();
        [product, pass, fresh, share.clamp(0.01, 1.0)]
    })
}

/// What this rank says.
pub(super) fn words<T: Factor>(
    ep: &Endpoint,
    shape: OuterShape,
    options: &OuterOptions,
    seen: Observations,
) -> Vec<f64> {
    let default = start_profile(&seen, ep);
    let by_profile =
        [default.product_s, default.kernels.dense_byte_s, default.kernels.fresh_byte_s, default.cores];
    let asked = options.algorithm == OuterAlgorithm::Auto && ep.size() > 1;
    let [product, pass, fresh, share] = match asked && seen.measures_kernels() && ep.node().knows_hosts() {
        true => measured(),
        false => by_profile,
    };
    let (n, m) = (shape.n as f64, shape.m as f64);
    let numbers = n * m + f64::from(ep.size()) * shape.pairs as f64 * (n + m);
    let large = numbers * size_of::<T>() as f64 >= TuningParameters::DEFAULT.memory_check_bytes;
    let free = match large && ep.node().knows_hosts() {
        true => available_bytes().map_or(f64::INFINITY, |bytes| bytes as f64),
        false => f64::INFINITY,
    };
    // Threads of a rank share its product.
    let product = product / ep.node().settings().threads as f64;
    let own = [shape.pairs as f64, f64::from(u8::from(options.fresh)), free, product, pass, fresh, share];
    own.into_iter().chain(seen.profile_words(default)).collect()
}

/// The memory of each rank.
pub(super) fn memory(said: &[Vec<f64>]) -> Vec<RankMemory> {
    said.iter().map(|said| RankMemory { fresh: said[FRESH] > 0.0, free: said[FREE] }).collect()
}

/// The schedule of an exchange among so many ranks.
fn schedule_of(spread: Spread, ranks: u32) -> Schedule {
    match spread {
        Spread::Direct => Schedule::Direct,
        Spread::Ring => Schedule::Ring,
        Spread::Doubling if ranks.is_power_of_two() => Schedule::RecursiveDoubling,
        Spread::Doubling => Schedule::Bruck,
    }
}

/// One after the other as they are preferred where they take the same time.
const SPREADS: [Spread; 3] = [Spread::Direct, Spread::Ring, Spread::Doubling];

/// Ranks that this one shares a host with, or a rack: as the sub-groups of all ranks are, if they are all as large.
fn even_groups(of: &[u32]) -> Option<u32> {
    let mut counts = vec![0u32; of.len()];
    of.iter().for_each(|group| counts[*group as usize] += 1);
    let mut sizes = counts.into_iter().filter(|count| *count > 0);
    let first = sizes.next()?;
    sizes.all(|size| size == first).then_some(first)
}

/// A way, as users name it.
fn named(way: OuterWay, level: Level, ranks: u32) -> String {
    match way {
        OuterWay::Allgather(spread) => format!("allgather ({})", schedule_of(spread, ranks).name()),
        OuterWay::Owners { grid: (rows, cols), .. } => {
            format!("rabenseifner ({}, {rows}x{cols})", level.name())
        }
        OuterWay::Allreduce => "allreduce".to_owned(),
        OuterWay::Ring => "ring".to_owned(),
        OuterWay::Butterfly => "butterfly".to_owned(),
    }
}

/// Ways that `auto` looks at, with the level of each.
fn ways(ep: &Endpoint, terms: &ProductShape, scatter: bool) -> Vec<(OuterWay, Level)> {
    let ranks = ep.size();
    if scatter {
        let rows = OuterWay::Owners { group: ranks, grid: (ranks, 1), near: false };
        return vec![(rows, Level::All), (OuterWay::Ring, Level::All)];
    }
    let mut all: Vec<_> = SPREADS.map(|spread| (OuterWay::Allgather(spread), Level::Rank)).into();
    let topology = ep.topology();
    let groups = [
        (Level::Host, even_groups(topology.hosts())),
        (Level::Rack, even_groups(topology.racks())),
        (Level::All, Some(ranks)),
    ];
    let mut before = 1;
    for (level, group) in groups {
        let Some(group) = group.filter(|group| *group > before) else { continue };
        before = group;
        let near = level == Level::Host || ep.node().on_one_host();
        let grid = best_grid(group, terms.n, terms.m);
        all.push((OuterWay::Owners { group, grid, near }, level));
    }
    all.extend([OuterWay::Allreduce, OuterWay::Ring, OuterWay::Butterfly].map(|way| (way, Level::All)));
    all
}

/// What all ranks go by.
fn work<T: Factor>(
    ep: &Endpoint,
    terms: &ProductShape,
    options: &OuterOptions,
    said: &[Vec<f64>],
    seen: Observations,
) -> (OuterWork, Profile) {
    let of = |place: usize| -> Vec<f64> { said.iter().map(|said| said[place]).collect() };
    let default = start_profile(&seen, ep);
    let profile = agreed_profile(default, |k| if k < PROFILE_WORDS { of(PROFILE + k) } else { Vec::new() });
    let profile = Profile { product_s: median(of(PRODUCT)), cores: median(of(SHARE)), ..profile };
    let work = OuterWork {
        ranks: ep.size(),
        n: terms.n,
        m: terms.m,
        pairs: terms.all_pairs(),
        most_pairs: terms.pairs.iter().copied().max().unwrap_or(0),
        bytes: size_of::<T>(),
        sum_bytes: size_of::<T::Sum>(),
        scatter: options.scatter,
        fresh: of(FRESH).contains(&1.0),
        pass_byte_s: median(of(PASS)),
        fresh_byte_s: median(of(FRESH_BYTE)),
    };
    (work, profile)
}

/// Chooses; the same on all ranks.
pub(super) fn choose<T: Factor>(
    ep: &Endpoint,
    terms: &ProductShape,
    options: &OuterOptions,
    factors: bool,
    said: &[Vec<f64>],
    seen: Observations,
) -> Result<Chosen> {
    if said.iter().any(|said| said.len() != PROFILE + PROFILE_WORDS) {
        return Err(Error::bad_input("ranks said different things of their factors"));
    }
    let (work, profile) = work::<T>(ep, terms, options, said, seen);
    let ranks = ep.size();
    let told = |algorithm, level, grid, exchange| OuterTold {
        algorithm,
        exchange,
        level,
        grid,
        predicted: None,
        others: Vec::new(),
        pairs: terms.all_pairs(),
    };
    let all_gathers = SPREADS.map(OuterWay::Allgather);
    let best_exchange = || match work.ranked(&profile, &all_gathers)[0].way {
        OuterWay::Allgather(spread) => schedule_of(spread, ranks),
        _ => unreachable!("an allgather"),
    };
    let grid = |level: Level| {
        options.grid.unwrap_or_else(|| {
            let group = match level {
                Level::Rank => 1,
                Level::Host => even_groups(ep.topology().hosts()).unwrap_or(1),
                Level::Rack => even_groups(ep.topology().racks()).unwrap_or(1),
                Level::All => ranks,
            };
            best_grid(group, terms.n, terms.m)
        })
    };
    let told = match options.algorithm {
        OuterAlgorithm::Auto if !factors => {
            return Ok(Chosen { told: by_prediction::<T>(ep, terms, options, &work, &profile, said)? });
        }
        OuterAlgorithm::Auto | OuterAlgorithm::Allgather => {
            let exchange = options.exchange.unwrap_or_else(best_exchange);
            told(OuterAlgorithm::Allgather, Level::Rank, None, Some(exchange))
        }
        OuterAlgorithm::Rabenseifner if options.scatter => {
            told(OuterAlgorithm::Rabenseifner, Level::All, Some((ranks, 1)), None)
        }
        OuterAlgorithm::Rabenseifner => {
            let level = options.level.unwrap_or(Level::All);
            // Sub-groups of several sizes have grids of their own.
            let even = options.grid.is_some() || !matches!(level, Level::Host | Level::Rack);
            let grid = Some(grid(level)).filter(|(rows, cols)| even || rows * cols > 1);
            told(OuterAlgorithm::Rabenseifner, level, grid, None)
        }
        other => told(other, Level::All, None, None),
    };
    Ok(Chosen { told })
}

fn by_prediction<T: Factor>(
    ep: &Endpoint,
    terms: &ProductShape,
    options: &OuterOptions,
    work: &OuterWork,
    profile: &Profile,
    said: &[Vec<f64>],
) -> Result<OuterTold> {
    let ranks = ep.size();
    let free =
        said.iter().map(|said| said[FREE]).fold(f64::INFINITY, f64::min) / f64::from(most_of_a_host(ep));
    let all = ways(ep, terms, options.scatter);
    let level_of =
        |way: OuterWay| all.iter().find(|(one, _)| *one == way).map_or(Level::All, |(_, level)| *level);
    let algorithm = |way| match way {
        OuterWay::Allgather(_) => OuterAlgorithm::Allgather,
        OuterWay::Owners { .. } => OuterAlgorithm::Rabenseifner,
        OuterWay::Allreduce => OuterAlgorithm::Allreduce,
        OuterWay::Ring => OuterAlgorithm::Ring,
        OuterWay::Butterfly => OuterAlgorithm::Butterfly,
    };
    let grid = |way| if let OuterWay::Owners { grid, .. } = way { Some(grid) } else { None };
    let candidates: Vec<OuterWay> = all.iter().map(|(way, _)| *way).collect();
    let mut ranked = work.ranked(profile, &candidates);
    // What does not fit comes last: if nothing does, the error is of what nearly did.
    let fits = |way| {
        let kind = (algorithm(way), grid(way).unwrap_or((1, 1)));
        needed_bytes::<T>(ranks, terms, kind, (false, options.scatter, work.fresh)) <= free
    };
    ranked.sort_by_key(|one| !fits(one.way));
    let best = ranked.remove(0);
    let others = ranked.iter().map(|one| (named(one.way, level_of(one.way), ranks), one.seconds)).collect();
    Ok(OuterTold {
        algorithm: algorithm(best.way),
        exchange: if let OuterWay::Allgather(spread) = best.way {
            Some(schedule_of(spread, ranks))
        } else {
            None
        },
        level: level_of(best.way),
        grid: grid(best.way),
        others,
        pairs: terms.all_pairs(),
        predicted: Some(best),
    })
}

/// Ranks of the host that has most of them.
fn most_of_a_host(ep: &Endpoint) -> u32 {
    let hosts = ep.topology().hosts();
    let count = |host: &u32| hosts.iter().filter(|other| *other == host).count() as u32;
    hosts.iter().map(count).max().unwrap_or(1)
}
