//! Coroutines: simulated processes take turns on one thread. Each has its own stack and continues where it stopped.

use corosensei::{Coroutine, CoroutineResult, Yielder};
use std::cell::Cell;
use std::ptr;

thread_local! {
    /// The suspend handle of the coroutine that runs on this thread; null if none runs.
    static BACK: Cell<*const Yielder<(), ()>> = const { Cell::new(ptr::null()) };
}

/// A function that stops at each [`park`].
pub(crate) struct Turns<R>(Coroutine<(), (), R>);

impl<R: 'static> Turns<R> {
    pub(crate) fn new(body: impl FnOnce() -> R + 'static) -> Turns<R> {
        Turns(Coroutine::new(move |back: &Yielder<(), ()>, ()| {
            BACK.set(ptr::from_ref(back));
            body()
        }))
    }

    /// Runs it until it stops or ends. Returns its result in the end.
    pub(crate) fn go_on(&mut self) -> Option<R> {
        let result = self.0.resume(());
        BACK.set(ptr::null());
        match result {
            CoroutineResult::Yield(()) => None,
            CoroutineResult::Return(result) => Some(result),
        }
    }
}

/// Stops the coroutine that runs on this thread, until its turn comes again.
pub(crate) fn park() {
    let back = BACK.get();
    assert!(!back.is_null(), "a process of a play waits outside of it");
    // SAFETY: the pointer is that of the running coroutine, on whose stack it lives while it runs. `go_on` clears the pointer when
    // the coroutine stops.
    unsafe { (*back).suspend(()) };
    BACK.set(back);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    #[test]
    fn they_take_turns_from_deep_within() {
        fn down(depth: u32, said: &Cell<u32>) {
            if depth > 0 {
                return down(depth - 1, said);
            }
            said.set(said.get() * 10 + 1);
            park();
            said.set(said.get() * 10 + 2);
        }
        let said = Rc::new(Cell::new(0));
        let one = |said: &Rc<Cell<u32>>| {
            let said = said.clone();
            Turns::new(move || down(100, &said))
        };
        let (mut a, mut b) = (one(&said), one(&said));
        assert!(a.go_on().is_none() && b.go_on().is_none() && a.go_on().is_some() && b.go_on().is_some());
        assert_eq!(said.get(), 1122);
    }
}
