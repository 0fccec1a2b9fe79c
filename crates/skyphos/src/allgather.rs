//! Allgather of sparse vectors. `auto` takes the schedule with the least predicted time for items as large as those of the last call.

use crate::Comm;
use crate::arguments::single;
use crate::call_builder::{Body, CallBuilder};
use crate::input_checksum;
use crate::vector_input::{VectorInput, decode_all, is_wide, plain_sig};
use skyphos_core::collectives::gather::{Item, Schedule, allgather};
use skyphos_core::frame::{CallKind, CallSig};
use skyphos_core::slab::CHUNK_BYTES;
use skyphos_core::stream::encode;
use skyphos_core::{Arguments, CallRequest, Endpoint, Traffic};
use skyphos_kernels::stream::{SparseVec, View};
use skyphos_plan::{Profile, Stage};
use skyphos_types::{Element, Result};
use std::marker::PhantomData;

/// Assumed bytes of an item before the first call.
const DEFAULT_ITEM_BYTES: u64 = 16 * 1024;

/// A schedule, and its predicted cost.
#[derive(Clone, Debug, PartialEq)]
pub struct ScheduleChoice {
    /// The schedule.
    pub schedule: Schedule,
    /// The prediction, if `auto` chose.
    pub predicted: Option<Stage>,
    /// The next best schedules, with their predicted seconds.
    pub others: Vec<(Schedule, f64)>,
}

impl ScheduleChoice {
    /// The schedule that the caller named.
    pub fn named(schedule: Schedule) -> ScheduleChoice {
        ScheduleChoice { schedule, predicted: None, others: Vec::new() }
    }

    /// The schedule with the least predicted time for items of `item_bytes` bytes.
    pub fn best(profile: &Profile, ranks: u32, item_bytes: f64) -> ScheduleChoice {
        let doubling = if ranks.is_power_of_two() { Schedule::RecursiveDoubling } else { Schedule::Bruck };
        let candidates = [Schedule::Direct, doubling, Schedule::Ring];
        let mut all =
            candidates.map(|schedule| (schedule, stage(schedule, ranks, item_bytes).timed(profile)));
        all.sort_by(|a, b| a.1.seconds.total_cmp(&b.1.seconds));
        let others = all[1..].iter().map(|(schedule, stage)| (*schedule, stage.seconds)).collect();
        ScheduleChoice { schedule: all[0].0, predicted: Some(all[0].1), others }
    }
}

/// A rank's messages and work by a schedule.
fn stage(schedule: Schedule, ranks: u32, item_bytes: f64) -> Stage {
    let (others, halvings) = (f64::from(ranks - 1), f64::from(ranks.next_power_of_two().ilog2()));
    let (messages, rounds, senders) = match schedule {
        Schedule::Direct => (others, 1.0, others),
        Schedule::Ring => (others, others, 1.0),
        _ => (halvings, halvings, 1.0),
    };
    let bytes = others * item_bytes;
    Stage { sent: bytes, received: bytes, messages, rounds, senders, ..Stage::default() }
}

/// The result of [`Comm::allgather`].
#[derive(Clone, Debug)]
pub struct Gathered<T> {
    /// The vectors of all ranks, in rank order.
    pub vectors: Vec<SparseVec<T>>,
    /// The schedule.
    pub choice: ScheduleChoice,
    /// Bytes and frames on this rank.
    pub traffic: Traffic,
    /// Mean bytes of an item.
    item_bytes: u64,
}

impl Comm {
    /// The schedule that `auto` takes for an allgather of arrays of `bytes` bytes: a ring, which copies least, if each array fills
    /// a chunk; else the one with the least predicted time.
    pub fn schedule_of_arrays(&self, bytes: usize) -> ScheduleChoice {
        match bytes >= CHUNK_BYTES {
            true => ScheduleChoice::named(Schedule::Ring),
            false => self.best_schedule(bytes as f64),
        }
    }

    fn best_schedule(&self, item_bytes: f64) -> ScheduleChoice {
        let has_common_start = self.tuner().observations.has_common_start();
        match has_common_start {
            true => ScheduleChoice::best(&self.start_profile(), self.size(), item_bytes),
            // Ranks may have measured different profiles.
            false => ScheduleChoice::named(Schedule::Direct),
        }
    }

    /// The choice of an allgather, the kind of call by which the tuner stores item sizes, and the call's signature with the choice.
    fn plan_allgather<T: Element>(
        &self,
        n: u64,
        width: usize,
        schedule: Option<Schedule>,
    ) -> (ScheduleChoice, CallSig, CallSig) {
        let sig = |number: u32| plain_sig::<T>(CallKind::Allgather, n, width, number);
        let kind = sig(u32::MAX);
        let choice = match schedule {
            Some(schedule) => ScheduleChoice::named(schedule),
            None => {
                let mismatches = self.mismatches();
                let bytes = self.tuner().item_bytes(&kind, mismatches);
                self.best_schedule(bytes.unwrap_or(DEFAULT_ITEM_BYTES) as f64)
            }
        };
        let number = choice.schedule as u32;
        (choice, kind, sig(number))
    }

    /// The vectors of all ranks, in rank order. Without a schedule in the options, the one with the least predicted time runs.
    /// Collective.
    ///
    /// ```
    /// use skyphos::{Comm, IndexList, SparseVec};
    ///
    /// let ranks = Comm::local(2, &Default::default()).unwrap();
    /// let all = ranks.map_ranks(|comm| {
    ///     let x = SparseVec::new(10, 1, IndexList::Narrow(vec![comm.rank()]), vec![1.0]).unwrap();
    ///     comm.allgather(&x).run().unwrap().vectors
    /// });
    /// assert_eq!(all[0], all[1]);
    /// assert_eq!(all[0][1].entries(), (vec![1], vec![1.0]));
    /// ```
    pub fn allgather<T: Element, X: VectorInput<T>>(&self, x: X) -> CallBuilder<'_, Allgather<T, X>> {
        CallBuilder::new(self, Allgather { x, plan: None, element: PhantomData })
    }
}

/// Settings of [`Comm::allgather`]. All ranks pass the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllgatherOptions {
    /// The schedule. `None`: the one with the least predicted time for items as large as those of the last call.
    pub schedule: Option<Schedule>,
}

/// See [`Comm::allgather`].
pub struct Allgather<T, X> {
    x: X,
    /// The schedule, once the call has its number.
    plan: Option<ScheduleChoice>,
    element: PhantomData<T>,
}

impl<T: Element, X: VectorInput<T>> Body for Allgather<T, X> {
    type Output = Gathered<T>;
    type Op = ();
    type Options = AllgatherOptions;

    fn request(&mut self, comm: &Comm, (): &(), options: &AllgatherOptions) -> CallRequest {
        let (n, width) = (self.x.n(), self.x.width());
        let (choice, _, sig) = comm.plan_allgather::<T>(n, width, options.schedule);
        let arguments = schedule_argument(&choice);
        self.plan = Some(choice);
        (sig, arguments).into()
    }

    async fn perform(self, ep: &Endpoint, (): &(), _: &AllgatherOptions) -> Result<Gathered<T>> {
        let choice = self.plan.expect("`request` chooses it");
        allgather_on(ep, (self.x.n(), self.x.width()), self.x.view(), choice).await
    }

    fn run(self, comm: &Comm, (): &(), options: &AllgatherOptions) -> Result<Gathered<T>> {
        let dims = (self.x.n(), self.x.width());
        let (choice, kind, sig) = comm.plan_allgather::<T>(dims.0, dims.1, options.schedule);
        let done = comm.call((sig, schedule_argument(&choice)), async |ep| {
            allgather_on(ep, dims, self.x.view(), choice).await
        })?;
        comm.tuner().finish_allgather(kind, done.item_bytes);
        Ok(done)
    }
}

fn schedule_argument(choice: &ScheduleChoice) -> Arguments {
    single("algorithm", choice.schedule.name().to_owned())
}

async fn allgather_on<T: Element>(
    ep: &Endpoint,
    (n, width): (u64, usize),
    view: View<'_, T>,
    choice: ScheduleChoice,
) -> Result<Gathered<T>> {
    view.check(n, width)?;
    input_checksum::views(ep, width, &[view]);
    let items = allgather(ep, choice.schedule, encode(ep, view, width, 0, 0, n)).await?;
    let bytes = |item: &Item| item.iter().map(|segment| segment.len() as u64).sum::<u64>();
    let item_bytes = items.iter().map(bytes).sum::<u64>() / items.len() as u64;
    let vectors = decode_all(ep, (n, width, is_wide(n, &view)), &items)?;
    Ok(Gathered { vectors, choice, traffic: ep.traffic(), item_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costly_messages_lead_to_few_messages_and_high_latency_to_one_round() {
        let network = Profile { incast: 0.0, ..Profile::network(1.25e9) };
        let best = |profile: &Profile, ranks, bytes| ScheduleChoice::best(profile, ranks, bytes).schedule;
        let costly = Profile { message_s: 1e-3, latency_s: 1e-6, ..network };
        assert_eq!(best(&costly, 64, 100.0), Schedule::RecursiveDoubling);
        assert_eq!(best(&costly, 65, 100.0), Schedule::Bruck);
        let far = Profile { latency_s: 0.1, ..network };
        assert_eq!(best(&far, 64, 100.0), Schedule::Direct);
        let choice = ScheduleChoice::best(&network, 8, 1000.0);
        assert_eq!(choice.predicted.unwrap().sent, 7000.0);
        assert!(choice.others.iter().all(|(_, seconds)| *seconds >= choice.predicted.unwrap().seconds));
    }
}
