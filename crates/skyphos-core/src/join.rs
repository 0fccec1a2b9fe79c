//! Two futures of one call, polled together.

use crate::endpoint::Endpoint;
use skyphos_types::Result;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

/// Runs both futures until both are ready or one fails. They must use different rounds.
///
/// An endpoint stores the version of the call's box that its future has read. Here each of the two futures has a version of its
/// own, so an event that one future has read still wakes the other.
pub(crate) async fn join<A, B>(
    ep: &Endpoint,
    a: impl Future<Output = Result<A>>,
    b: impl Future<Output = Result<B>>,
) -> Result<(A, B)> {
    let (a, b) = (pin!(a), pin!(b));
    let (mut a, mut b) =
        (Part { work: a, done: None, seen: ep.seen() }, Part { work: b, done: None, seen: ep.seen() });
    poll_fn(|cx| {
        loop {
            if let Err(error) = a.poll(ep, cx).and_then(|()| b.poll(ep, cx)) {
                return Poll::Ready(Err(error));
            }
            match (a.done.take(), b.done.take()) {
                (Some(a), Some(b)) => return Poll::Ready(Ok((a, b))),
                (None, None) if a.seen != b.seen => {} // an event arrived after `a` was polled
                (of_a, of_b) => {
                    // A part that is done ignores later events.
                    ep.set_seen(if of_a.is_some() { b.seen } else { a.seen });
                    (a.done, b.done) = (of_a, of_b);
                    return Poll::Pending;
                }
            }
        }
    })
    .await
}

/// One of the two futures, its result once it is ready, and the version of the call's box that it has read.
struct Part<'a, F, R> {
    work: Pin<&'a mut F>,
    done: Option<R>,
    seen: u64,
}

impl<F: Future<Output = Result<R>>, R> Part<'_, F, R> {
    fn poll(&mut self, ep: &Endpoint, cx: &mut Context<'_>) -> Result<()> {
        if self.done.is_none() {
            ep.set_seen(self.seen);
            match self.work.as_mut().poll(cx) {
                Poll::Ready(done) => self.done = Some(done?),
                Poll::Pending => self.seen = ep.seen(),
            }
        }
        Ok(())
    }
}
