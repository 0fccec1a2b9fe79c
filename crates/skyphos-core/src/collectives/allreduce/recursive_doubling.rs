//! Allreduce by recursive doubling (SparCML §5.3.1): the fewest rounds, for small vectors.
//!
//! ```text
//! ranks p ≥ 2^k send theirs to p - 2^k, for 2^k the largest power of two that is at most P
//! for i = 0..k:  exchange all with rank XOR 2^i, and reduce both, the lower rank's first
//! ranks p - 2^k send the result to p
//! ```
//!
//! Cost: ⌈log2 P⌉ α (2 more if P is no power of two); bytes grow by what does not overlap. Any P. Both partners
//! add in the same order, so all ranks get the same bits.

use crate::endpoint::Endpoint;
use crate::stream::{Assembler, Part, Terms, exchange, exchange_and_fold};
use skyphos_kernels::stream::{Form, View};
use skyphos_types::{Element, Result};

/// Round of the extra ranks' inputs, and of their results.
const IN: u32 = 0x100;
const OUT: u32 = 0x101;

/// The reduction of all ranks' vectors.
pub async fn recursive_doubling<T: Element>(
    ep: &Endpoint,
    view: View<'_, T>,
    terms: Terms<'_>,
) -> Result<Form<T>> {
    let (me, size, width, n) = (ep.rank(), ep.size(), terms.shape.width, terms.n);
    let core = 1 << size.ilog2();
    let mut density = view.nnz(width) as f64 / n.max(1) as f64;
    let mut held = terms.encode_input(ep, view, 0, n);
    let mut part: Option<Part<T>> = None;
    if me >= core {
        exchange(ep, IN, &[(me - core, &held)], &[], |_, _| Ok(())).await?;
        let mut result = Assembler::new(&[0, n], terms.shape, terms.op.identity::<T>()?);
        exchange(ep, OUT, &[], &[me - core], |_, segment| result.take(ep, me - core, 0, segment).map(drop))
            .await?;
        result.check_complete(ep, me - core, 0)?;
        return Ok(result.finish());
    }
    if me + core < size {
        let sources = [me, me + core];
        let got = exchange_and_fold(ep, terms, IN, &[], &sources, &held, (0, n), density).await?;
        held = got.encode(ep, width, 0, n);
        part = Some(got);
    }
    let mut step = 1;
    while step < core {
        let partner = me ^ step;
        let sources = [me.min(partner), me.max(partner)];
        let sends = [(partner, held.as_slice())];
        let mut got = exchange_and_fold(ep, terms, step, &sends, &sources, &held, (0, n), density).await?;
        density = got.view().nnz(width) as f64 / n.max(1) as f64;
        step *= 2;
        if step == core {
            got.finish(terms.op, size, width)?;
        }
        if step < core || me + core < size {
            held = got.encode(ep, width, 0, n);
        }
        part = Some(got);
    }
    if me + core < size {
        exchange(ep, OUT, &[(me + core, &held)], &[], |_, _| Ok(())).await?;
    }
    match part {
        Some(part) => Ok(part.form),
        None => {
            let mut alone = exchange_and_fold(ep, terms, 0, &[], &[me], &held, (0, n), density).await?;
            alone.finish(terms.op, size, width)?;
            Ok(alone.form)
        }
    }
}
