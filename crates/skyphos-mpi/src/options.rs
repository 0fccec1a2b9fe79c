//! Settings of a group over MPI.

use crate::abi::Handle;
use std::path::PathBuf;
use std::time::Duration;

/// Settings of a group over MPI.
#[derive(Clone, Debug)]
pub struct Options {
    /// The communicator whose processes form the group; `None` for `MPI_COMM_WORLD`. All of them call [`crate::connect`].
    pub comm: Option<Handle>,
    /// Libraries, and folders to search, before the system's own.
    pub places: Vec<PathBuf>,
    /// Number of processes that the launcher reports; `None` if it reports none.
    pub launched: Option<u32>,
    /// Longest wait for all processes to call [`crate::connect`].
    pub timeout: Duration,
    /// Called from time to time: whether the user has interrupted the program.
    pub interrupted: Option<fn() -> bool>,
}
