//! Configuration of index sets: configure once and reduce many times, or do both in one call.

use crate::Comm;
use crate::call_builder::{Body, CallBuilder};
use crate::decide::check_hint;
use crate::degrees::{self, agree_degrees};
use crate::index_input::IndexInput;
use crate::input_checksum;
use crate::signature::custom_tag;
use skyphos_core::butterfly::check_degrees;
use skyphos_core::collectives::allgather::allgather_numbers;
use skyphos_core::collectives::configure::{self, Missing, Request};
use skyphos_core::frame::{CallKind, CallSig};
use skyphos_core::{CallRequest, Endpoint, Plan};
use skyphos_kernels::{BlockHash, Indices};
use skyphos_plan::degrees::DEFAULT_ALPHA;
use skyphos_plan::{Sizes, predict_rows};
use skyphos_tune::Observations;
use skyphos_types::{Element, Error, GroupRank, ReduceOp, Result, Round};
use std::marker::PhantomData;

/// Settings of [`Comm::configure`]. All ranks must pass the same.
#[derive(Clone, Debug)]
pub struct ConfigureOptions {
    /// Size of the index space; `None`: one more than the largest index on any rank.
    pub n: Option<u64>,
    /// Numbers per index.
    pub width: usize,
    /// Degree of each layer; `None`: chosen by the planner.
    pub degrees: Option<Vec<u32>>,
    /// The treatment of a wanted index that no rank contributes.
    pub missing: Missing,
    /// The smallest message worth sending. With it, degrees are chosen by Kylix's rule (§IV).
    pub min_packet_bytes: Option<f64>,
    /// Expected indices in the union of all ranks' sets. With it, the planner needs no survey of the ranks.
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

    /// The signature that all ranks compare.
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

/// See [`Comm::configure`].
pub struct Configure<C, W> {
    contribute: C,
    want: W,
    observed: Observations,
}

impl<C: IndexInput, W: IndexInput> Body for Configure<C, W> {
    type Output = Plan;
    type Op = ();
    type Options = ConfigureOptions;

    fn request(&mut self, comm: &Comm, (): &(), options: &ConfigureOptions) -> CallRequest {
        self.observed = comm.tuner().observations;
        (options.sig(CallKind::Configure), options.arguments()).into()
    }

    async fn perform(self, ep: &Endpoint, (): &(), options: &ConfigureOptions) -> Result<Plan> {
        let lists = [self.contribute.indices(), self.want.indices()];
        let request = request::<f64>(ep, lists, &[], options, self.observed).await?;
        configure::configure(ep, request).await
    }
}

/// The result of [`Comm::configure_reduce`].
#[derive(Debug)]
pub struct ConfiguredReduction<Out> {
    /// The plan, for further reductions over the same indices.
    pub plan: Plan,
    /// The array with the result.
    pub out: Out,
}

/// See [`Comm::configure_reduce`].
pub struct ConfigureReduce<T, C, W, V, Out> {
    sets: Configure<C, W>,
    values: V,
    out: Out,
    element: PhantomData<T>,
}

impl<T, C, W, V, Out> Body for ConfigureReduce<T, C, W, V, Out>
where
    T: Element,
    C: IndexInput,
    W: IndexInput,
    V: AsRef<[T]> + Send,
    Out: AsMut<[T]> + Send,
{
    type Output = ConfiguredReduction<Out>;
    type Op = ReduceOp;
    type Options = ConfigureOptions;

    fn request(&mut self, comm: &Comm, op: &ReduceOp, options: &ConfigureOptions) -> CallRequest {
        self.sets.observed = comm.tuner().observations;
        (options.sig_with::<T>(op), options.arguments()).into()
    }

    async fn perform(
        mut self,
        ep: &Endpoint,
        op: &ReduceOp,
        options: &ConfigureOptions,
    ) -> Result<ConfiguredReduction<Out>> {
        let Configure { contribute, want, observed } = &self.sets;
        let values = self.values.as_ref();
        let request = request(ep, [contribute.indices(), want.indices()], values, options, *observed).await?;
        let plan = configure::configure_reduce(ep, request, values, self.out.as_mut(), op).await?;
        Ok(ConfiguredReduction { plan, out: self.out })
    }
}

impl Comm {
    /// Makes a plan from the indices that this rank contributes values for, and those that it wants.
    ///
    /// Indices are numbers of `0..n`, in any order, repeats allowed. Collective. [`Comm::reduce`] uses the plan.
    ///
    /// ```
    /// use skyphos::{Comm, ConfigureOptions};
    ///
    /// let ranks = Comm::local(2, &Default::default()).unwrap();
    /// let sums = ranks.map_ranks(|comm| {
    ///     let contribute = [comm.rank(), 5];
    ///     let options = ConfigureOptions::with_n(10);
    ///     let mut plan = comm.configure(&contribute, &[5u32]).options(options).run().unwrap();
    ///     comm.reduce(&mut plan, [1.0, 2.0], [0.0]).run().unwrap()
    /// });
    /// assert_eq!(sums, [[4.0], [4.0]]);
    /// ```
    pub fn configure<C: IndexInput, W: IndexInput>(
        &self,
        contribute: C,
        want: W,
    ) -> CallBuilder<'_, Configure<C, W>> {
        CallBuilder::new(self, Configure { contribute, want, observed: Observations::default() })
    }

    /// Does the work of [`Comm::configure`] and [`Comm::reduce`] in one pass down and up, for indices that change with every call. The
    /// result has the plan, which can be used again. Collective.
    ///
    /// ```
    /// use skyphos::{Comm, ConfigureOptions};
    ///
    /// let ranks = Comm::local(2, &Default::default()).unwrap();
    /// let sums = ranks.map_ranks(|comm| {
    ///     let call = comm.configure_reduce([comm.rank(), 5], [5u32], [1.0, 2.0], [0.0]);
    ///     call.options(ConfigureOptions::with_n(10)).run().unwrap().out
    /// });
    /// assert_eq!(sums, [[4.0], [4.0]]);
    /// ```
    pub fn configure_reduce<T, C, W, V, Out>(
        &self,
        contribute: C,
        want: W,
        values: V,
        out: Out,
    ) -> CallBuilder<'_, ConfigureReduce<T, C, W, V, Out>>
    where
        T: Element,
        C: IndexInput,
        W: IndexInput,
        V: AsRef<[T]> + Send,
        Out: AsMut<[T]> + Send,
    {
        let sets = Configure { contribute, want, observed: Observations::default() };
        CallBuilder::new(self, ConfigureReduce { sets, values, out, element: PhantomData })
    }
}

/// Prepares the sets, and agrees on n and the degrees unless the options have them. `T` is the type of the values that are
/// reduced; `values` is empty if only later calls have any.
async fn request<T: Element>(
    ep: &Endpoint,
    lists: [Indices<'_>; 2],
    values: &[T],
    options: &ConfigureOptions,
    observed: Observations,
) -> Result<Request> {
    input_checksum::lists(ep, lists, values);
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
    // For a prime number of ranks, or one, there is only one choice of degrees.
    let one_choice = (2..ep.size()).all(|d| !ep.size().is_multiple_of(d));
    let mut considered = Vec::new();
    let degrees = match &options.degrees {
        Some(degrees) => degrees.clone(),
        None if one_choice => vec![ep.size()],
        None => {
            let ConfigureOptions { width, min_packet_bytes, expected_nnz, .. } = *options;
            let input = degrees::DegreesInput {
                n,
                hash,
                row_bytes: width * size_of::<T>(),
                min_packet_bytes,
                expected_nnz,
            };
            considered = agree_degrees(ep, &input, (&contribute, &want), observed).await?;
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
        // The call's number, which is the same on all ranks even after failed calls.
        id: ep.call_number().0 as u32,
        sizes: None,
    })
}

/// One more than the largest index of all ranks.
async fn agree_n(ep: &Endpoint, contribute: Indices<'_>, want: Indices<'_>) -> Result<u64> {
    let end = contribute.end().max(want.end()).min(1 << 63);
    let all = allgather_numbers(ep, Round(0), &[end]).await?;
    if let Some(rank) = all.iter().position(|numbers| numbers[0] > 1 << 63) {
        return Err(ep.corrupt(GroupRank(rank as u32), "an index above 2^63"));
    }
    Ok(all.iter().map(|numbers| numbers[0]).max().unwrap_or(0))
}

/// Predicted rows that this rank sends to others in each layer, down and up: Kylix Prop. 4.1 with this rank's counts. Compare
/// with [`Plan::volume`] to check the model. Not collective.
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
