//! The choice of an algorithm for a sum of outer products: the one that the caller named, or the one with the least predicted time
//! for the numbers of all ranks.

use super::memory_check::needed_bytes;
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
use skyphos_plan::{OuterPrediction, OuterRoute, OuterWork, Profile};
use skyphos_tune::outer::{
    OuterNumbers, OuterRates, OuterSize, SPREADS, agreed_work, even_group_size, ranked_by_fit,
};
use skyphos_tune::{Observations, TuningParameters};
use std::sync::OnceLock;
use std::time::Instant;

/// The algorithm of a sum, and the reasons for it.
#[derive(Clone, Debug, PartialEq)]
pub struct OuterChoice {
    /// The algorithm.
    pub algorithm: OuterAlgorithm,
    /// The exchange of all factors, if there was one.
    pub exchange: Option<Schedule>,
    /// The level whose ranks owned G together.
    pub level: Level,
    /// How many rows and columns of blocks G was cut into among the ranks that owned it together; `None` if no rank owned blocks.
    pub grid: Option<(u32, u32)>,
    /// The prediction, if `auto` chose.
    pub predicted: Option<OuterPrediction>,
    /// The other candidates, with their predicted seconds.
    pub others: Vec<(String, f64)>,
    /// Number of pairs on all ranks.
    pub pairs: usize,
}

/// The rates of this machine, measured once per process in about 25 ms. All ranks enter their first sum at the same time, so ranks
/// that share processors measure the rate that each one gets.
fn measured() -> OuterRates {
    static RATES: OnceLock<OuterRates> = OnceLock::new();
    *RATES.get_or_init(|| {
        let (start, cpu_start) = (Instant::now(), cpu_s());
        let (product_s, (pass_byte_s, fresh_byte_s)) = (product_s(), pass_s());
        let share = (cpu_s() - cpu_start) / start.elapsed().as_secs_f64();
        OuterRates { product_s, pass_byte_s, fresh_byte_s, core_share: share.clamp(0.01, 1.0) }
    })
}

/// This rank's numbers for the choice.
pub(super) fn numbers<T: Factor>(
    ep: &Endpoint,
    shape: OuterShape,
    options: &OuterOptions,
    observed: Observations,
) -> OuterNumbers {
    let default = start_profile(&observed, ep);
    let measures = options.algorithm == OuterAlgorithm::Auto && ep.size() > 1;
    let rates = match measures && observed.measures_kernels() && ep.node().knows_hosts() {
        true => measured(),
        false => OuterRates {
            product_s: default.product_s,
            pass_byte_s: default.kernels.dense_byte_s,
            fresh_byte_s: default.kernels.fresh_byte_s,
            core_share: default.cores,
        },
    };
    let (n, m) = (shape.n as f64, shape.m as f64);
    let numbers = n * m + f64::from(ep.size()) * shape.pairs as f64 * (n + m);
    let large = numbers * size_of::<T>() as f64 >= TuningParameters::DEFAULT.memory_check_bytes;
    let free_bytes = match large && ep.node().knows_hosts() {
        true => available_bytes().map_or(f64::INFINITY, |bytes| bytes as f64),
        false => f64::INFINITY,
    };
    // The threads of a rank share its product.
    let product_s = rates.product_s / ep.node().settings().threads as f64;
    OuterNumbers {
        pairs: shape.pairs,
        fresh: options.fresh,
        free_bytes,
        rates: OuterRates { product_s, ..rates },
        profile: observed.profile_words(default).to_vec(),
    }
}

/// The schedule of an exchange among `ranks` ranks.
fn schedule_of(spread: Spread, ranks: u32) -> Schedule {
    match spread {
        Spread::Direct => Schedule::Direct,
        Spread::Ring => Schedule::Ring,
        Spread::Doubling if ranks.is_power_of_two() => Schedule::RecursiveDoubling,
        Spread::Doubling => Schedule::Bruck,
    }
}

/// The name of a candidate in reports.
fn name_of(route: OuterRoute, level: Level, ranks: u32) -> String {
    match route {
        OuterRoute::Allgather(spread) => format!("allgather ({})", schedule_of(spread, ranks).name()),
        OuterRoute::Owners { grid: (rows, cols), .. } => {
            format!("rabenseifner ({}, {rows}x{cols})", level.name())
        }
        OuterRoute::Allreduce => "allreduce".to_owned(),
        OuterRoute::Ring => "ring".to_owned(),
        OuterRoute::Butterfly => "butterfly".to_owned(),
    }
}

/// The candidates of `auto`, each with its level.
fn candidates(ep: &Endpoint, shape: &ProductShape, scatter: bool) -> Vec<(OuterRoute, Level)> {
    let ranks = ep.size();
    if scatter {
        let rows = OuterRoute::Owners { group: ranks, grid: (ranks, 1), near: false };
        return vec![(rows, Level::All), (OuterRoute::Ring, Level::All)];
    }
    let mut all: Vec<_> = SPREADS.map(|spread| (OuterRoute::Allgather(spread), Level::Rank)).into();
    let topology = ep.topology();
    let groups = [
        (Level::Host, even_group_size(topology.hosts())),
        (Level::Rack, even_group_size(topology.racks())),
        (Level::All, Some(ranks)),
    ];
    let mut before = 1;
    for (level, group) in groups {
        let Some(group) = group.filter(|group| *group > before) else { continue };
        before = group;
        let near = level == Level::Host || ep.node().on_one_host();
        let grid = best_grid(group, shape.n, shape.m);
        all.push((OuterRoute::Owners { group, grid, near }, level));
    }
    all.extend(
        [OuterRoute::Allreduce, OuterRoute::Ring, OuterRoute::Butterfly].map(|route| (route, Level::All)),
    );
    all
}

/// Chooses the algorithm; the same on all ranks.
pub(super) fn choose<T: Factor>(
    ep: &Endpoint,
    shape: &ProductShape,
    options: &OuterOptions,
    factors: bool,
    all: &[OuterNumbers],
    observed: Observations,
) -> OuterChoice {
    let size = OuterSize {
        n: shape.n,
        m: shape.m,
        bytes: size_of::<T>(),
        sum_bytes: size_of::<T::Sum>(),
        scatter: options.scatter,
    };
    let (work, profile) = agreed_work(size, all, start_profile(&observed, ep));
    let ranks = ep.size();
    let named = |algorithm, level, grid, exchange| OuterChoice {
        algorithm,
        exchange,
        level,
        grid,
        predicted: None,
        others: Vec::new(),
        pairs: shape.all_pairs(),
    };
    let all_gathers = SPREADS.map(OuterRoute::Allgather);
    let best_exchange = || match work.ranked(&profile, &all_gathers)[0].route {
        OuterRoute::Allgather(spread) => schedule_of(spread, ranks),
        _ => unreachable!("an allgather"),
    };
    let grid = |level: Level| {
        options.grid.unwrap_or_else(|| {
            let group = match level {
                Level::Rank => 1,
                Level::Host => even_group_size(ep.topology().hosts()).unwrap_or(1),
                Level::Rack => even_group_size(ep.topology().racks()).unwrap_or(1),
                Level::All => ranks,
            };
            best_grid(group, shape.n, shape.m)
        })
    };
    match options.algorithm {
        OuterAlgorithm::Auto if !factors => by_prediction::<T>(ep, shape, options, (&work, &profile), all),
        OuterAlgorithm::Auto | OuterAlgorithm::Allgather => {
            let exchange = options.exchange.unwrap_or_else(best_exchange);
            named(OuterAlgorithm::Allgather, Level::Rank, None, Some(exchange))
        }
        OuterAlgorithm::Rabenseifner if options.scatter => {
            named(OuterAlgorithm::Rabenseifner, Level::All, Some((ranks, 1)), None)
        }
        OuterAlgorithm::Rabenseifner => {
            let level = options.level.unwrap_or(Level::All);
            // Hosts or racks with different numbers of ranks each have a grid of their own, so no single one is reported.
            let even = options.grid.is_some() || !matches!(level, Level::Host | Level::Rack);
            let grid = Some(grid(level)).filter(|(rows, cols)| even || rows * cols > 1);
            named(OuterAlgorithm::Rabenseifner, level, grid, None)
        }
        other => named(other, Level::All, None, None),
    }
}

/// The candidate with the least predicted time that fits memory.
fn by_prediction<T: Factor>(
    ep: &Endpoint,
    shape: &ProductShape,
    options: &OuterOptions,
    (work, profile): (&OuterWork, &Profile),
    all: &[OuterNumbers],
) -> OuterChoice {
    let ranks = ep.size();
    let least_free = all.iter().map(|one| one.free_bytes).fold(f64::INFINITY, f64::min);
    let free = least_free / f64::from(max_ranks_per_host(ep));
    let routes = candidates(ep, shape, options.scatter);
    let level_of = |route: OuterRoute| {
        routes.iter().find(|(one, _)| *one == route).map_or(Level::All, |(_, level)| *level)
    };
    let algorithm = |route| match route {
        OuterRoute::Allgather(_) => OuterAlgorithm::Allgather,
        OuterRoute::Owners { .. } => OuterAlgorithm::Rabenseifner,
        OuterRoute::Allreduce => OuterAlgorithm::Allreduce,
        OuterRoute::Ring => OuterAlgorithm::Ring,
        OuterRoute::Butterfly => OuterAlgorithm::Butterfly,
    };
    let grid = |route| if let OuterRoute::Owners { grid, .. } = route { Some(grid) } else { None };
    let candidates: Vec<OuterRoute> = routes.iter().map(|(route, _)| *route).collect();
    let fits = |route| {
        let kind = (algorithm(route), grid(route).unwrap_or((1, 1)));
        needed_bytes::<T>(ranks, shape, kind, (false, options.scatter, work.fresh)) <= free
    };
    let mut ranked = ranked_by_fit(work, profile, &candidates, fits);
    let best = ranked.remove(0);
    let others =
        ranked.iter().map(|one| (name_of(one.route, level_of(one.route), ranks), one.duration.0)).collect();
    OuterChoice {
        algorithm: algorithm(best.route),
        exchange: if let OuterRoute::Allgather(spread) = best.route {
            Some(schedule_of(spread, ranks))
        } else {
            None
        },
        level: level_of(best.route),
        grid: grid(best.route),
        others,
        pairs: shape.all_pairs(),
        predicted: Some(best),
    }
}

/// The largest number of ranks on one host.
fn max_ranks_per_host(ep: &Endpoint) -> u32 {
    let hosts = ep.topology().hosts();
    let count = |host: &u32| hosts.iter().filter(|other| *other == host).count() as u32;
    hosts.iter().map(count).max().unwrap_or(1)
}
