//! Settings of a group over MPI.

use crate::abi::Handle;
use std::path::PathBuf;
use std::time::Duration;

/// Settings of a group over MPI.
#[derive(Clone, Debug)]
pub struct Options {
    /// The communicator whose processes form the group; `None` for `MPI_COMM_WORLD`. All of them call [`crate::connect`].
    pub comm: Option<Handle>,
    /// Libraries, and folders where one may be, before the system's own.
    pub places: Vec<PathBuf>,
    /// Processes that the launcher says it has started; `None` if it says nothing.
    pub launched: Option<u32>,
    /// Longest wait for all processes to call [`crate::connect`].
    pub timeout: Duration,
    /// Asked now and then: has the user interrupted?
    pub interrupted: Option<fn() -> bool>,
}
