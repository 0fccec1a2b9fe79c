//! Reduction over a plan: index sets configured once, reduced many times.

use crate::Comm;
use crate::call_builder::{Body, CallBuilder};
use crate::input_checksum;
use crate::signature::custom_tag;
use skyphos_core::collectives::reduce::{self, Order};
use skyphos_core::frame::{CallKind, CallSig};
use skyphos_core::{CallRequest, Endpoint, Plan};
use skyphos_types::{Element, Error, ReduceOp, Result};
use std::future::{Ready, ready};
use std::marker::PhantomData;
use std::ops::DerefMut;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use tokio::sync::{Mutex, MutexGuard, OwnedMutexGuard};

/// Settings of [`Comm::reduce`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReduceOptions {
    /// The order in which values of one index are added.
    pub order: Order,
}

/// A reduction's access to its plan: `&mut Plan` for blocking calls, [`SharedPlan`] for several calls under way.
pub trait PlanAccess: Send {
    /// Waits for the plan.
    type Turn: Future<Output: DerefMut<Target = Plan> + Send> + Send;

    /// The signature of a reduction over the plan.
    fn sig(&self) -> CallSig;

    /// Enters the plan's queue.
    fn turn(self) -> Self::Turn;
}

impl<'a> PlanAccess for &'a mut Plan {
    type Turn = Ready<&'a mut Plan>;

    fn sig(&self) -> CallSig {
        plan_sig(self)
    }

    fn turn(self) -> Self::Turn {
        ready(self)
    }
}

fn plan_sig(plan: &Plan) -> CallSig {
    CallSig { width: plan.width as u32, n: plan.n, extra: plan.id, ..CallSig::plain(CallKind::Reduce) }
}

/// A plan for several calls under way, which use it one after the other in the order of the calls.
#[derive(Clone)]
pub struct SharedPlan {
    plan: Arc<Mutex<Plan>>,
    sig: CallSig,
}

impl SharedPlan {
    /// Shares a plan.
    pub fn new(plan: Plan) -> SharedPlan {
        SharedPlan { sig: plan_sig(&plan), plan: Arc::new(Mutex::new(plan)) }
    }

    /// The plan, while no call uses it.
    ///
    /// # Errors
    /// `BadInput` while a call uses it.
    pub fn try_lock(&self) -> Result<MutexGuard<'_, Plan>> {
        self.plan
            .try_lock()
            .map_err(|_| Error::bad_input("a call of this plan is under way: wait for it first"))
    }
}

impl PlanAccess for SharedPlan {
    type Turn = Turn;

    fn sig(&self) -> CallSig {
        self.sig
    }

    fn turn(self) -> Turn {
        let mut waiting = Box::pin(self.plan.lock_owned());
        match waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(plan) => Turn::First(Some(plan)),
            Poll::Pending => Turn::Queued(waiting),
        }
    }
}

/// A call in a shared plan's queue.
pub enum Turn {
    /// The first call of the queue.
    First(Option<OwnedMutexGuard<Plan>>),
    /// Behind other calls.
    Queued(Pin<Box<dyn Future<Output = OwnedMutexGuard<Plan>> + Send>>),
}

impl Future for Turn {
    type Output = OwnedMutexGuard<Plan>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Turn::First(plan) => Poll::Ready(plan.take().expect("no poll after the future is ready")),
            Turn::Queued(waiting) => waiting.as_mut().poll(context),
        }
    }
}

/// See [`Comm::reduce`].
pub struct Reduce<T, P: PlanAccess, V, Out> {
    plan: Option<P>,
    /// The position in the plan's queue, taken when the call got its number.
    turn: Option<P::Turn>,
    values: V,
    out: Out,
    element: PhantomData<T>,
}

impl<T: Element, P: PlanAccess, V: AsRef<[T]> + Send, Out: AsMut<[T]> + Send> Body for Reduce<T, P, V, Out> {
    type Output = Out;
    type Op = ReduceOp;
    type Options = ReduceOptions;

    fn request(&mut self, _: &Comm, op: &ReduceOp, _: &ReduceOptions) -> CallRequest {
        let plan = self.plan.take().expect("`request` is called once");
        let sig = plan.sig();
        self.turn = Some(plan.turn());
        CallSig { op: op.code(), dtype: T::DTYPE as u8, flags: custom_tag(op), ..sig }.into()
    }

    async fn perform(mut self, ep: &Endpoint, op: &ReduceOp, options: &ReduceOptions) -> Result<Out> {
        check_order(ep, options.order)?;
        input_checksum::values(ep, self.values.as_ref());
        let mut plan = self.turn.expect("`request` has queued the call").await;
        reduce::reduce(ep, &mut plan, self.values.as_ref(), self.out.as_mut(), op, options.order).await?;
        Ok(self.out)
    }
}

impl Comm {
    /// Reduces `values` (one row per index of the plan's `contribute`) into `out` (one per index of its `want`). Returns `out`.
    ///
    /// Collective. Values of repeated indices of `contribute` are added, and each repeated index of `want` gets the result. See
    /// [`Comm::configure`] for an example. Non-blocking calls take a [`SharedPlan`]:
    ///
    /// ```
    /// use skyphos::{Comm, SharedPlan};
    ///
    /// let ranks = Comm::local(2, &Default::default()).unwrap();
    /// ranks.map_ranks(|comm| {
    ///     let plan = SharedPlan::new(comm.configure([comm.rank(), 5], [5u32]).run().unwrap());
    ///     let first = comm.reduce(plan.clone(), vec![1.0, 2.0], vec![0.0]).start().unwrap();
    ///     let second = comm.reduce(plan, vec![1.0, 3.0], vec![0.0]).start().unwrap();
    ///     assert_eq!((first.wait().unwrap(), second.wait().unwrap()), (vec![4.0], vec![6.0]));
    /// });
    /// ```
    pub fn reduce<T: Element, P: PlanAccess, V: AsRef<[T]> + Send, Out: AsMut<[T]> + Send>(
        &self,
        plan: P,
        values: V,
        out: Out,
    ) -> CallBuilder<'_, Reduce<T, P, V, Out>> {
        CallBuilder::new(self, Reduce { plan: Some(plan), turn: None, values, out, element: PhantomData })
    }
}

/// Refuses an order of additions that may differ among replicas.
fn check_order(ep: &Endpoint, order: Order) -> Result<()> {
    match order {
        Order::Arrival if ep.node().is_replicated() => Err(Error::bad_input(
            "order=\"arrival\" adds values in the order in which messages arrive, which differs between replicas of a rank: use \
             order=\"rank\"",
        )),
        _ => Ok(()),
    }
}
