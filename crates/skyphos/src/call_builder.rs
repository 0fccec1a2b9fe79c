//! [`CallBuilder`]: collects the settings of a collective, then runs, starts or prepares the call.

use crate::Comm;
use skyphos_core::{Call, CallRequest, Endpoint, Work};
use skyphos_types::{ReduceOp, Result};

/// The operation of a collective: a [`ReduceOp`], or `()` where nothing is combined.
pub trait OpSetting: Send + Sync + 'static {
    /// The default operation.
    const DEFAULT: Self;
    /// Whether the operation is code of the caller. Then only threads that wait for the call may poll it.
    fn is_custom(&self) -> bool;
}

impl OpSetting for ReduceOp {
    const DEFAULT: ReduceOp = ReduceOp::Sum;

    fn is_custom(&self) -> bool {
        matches!(self, ReduceOp::Custom(_))
    }
}

impl OpSetting for () {
    const DEFAULT: () = ();

    fn is_custom(&self) -> bool {
        false
    }
}

/// One collective: its inputs, and the code that runs with them.
pub trait Body: Send + Sized {
    /// The result on this rank.
    type Output: Send;
    /// The operation, if there is one.
    type Op: OpSetting;
    /// The optional settings.
    type Options: Default + Send + Sync + 'static;

    /// The signature that all ranks compare. Called once, when the call gets its number. Calls that depend on the state of the
    /// group read it here.
    fn request(&mut self, comm: &Comm, op: &Self::Op, options: &Self::Options) -> CallRequest;

    /// Moves and combines the data.
    fn perform(
        self,
        ep: &Endpoint,
        op: &Self::Op,
        options: &Self::Options,
    ) -> impl Future<Output = Result<Self::Output>> + Send;

    /// Runs the call on this thread. Collectives that learn from their calls override it.
    fn run(mut self, comm: &Comm, op: &Self::Op, options: &Self::Options) -> Result<Self::Output> {
        let request = self.request(comm, op, options);
        comm.call(request, async |ep| self.perform(ep, op, options).await)
    }
}

/// A collective with its inputs and settings, before the call is made.
///
/// [`run`](CallBuilder::run) blocks, and its inputs may be borrowed. [`start`](CallBuilder::start) returns while the call is
/// under way, so it owns its inputs. The call gets its number from `run`, `start` or `prepare`: all ranks must reach these in
/// the same order.
///
/// ```
/// use skyphos::{Comm, ReduceOp, SparseVec, IndexList};
///
/// let sums = Comm::local(2, &Default::default())?.map_ranks(|comm| {
///     let x = SparseVec::new(10, 1, IndexList::Narrow(vec![comm.rank(), 5]), vec![1.0, 2.0])?;
///     let largest = comm.allreduce(&x).op(ReduceOp::Max).run()?.sum; // blocks, borrows
///     let work = comm.allreduce(x).start()?; // owns
///     // … other work …
///     let sum = work.wait()?.sum;
///     Ok::<_, skyphos::Error>((largest.entries(), sum.entries()))
/// });
/// let want = ((vec![0, 1, 5], vec![1.0, 1.0, 2.0]), (vec![0, 1, 5], vec![1.0, 1.0, 4.0]));
/// assert_eq!(sums, [Ok(want.clone()), Ok(want)]);
/// # Ok::<(), skyphos::Error>(())
/// ```
#[must_use = "a call begins with `run`, `start` or `prepare`"]
pub struct CallBuilder<'c, B: Body> {
    comm: &'c Comm,
    body: B,
    op: B::Op,
    options: B::Options,
}

impl<'c, B: Body> CallBuilder<'c, B> {
    pub(crate) fn new(comm: &'c Comm, body: B) -> CallBuilder<'c, B> {
        CallBuilder { comm, body, op: B::Op::DEFAULT, options: B::Options::default() }
    }

    /// Sets the options.
    pub fn options(mut self, options: B::Options) -> Self {
        self.options = options;
        self
    }

    /// Runs the call to its end on this thread.
    ///
    /// # Errors
    /// The error that ended the call, on all ranks.
    pub fn run(self) -> Result<B::Output> {
        let CallBuilder { comm, body, op, options } = self;
        body.run(comm, &op, &options)
    }
}

impl<B: Body<Op = ReduceOp>> CallBuilder<'_, B> {
    /// The operation that combines values of one index, in place of [`ReduceOp::Sum`].
    pub fn op(mut self, op: ReduceOp) -> Self {
        self.op = op;
        self
    }
}

impl<B: Body<Output: 'static> + 'static> CallBuilder<'_, B> {
    /// Gives the call its number. [`Call::start`] or [`Call::run`] starts it later.
    ///
    /// # Errors
    /// `BadInput` if the group is closed, or was copied by a fork.
    pub fn prepare(self) -> Result<Call<B::Output>> {
        let CallBuilder { comm, mut body, op, options } = self;
        let (request, is_custom) = (body.request(comm, &op, &options), op.is_custom());
        comm.prepare(request, is_custom, move |ep| async move { body.perform(&ep, &op, &options).await })
    }

    /// Starts the call and returns; the call continues while this thread does other work.
    ///
    /// # Errors
    /// Those of [`CallBuilder::prepare`]. [`Work::wait`] returns later errors.
    pub fn start(self) -> Result<Work<B::Output>> {
        self.prepare().map(Call::start)
    }
}
