//! Frames over MPI: any library that speaks the MPI 5.0 standard ABI, MPICH's or Open MPI's, found and loaded at run time.
//!
//! Read [`abi`] (what names stand for), [`library`] (which library, and its functions), then [`transport`].

pub mod abi;
mod inbox;
pub mod library;
mod seats;
mod transport;

pub use abi::Handle;
pub use library::Library;
pub use transport::Mpi;

use skyphos_types::{Error, Result};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Whether a library is there that could be used. It is opened, and does nothing yet.
pub fn is_there(places: &[PathBuf]) -> bool {
    Library::is_there(places)
}

/// How a group over MPI comes up.
#[derive(Clone, Debug)]
pub struct Options {
    /// The communicator whose processes form the group; `None` for `MPI_COMM_WORLD`. All of them call [`connect`].
    pub comm: Option<Handle>,
    /// Libraries, and folders where one may be, before the system's own.
    pub places: Vec<PathBuf>,
    /// How many processes the launcher says it has started; `None` if it says nothing.
    pub launched: Option<u32>,
    /// How long all processes may take to come.
    pub timeout: Duration,
    /// Asked now and then: has the user interrupted?
    pub interrupted: Option<fn() -> bool>,
}

/// Forms a group of a communicator's processes, on a duplicate of it.
///
/// # Errors
/// `BadInput` if there is no library that can be used, or it was started by another MPI's launcher; `Timeout` if not all
/// processes call it; `Interrupted`.
pub fn connect(options: &Options) -> Result<Mpi> {
    let library = Library::get(&options.places)?;
    let until = Until { end: Instant::now() + options.timeout, options };
    let world = options.comm.unwrap_or(library.is.comm_world);
    let (rank, size) = transport::place_in(library, world)?;
    if let Some(launched) =
        options.launched.filter(|launched| *launched > 1 && size == 1 && options.comm.is_none())
    {
        return Err(Error::bad_input(alone(library, launched)));
    }
    let comm = transport::duplicate(library, world, &until)?;
    let seats = seats::gather(library, comm, size, &until)?;
    Mpi::new(library, comm, rank, seats)
}

/// The classic: eight groups of one in place of one of eight.
fn alone(library: &Library, launched: u32) -> String {
    format!(
        "{launched} processes were started, but MPI says that this one is alone: the launcher is another MPI's than the library, {}. \
         Use the mpiexec that came with this library, set {}=/path/to/libmpi.so of the launcher's MPI, give srun the library's \
         process manager (srun --mpi=list shows them), or use transport=\"tcp\"",
        library.describe(),
        library::CHOICE
    )
}

/// The end of a wait for other processes.
struct Until<'a> {
    end: Instant,
    options: &'a Options,
}

impl Until<'_> {
    /// Whether to go on waiting in `call`.
    fn check(&self, call: &str) -> Result<()> {
        if self.options.interrupted.is_some_and(|ask| ask()) {
            return Err(Error::Interrupted);
        }
        match Instant::now() < self.end {
            true => Ok(()),
            // MPI does not say who.
            false => Err(Error::Timeout {
                missing: Vec::new(),
                call: format!("{call}, to which not all processes of the communicator have come"),
                after: self.options.timeout,
            }),
        }
    }
}
