//! The communicator of a group: its size, and the duplicate that frames travel in.

use crate::abi::Handle;
use crate::library::Library;
use crate::waiting::{Until, wait};
use skyphos_types::{Error, Result};

/// This process's rank in a communicator, and its size.
pub(crate) fn rank_and_size(library: &Library, comm: Handle) -> Result<(u32, u32)> {
    let (mut rank, mut size) = (0, 0);
    // SAFETY: MPI is initialised; it reports an invalid handle as an error.
    let codes =
        unsafe { [(library.call.comm_rank)(comm, &mut rank), (library.call.comm_size)(comm, &mut size)] };
    for code in codes {
        library.check(code, "MPI_Comm_rank").map_err(Error::bad_input)?;
    }
    Ok((rank as u32, size as u32))
}

/// A duplicate of a communicator. Collective.
pub(crate) fn duplicate(library: &'static Library, comm: Handle, until: &Until<'_>) -> Result<Handle> {
    // MPI may write the handle until the request is complete.
    let copy: &mut Handle = Box::leak(Box::new(0));
    let mut request: Handle = 0;
    // SAFETY: `copy` is leaked until the request is complete; `request` is written only during this call.
    let code = unsafe { (library.call.comm_idup)(comm, copy, &mut request) };
    library.check(code, "MPI_Comm_idup").map_err(Error::bad_input)?;
    wait(library, &mut request, until)?;
    // SAFETY: leaked above; the request is complete, so MPI writes it no more.
    let copy = *unsafe { Box::from_raw(copy) };
    // SAFETY: the duplicate made above.
    let code = unsafe { (library.call.comm_set_errhandler)(copy, library.constants.errors_return) };
    library.check(code, "MPI_Comm_set_errhandler").map_err(Error::bad_input)?;
    Ok(copy)
}
