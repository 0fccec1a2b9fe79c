//! The ranks of a simulated cluster, and their calls.

use super::choices::{Choices, Slot, put, take};
use super::collective::Collective;
use super::data::Sampler;
use super::outer::outer_call;
use super::probe::probe;
use super::scenario::Scenario;
use super::transfers::{broadcast_call, shuffle_call};
use crate::allreduce_options::AllreduceOptions;
use crate::configure::ConfigureOptions;
use crate::reduce::SharedPlan;
use crate::{Comm, Explanation, Indices, SparseVec};
use skyphos_core::collectives::configure::{Missing, Request, configure};
use skyphos_core::collectives::reduce::reduce_sized;
use skyphos_core::collectives::sets::{SetSizes, UnionSize};
use skyphos_core::frame::{CallKind, CallSig};
use skyphos_core::{Call, Plan};
use skyphos_kernels::stream::{Form, IndexList};
use skyphos_kernels::{BlockHash, Prepared};
use skyphos_sim::Cluster;
use skyphos_tune::Algorithm;
use skyphos_types::{Error, Result};
use std::sync::Arc;

/// One rank.
struct Rank {
    comm: Comm,
    indices: Arc<Vec<u64>>,
    plan: Slot<Plan>,
    shared: Option<SharedPlan>,
}

/// The ranks of a cluster.
pub(super) struct Ranks {
    all: Vec<Rank>,
    choices: Slot<Choices>,
    degrees: Vec<u32>,
    /// Sizes of unions, for simulations without data.
    union: UnionSize,
}

impl Ranks {
    /// Makes the ranks and draws their indices. Calls `progress(ranks)` now and then with the number of ranks that have their
    /// indices; drawing ends with an error if it returns false.
    pub(super) fn new(
        scenario: &Scenario,
        cluster: &Cluster,
        mut progress: impl FnMut(usize) -> bool,
    ) -> Result<Ranks> {
        let Scenario { n, entries, law, seed, sized, collective, .. } = *scenario;
        let has_no_indices = sized || !collective.has_indices();
        let sampler = Sampler::new(law, n, entries);
        let profile = scenario.asks_planner().then(|| probe(&scenario.network, seed)).transpose()?;
        let make_rank = |(rank, transport): (u32, _)| {
            let comm = Comm::over(transport, Cluster::settings())?;
            comm.set_profile(profile);
            let indices = if has_no_indices {
                Vec::new()
            } else {
                sampler.draw(seed, rank, &mut || progress(rank as usize))?
            };
            Ok(Rank { comm, indices: Arc::new(indices), plan: Slot::default(), shared: None })
        };
        let all = (0..).zip(cluster.transports()).map(make_rank).collect::<Result<_>>()?;
        let curve = law.union(n, entries).at_divisors(scenario.network.ranks);
        let degrees = match (&scenario.degrees, profile) {
            (None, Some(profile)) if sized && collective.is_plan() => {
                scenario.plan_degrees(&curve, &profile, scenario.network.topology()?.ranks_per_host())
            }
            (degrees, _) => degrees.clone().unwrap_or_default(),
        };
        if sized {
            scenario.check_frames(&law.union(n, entries), &degrees, profile.as_ref())?;
        }
        let union: UnionSize = Arc::new(move |m| curve.entries(m));
        Ok(Ranks { all, choices: Slot::default(), degrees, union })
    }

    /// The calls of all ranks in a phase.
    pub(super) fn calls(&mut self, scenario: &Scenario, phase: &str) -> Result<Vec<Call<()>>> {
        let call = |rank: &mut Rank| match scenario.collective {
            Collective::Broadcast => broadcast_call(&rank.comm, scenario, &self.choices),
            Collective::Shuffle => shuffle_call(&rank.comm, scenario),
            Collective::OuterProductSum => outer_call(&rank.comm, scenario, &self.choices),
            _ if scenario.sized => rank.sized_call(scenario, phase, &self.degrees, &self.union),
            _ => rank.call(scenario, phase, &self.choices),
        };
        self.all.iter_mut().map(call).collect()
    }

    /// Takes the plans and the choices of the last calls.
    pub(super) fn take_choices(&mut self, scenario: &Scenario) -> Choices {
        for rank in &mut self.all {
            if let Some(plan) = take(&rank.plan) {
                self.degrees.clone_from(&plan.degrees);
                match scenario.sized {
                    true => put(&rank.plan, plan),
                    false => rank.shared = Some(SharedPlan::new(plan)),
                }
            }
        }
        take(&self.choices).unwrap_or_else(|| Choices::new(scenario.algorithm, self.degrees.clone()))
    }
}

impl Rank {
    fn call(&mut self, scenario: &Scenario, phase: &str, choices: &Slot<Choices>) -> Result<Call<()>> {
        let Scenario { n, row_bytes, .. } = *scenario;
        let (width, comm) = (row_bytes / 4, &self.comm);
        let ones = |rows: usize| vec![1f32; rows * width];
        let vector = |indices: &Arc<Vec<u64>>| {
            let indices = match n > 1 << 32 {
                true => IndexList::Wide(indices.to_vec()),
                false => IndexList::Narrow(indices.iter().map(|i| *i as u32).collect()),
            };
            SparseVec { n, width, form: Form::Sparse { values: vec![1f32; indices.len() * width], indices } }
        };
        let x = || vector(&self.indices);
        let allreduce = AllreduceOptions {
            algorithm: scenario.algorithm,
            degrees: scenario.degrees.clone(),
            ..AllreduceOptions::default()
        };
        let options = ConfigureOptions {
            n: Some(n),
            width,
            degrees: scenario.degrees.clone(),
            missing: Missing::Error,
            ..ConfigureOptions::default()
        };
        let (list, slot) = (|| self.indices.clone(), self.plan.clone());
        let (choices, is_rank_0) = (choices.clone(), self.comm.rank() == 0);
        let rows = || (ones(self.indices.len()), ones(self.indices.len()));
        match phase {
            "barrier" => comm.barrier().prepare(),
            "configure" => {
                let call = comm.configure(list(), list()).options(options).prepare()?;
                Ok(call.map(move |plan| put(&slot, plan)))
            }
            "reduce" => {
                let plan = self.shared.clone().expect("`configure` runs first");
                let (values, out) = rows();
                Ok(comm.reduce(plan, values, out).prepare()?.map(drop))
            }
            "configure_reduce" => {
                let (values, out) = rows();
                let call = comm.configure_reduce(list(), list(), values, out).options(options).prepare()?;
                Ok(call.map(move |done| put(&slot, done.plan)))
            }
            "allreduce" => Ok(comm.allreduce(x()).options(allreduce).prepare()?.map(move |done| {
                let Explanation { algorithm, degrees, .. } = done.explanation;
                if is_rank_0 {
                    let has_layers = algorithm == Algorithm::Butterfly;
                    put(&choices, Choices::new(algorithm, if has_layers { degrees } else { Vec::new() }));
                }
            })),
            "allreduce_dense" => {
                let (values, out) = (ones(n as usize), ones(n as usize));
                let call = comm.allreduce_dense(values, out).options(allreduce).prepare()?;
                Ok(call.map(move |done| {
                    if is_rank_0 {
                        put(&choices, Choices::new(done.explanation.algorithm, Vec::new()));
                    }
                }))
            }
            "reduce_scatter" => {
                let call = comm.reduce_scatter(x()).options(allreduce).prepare()?;
                Ok(call.map(move |done| {
                    if is_rank_0 {
                        put(&choices, Choices::new(Algorithm::Butterfly, done.explanation.degrees));
                    }
                }))
            }
            "reduce_to_root" => Ok(comm.reduce_to_root(x(), 0).options(allreduce).prepare()?.map(drop)),
            "allgather" => Ok(comm.allgather(x()).prepare()?.map(drop)),
            "gather" => Ok(comm.gather(x(), 0).prepare()?.map(drop)),
            "alltoall" => {
                let size = comm.size() as usize;
                let part = |j: usize| {
                    vector(&Arc::new(self.indices.iter().copied().skip(j).step_by(size).collect()))
                };
                Ok(comm.alltoall(n, width, (0..size).map(part).collect()).prepare()?.map(drop))
            }
            "topk_allreduce" => {
                if width != 1 {
                    return Err(Error::bad_input(
                        "topk_allreduce takes one number per index: rows of 4 bytes",
                    ));
                }
                let k = scenario.entries.round().max(1.0) as u64;
                Ok(comm.topk_allreduce(x(), k).prepare()?.map(drop))
            }
            other => Err(Error::bad_input(format!("unknown collective {other:?}"))),
        }
    }

    /// [`Rank::call`] with lengths in place of data.
    fn sized_call(
        &mut self,
        scenario: &Scenario,
        phase: &str,
        degrees: &[u32],
        union: &UnionSize,
    ) -> Result<Call<()>> {
        let (slot, row_bytes, n) = (self.plan.clone(), scenario.row_bytes, scenario.n);
        if phase == "reduce" {
            let mut plan = take(&slot).expect("`configure` runs first");
            let sig = CallSig::plain(CallKind::Reduce);
            return self.comm.prepare(sig, false, move |ep| async move {
                let done = reduce_sized(&ep, &mut plan, row_bytes).await;
                put(&slot, plan);
                done
            });
        }
        let hash = BlockHash::new(n, self.comm.size());
        let empty = || -> Result<Prepared> { Indices::U64(&[]).prepare(n, hash, "indices") };
        let sizes = SetSizes {
            out: union.clone(),
            want: union.clone(),
            same: true,
            n,
            range: hash.range(),
            joined: 1,
        };
        let request = Request {
            considered: Vec::new(),
            n,
            width: 1,
            degrees: degrees.to_vec(),
            missing: Missing::Error,
            hash,
            contribute: empty()?,
            contribute_len: 0,
            want: empty()?,
            want_len: 0,
            id: 0,
            sizes: Some(sizes),
        };
        self.comm.prepare(CallSig::plain(CallKind::Configure), false, move |ep| async move {
            put(&slot, configure(&ep, request).await?);
            Ok(())
        })
    }
}
