//! Frames over MPI. The library, MPICH or Open MPI or another with the standard ABI of MPI 5.0, is found and loaded at run
//! time.
//!
//! Read [`abi`] (the values of MPI's names), [`library`] (the library and its functions), then [`transport`].

pub mod abi;
mod communicator;
mod hosts;
mod inbox;
pub mod library;
mod options;
mod transport;
mod waiting;

pub use abi::Handle;
pub use library::Library;
pub use options::Options;
pub use transport::Mpi;

use skyphos_types::{Error, Result};
use std::path::PathBuf;
use std::time::Instant;
use waiting::Until;

/// Whether there is a library to use. Opens it without initialising it.
pub fn is_there(places: &[PathBuf]) -> bool {
    Library::is_there(places)
}

/// Forms a group of a communicator's processes, on a duplicate of it.
///
/// # Errors
/// `BadInput` if there is no library that can be used, or it was started by another MPI's launcher; `Timeout` if not all
/// processes call it; `Interrupted`.
pub fn connect(options: &Options) -> Result<Mpi> {
    let library = Library::get(&options.places)?;
    let until = Until { end: Instant::now() + options.timeout, options };
    let world = options.comm.unwrap_or(library.constants.comm_world);
    let (rank, size) = communicator::rank_and_size(library, world)?;
    if let Some(launched) =
        options.launched.filter(|launched| *launched > 1 && size == 1 && options.comm.is_none())
    {
        return Err(Error::bad_input(wrong_launcher(library, launched)));
    }
    let comm = communicator::duplicate(library, world, &until)?;
    let hosts = hosts::gather(library, comm, size, &until)?;
    Mpi::new(library, comm, rank, hosts)
}

/// The error for a launcher of another MPI. Its processes do not find each other: each is the only one of its own group.
fn wrong_launcher(library: &Library, launched: u32) -> String {
    format!(
        "{launched} processes were started, but MPI says that this one is alone: the launcher belongs to another MPI than the library, {}. \
         Use the mpiexec that came with this library, set {}=/path/to/libmpi.so of the launcher's MPI, give srun the library's \
         process manager (srun --mpi=list shows them), or use transport=\"tcp\"",
        library.describe(),
        library::CHOICE
    )
}
