//! Index sets known ahead: configure once, reduce many times; or both at once.

use crate::Comm;
use crate::decide::check_hint;
use crate::degrees::{Asked, agree};
use crate::signature::custom_tag;
use crate::vouch;
use skyphos_core::butterfly::check_degrees;
use skyphos_core::collectives::allgather::allgather_numbers;
use skyphos_core::collectives::configure::{self, Missing, Request};
use skyphos_core::collectives::reduce::{self, Order};
use skyphos_core::frame::{CallKind, CallSig};
use skyphos_core::{Call, Endpoint, Plan};
use skyphos_kernels::{BlockHash, Indices};
use skyphos_plan::degrees::DEFAULT_ALPHA;
use skyphos_plan::{Sizes, predict_rows};
use skyphos_tune::Observations;
use skyphos_types::{Element, Error, ReduceOp, Result};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use tokio::sync::{Mutex, MutexGuard, OwnedMutexGuard};

/// Settings of [`Comm::configure`]. All ranks must pass the same.
#[derive(Clone, Debug)]
pub struct ConfigureOptions {
    /// Size of the index space; `None`: one more than the largest index on any rank.
    pub n: Option<u64>,
    /// Numbers an index.
    pub width: usize,
    /// Degree of each layer; `None`: chosen by the planner.
    pub degrees: Option<Vec<u32>>,
    /// What becomes of an index that is wanted and nobody contributes.
    pub missing: Missing,
    /// Smallest message worth sending: degrees are then chosen by the papers' rule.
    pub min_packet_bytes: Option<f64>,
    /// Indices that all ranks' sets should have together: the planner then need not ask the other ranks.
    pub expected_nnz: Option<u64>,
}

impl Default for ConfigureOptions {
    fn default() -> ConfigureOptions {
        ConfigureOptions {
            n: None,
            width: 1,
            degrees: None,
            missing: Missing::Error,
            min_packet_bytes: None,
            expected_nnz: None,
        }
    }
}

impl ConfigureOptions {
    /// The defaults, for an index space of `n`.
    pub fn with_n(n: u64) -> ConfigureOptions {
        ConfigureOptions { n: Some(n), ..ConfigureOptions::default() }
    }

    /// What takes part in the check that all ranks called the same.
    fn sig(&self, kind: CallKind) -> CallSig {
        let mut extra = 0u32;
        for d in self.degrees.iter().flatten() {
            extra = (extra ^ d).wrapping_mul(0x9e37_79b1).rotate_left(13);
        }
        extra ^= self.min_packet_bytes.map_or(0, |bytes| (bytes.to_bits() >> 32) as u32 | 1);
        extra ^= self.expected_nnz.map_or(0, |nnz| (nnz ^ nnz >> 32) as u32 | 1).rotate_left(7);
        CallSig {
            flags: u8::from(self.missing == Missing::Identity),
            width: u32::try_from(self.width).unwrap_or(u32::MAX),
            n: self.n.unwrap_or(0),
            extra,
            ..CallSig::plain(kind)
        }
    }

    fn sig_with<T: Element>(&self, op: &ReduceOp) -> CallSig {
        let sig = self.sig(CallKind::ConfigureReduce);
        CallSig { op: op.code(), dtype: T::DTYPE as u8, flags: sig.flags | custom_tag(op) << 1, ..sig }
    }
}

impl Comm {
    /// Tells the group which indices this rank contributes values for and which it wants.
    ///
    /// Indices are of the space `0..n`, in any order, repeats allowed. Collective.
    pub fn configure<'a>(
        &self,
        contribute: impl Into<Indices<'a>>,
        want: impl Into<Indices<'a>>,
        options: &ConfigureOptions,
    ) -> Result<Plan> {
        let (contribute, want, seen) = (contribute.into(), want.into(), *self.observed());
        self.call((options.sig(CallKind::Configure), options.arguments()), async |ep| {
            let request = request::<f64>(ep, [contribute, want], &[], options, seen).await?;
            configure::configure(ep, request).await
        })
    }

    /// [`Comm::configure`] that can go on by itself.
    pub fn configure_call(&self, sets: impl IndexSets, options: ConfigureOptions) -> Result<Call<Plan>> {
        let seen = *self.observed();
        self.prepare((options.sig(CallKind::Configure), options.arguments()), None, move |ep| async move {
            let lists = [sets.contribute(), sets.want()];
            let request = request::<f64>(&ep, lists, &[], &options, seen).await?;
            configure::configure(&ep, request).await
        })
    }

    /// Reduces `values` (rows along the plan's `contribute`) into `out` (rows along its `want`).
    ///
    /// Collective. Repeated indices of `contribute` are added up, of `want` answered each.
    pub fn reduce<T: Element>(
        &self,
        plan: &mut Plan,
        values: &[T],
        out: &mut [T],
        op: &ReduceOp,
        order: Order,
    ) -> Result<()> {
        let sig = reduce_sig::<T>(plan.n, plan.width, plan.id, op);
        self.call(sig, async |ep| {
            check_order(ep, order)?;
            vouch::values(ep, values);
            reduce::reduce(ep, plan, values, out, op, order).await
        })
    }

    /// [`Comm::reduce`] that can go on by itself; gives `out` back. Calls of one plan follow each other in the order
    /// in which they were made.
    pub fn reduce_call<T: Element, Out: AsMut<[T]> + Send + 'static>(
        &self,
        plan: &SharedPlan,
        values: impl AsRef<[T]> + Send + 'static,
        mut out: Out,
        op: ReduceOp,
        order: Order,
    ) -> Result<Call<Out>> {
        let sig = reduce_sig::<T>(plan.n, plan.width, plan.id, &op);
        let turn = plan.turn();
        self.prepare(sig, Some(&op.clone()), move |ep| async move {
            check_order(&ep, order)?;
            vouch::values(&ep, values.as_ref());
            let mut plan = turn.await;
            reduce::reduce(&ep, &mut plan, values.as_ref(), out.as_mut(), &op, order).await?;
            Ok(out)
        })
    }

    /// [`Comm::configure`] and [`Comm::reduce`] in one pass down and up, for indices that change
    /// every time. Returns the plan too: it can be used again.
    pub fn configure_reduce<'a, T: Element>(
        &self,
        contribute: impl Into<Indices<'a>>,
        want: impl Into<Indices<'a>>,
        values: &[T],
        out: &mut [T],
        op: &ReduceOp,
        options: &ConfigureOptions,
    ) -> Result<Plan> {
        let (contribute, want, seen) = (contribute.into(), want.into(), *self.observed());
        self.call((options.sig_with::<T>(op), options.arguments()), async |ep| {
            let request = request(ep, [contribute, want], values, options, seen).await?;
            configure::configure_reduce(ep, request, values, out, op).await
        })
    }

    /// [`Comm::configure_reduce`] that can go on by itself; gives `out` back.
    pub fn configure_reduce_call<T: Element, Out: AsMut<[T]> + Send + 'static>(
        &self,
        sets: impl IndexSets,
        values: impl AsRef<[T]> + Send + 'static,
        mut out: Out,
        op: ReduceOp,
        options: ConfigureOptions,
    ) -> Result<Call<(Plan, Out)>> {
        let seen = *self.observed();
        self.prepare(
            (options.sig_with::<T>(&op), options.arguments()),
            Some(&op.clone()),
            move |ep| async move {
                let (lists, values, row) = ([sets.contribute(), sets.want()], values.as_ref(), out.as_mut());
                let request = request(&ep, lists, values, &options, seen).await?;
                let plan = configure::configure_reduce(&ep, request, values, row, &op).await?;
                Ok((plan, out))
            },
        )
    }
}

fn reduce_sig<T: Element>(n: u64, width: usize, id: u32, op: &ReduceOp) -> CallSig {
    CallSig {
        op: op.code(),
        dtype: T::DTYPE as u8,
        flags: custom_tag(op),
        width: width as u32,
        n,
        extra: id,
        ..CallSig::plain(CallKind::Reduce)
    }
}

/// Where a call that goes on by itself has its index lists.
pub trait IndexSets: Send + 'static {
    /// Indices that the rank has values for. The same at any time.
    fn contribute(&self) -> Indices<'_>;
    /// Indices that it wants. The same at any time.
    fn want(&self) -> Indices<'_>;
}

/// A plan that several calls under way use, one after the other.
pub struct SharedPlan {
    plan: Arc<Mutex<Plan>>,
    n: u64,
    width: usize,
    id: u32,
}

impl SharedPlan {
    /// Shares a plan.
    pub fn new(plan: Plan) -> SharedPlan {
        SharedPlan { n: plan.n, width: plan.width, id: plan.id, plan: Arc::new(Mutex::new(plan)) }
    }

    /// The plan, while no call uses it.
    pub fn try_lock(&self) -> Result<MutexGuard<'_, Plan>> {
        self.plan
            .try_lock()
            .map_err(|_| Error::bad_input("a call of this plan is under way: wait for it first"))
    }

    /// Takes a place in the queue now.
    fn turn(&self) -> impl Future<Output = OwnedMutexGuard<Plan>> + Send + 'static {
        let mut waiting = Box::pin(self.plan.clone().lock_owned());
        let at_once = waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        async move {
            match at_once {
                Poll::Ready(plan) => plan,
                Poll::Pending => waiting.await,
            }
        }
    }
}

/// Prepares the sets; agrees on n and the degrees where they were left open. Without values yet: for numbers of `T`'s size.
async fn request<T: Element>(
    ep: &Endpoint,
    lists: [Indices<'_>; 2],
    values: &[T],
    options: &ConfigureOptions,
    seen: Observations,
) -> Result<Request> {
    vouch::lists(ep, lists, values);
    let [contribute, want] = lists;
    if let Some(degrees) = &options.degrees {
        check_degrees(degrees, ep.size())?;
    }
    if options.width == 0 {
        return Err(Error::bad_input("width must be at least 1"));
    }
    if options.n.is_some_and(|n| n > 1 << 63) {
        return Err(Error::bad_input(format!("n = {} is above 2^63", options.n.unwrap_or(0))));
    }
    if options.min_packet_bytes.is_some_and(|bytes| bytes.is_nan() || bytes < 0.0) {
        return Err(Error::bad_input("min_packet must be 0 or more bytes"));
    }
    let n = match options.n {
        Some(n) => n,
        None => agree_n(ep, contribute, want).await?,
    };
    let hash = BlockHash::new(n, ep.size());
    check_hint(n, options.expected_nnz)?;
    let (contribute_len, want_len) = (contribute.len(), want.len());
    let same = contribute.is_same_memory(want);
    let contribute = contribute.prepare(n, hash, "contribute")?;
    let want = if same { contribute.clone() } else { want.prepare(n, hash, "want")? };
    // A prime (or single) group has one choice of degrees: nothing to agree on.
    let one_choice = (2..ep.size()).all(|d| !ep.size().is_multiple_of(d));
    let mut considered = Vec::new();
    let degrees = match &options.degrees {
        Some(degrees) => degrees.clone(),
        None if one_choice => vec![ep.size()],
        None => {
            let ConfigureOptions { width, min_packet_bytes, expected_nnz, .. } = *options;
            let asked = Asked { n, hash, row_bytes: width * size_of::<T>(), min_packet_bytes, expected_nnz };
            considered = agree(ep, &asked, (&contribute, &want), seen).await?;
            considered[0].degrees.clone()
        }
    };
    Ok(Request {
        n,
        width: options.width,
        degrees,
        missing: options.missing,
        hash,
        contribute,
        contribute_len,
        want,
        want_len,
        considered,
        // The call's number: the same on all ranks, whatever failed before.
        id: ep.call_number() as u32,
        sizes: None,
    })
}

/// One more than the largest index of all ranks.
async fn agree_n(ep: &Endpoint, contribute: Indices<'_>, want: Indices<'_>) -> Result<u64> {
    let end = contribute.end().max(want.end()).min(1 << 63);
    let all = allgather_numbers(ep, 0, &[end]).await?;
    if let Some(rank) = all.iter().position(|said| said[0] > 1 << 63) {
        return Err(ep.corrupt(rank as u32, "an index above 2^63"));
    }
    Ok(all.iter().map(|said| said[0]).max().unwrap_or(0))
}

/// Rows that this rank is expected to send to others in each layer, down and up, by Kylix Prop. 4.1
/// from its own counts: beside [`Plan::volume`], a check of the model. Not collective.
pub fn predicted_rows(plan: &Plan) -> Vec<(f64, f64)> {
    let sizes = Sizes {
        ranks: plan.degrees.iter().product(),
        n: plan.n,
        contribute: plan.contribute.set.len() as f64,
        want: plan.want.set.len() as f64,
        row_bytes: 1.0,
        alpha: DEFAULT_ALPHA,
    };
    predict_rows(&sizes, &plan.degrees)
}

/// Refuses an order of additions that replicas of a rank would not share.
fn check_order(ep: &Endpoint, order: Order) -> Result<()> {
    match order {
        Order::Arrival if ep.node().is_replicated() => Err(Error::bad_input(
            "order=\"arrival\" adds up in the order in which messages come, which replicas of a rank do not share: use \
             order=\"rank\"",
        )),
        _ => Ok(()),
    }
}
