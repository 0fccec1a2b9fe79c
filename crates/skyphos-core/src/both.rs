//! Two parts of one call at once.

use crate::endpoint::Endpoint;
use skyphos_types::Result;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

/// Runs both until they are done, or one fails. They must use other rounds.
///
/// An endpoint remembers what its call has seen of what happened; here each part has a memory of its own.
pub(crate) async fn both<A, B>(
    ep: &Endpoint,
    a: impl Future<Output = Result<A>>,
    b: impl Future<Output = Result<B>>,
) -> Result<(A, B)> {
    let (mut a, mut b) = (pin!(a), pin!(b));
    let (mut of_a, mut of_b) = (None, None);
    let start = ep.seen();
    let (mut seen_a, mut seen_b) = (start, start);
    poll_fn(|cx| {
        loop {
            if of_a.is_none() {
                ep.set_seen(seen_a);
                match a.as_mut().poll(cx) {
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Ready(Ok(done)) => of_a = Some(done),
                    Poll::Pending => seen_a = ep.seen(),
                }
            }
            if of_b.is_none() {
                ep.set_seen(seen_b);
                match b.as_mut().poll(cx) {
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Ready(Ok(done)) => of_b = Some(done),
                    Poll::Pending => seen_b = ep.seen(),
                }
            }
            match (of_a.take(), of_b.take()) {
                (Some(a), Some(b)) => return Poll::Ready(Ok((a, b))),
                (None, None) if seen_a != seen_b => {} // something came between them
                (a, b) => {
                    // Whoever is done needs to see no more.
                    if a.is_some() {
                        ep.set_seen(seen_b);
                    } else if b.is_some() {
                        ep.set_seen(seen_a);
                    }
                    (of_a, of_b) = (a, b);
                    return Poll::Pending;
                }
            }
        }
    })
    .await
}
