//! The choices that simulated calls make, and the slots in which calls leave their results.

use crate::OuterChoice;
use skyphos_core::collectives::broadcast::RouteChoice;
use skyphos_tune::Algorithm;
use std::sync::{Arc, Mutex, PoisonError};

/// A value that a call stores for a later reader.
pub(super) type Slot<T> = Arc<Mutex<Option<T>>>;

pub(super) fn put<T>(slot: &Slot<T>, value: T) {
    *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
}

pub(super) fn take<T>(slot: &Slot<T>) -> Option<T> {
    slot.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// The choices that a call made.
pub(super) struct Choices {
    pub(super) algorithm: Algorithm,
    pub(super) degrees: Vec<u32>,
    /// Route and chunk length of a broadcast.
    pub(super) route: Option<RouteChoice>,
    /// Choices of a sum of outer products.
    pub(super) outer: Option<OuterChoice>,
}

impl Choices {
    pub(super) fn new(algorithm: Algorithm, degrees: Vec<u32>) -> Choices {
        Choices { algorithm, degrees, route: None, outer: None }
    }
}
