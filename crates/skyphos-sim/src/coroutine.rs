//! Coroutines: simulated processes take turns on one thread. Each has its own stack and continues where it stopped.

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use std::cell::{Cell, RefCell};
use std::ptr;

/// The largest number of unused stacks that a thread keeps.
const MAX_UNUSED_STACKS: usize = 64;

thread_local! {
    /// Stacks of processes that have ended, for the next ones: mapping a stack and touching its pages takes long.
    static UNUSED_STACKS: RefCell<Vec<DefaultStack>> = const { RefCell::new(Vec::new()) };

    /// The suspend handle of the coroutine that runs on this thread; null if none runs.
    static SUSPEND: Cell<*const Yielder<(), ()>> = const { Cell::new(ptr::null()) };
}

/// A function that stops at each [`park`]. `None` once it has ended.
pub(crate) struct SimProcess<R>(Option<Coroutine<(), (), R>>);

impl<R: 'static> SimProcess<R> {
    pub(crate) fn new(body: impl FnOnce() -> R + 'static) -> SimProcess<R> {
        let stack = UNUSED_STACKS.with_borrow_mut(Vec::pop).unwrap_or_default();
        SimProcess(Some(Coroutine::with_stack(stack, move |suspend: &Yielder<(), ()>, ()| {
            SUSPEND.set(ptr::from_ref(suspend));
            body()
        })))
    }

    /// Runs the process until it stops or ends. Returns its result once it has ended.
    pub(crate) fn resume(&mut self) -> Option<R> {
        let coroutine = self.0.as_mut().expect("a process that has ended is not resumed");
        let result = coroutine.resume(());
        SUSPEND.set(ptr::null());
        match result {
            CoroutineResult::Yield(()) => None,
            CoroutineResult::Return(result) => {
                let ended = self.0.take();
                UNUSED_STACKS.with_borrow_mut(|unused| {
                    if unused.len() < MAX_UNUSED_STACKS {
                        unused.extend(ended.map(Coroutine::into_stack));
                    }
                });
                Some(result)
            }
        }
    }
}

/// Stops the coroutine that runs on this thread, until its turn comes again.
pub(crate) fn park() {
    let suspend = SUSPEND.get();
    assert!(!suspend.is_null(), "a process waits outside of a coroutine");
    // SAFETY: the pointer leads to the running coroutine's suspend handle, which lives on its stack while it runs. `resume` clears
    // the pointer when the coroutine stops.
    unsafe { (*suspend).suspend(()) };
    SUSPEND.set(suspend);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    #[test]
    fn coroutines_stop_within_nested_calls() {
        fn down(depth: u32, order: &Cell<u32>) {
            if depth > 0 {
                return down(depth - 1, order);
            }
            order.set(order.get() * 10 + 1);
            park();
            order.set(order.get() * 10 + 2);
        }
        let order = Rc::new(Cell::new(0));
        let one = |order: &Rc<Cell<u32>>| {
            let order = order.clone();
            SimProcess::new(move || down(100, &order))
        };
        let (mut a, mut b) = (one(&order), one(&order));
        assert!(a.resume().is_none() && b.resume().is_none() && a.resume().is_some() && b.resume().is_some());
        assert_eq!(order.get(), 1122);
    }
}
