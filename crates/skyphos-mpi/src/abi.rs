//! What MPI's names stand for in compiled programs: constants and layouts, by ABI.
//!
//! The functions are the same everywhere. What differs is how handles look: numbers as wide as a pointer (MPI 5.0's standard
//! ABI), numbers of 32 bits (MPICH, and all that keep to its ABI: Intel, Cray), or addresses of objects in the library (Open MPI).
//! A handle here is a `usize` that begins as zero: where a library reads or writes 32 bits, those are its low ones.

use libloading::os::unix::Library;
use std::ffi::{c_int, c_void};

#[cfg(not(target_endian = "little"))]
compile_error!("handles of 32 bits are taken for the low half of a usize");

/// A communicator, request, data type, operation or error handler.
pub type Handle = usize;

/// How a library's compiled interface looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abi {
    /// MPI 5.0, chapter 20: `libmpi_abi.so`.
    Standard,
    /// MPICH since 3.1 and its kin: `libmpi.so.12`.
    Mpich,
    /// Open MPI since 2: `libmpi.so.20`, `.40`.
    OpenMpi,
}

/// Names' values.
#[derive(Clone, Copy, Debug)]
pub struct Constants {
    /// `MPI_COMM_WORLD`.
    pub comm_world: Handle,
    /// `MPI_COMM_NULL`.
    pub comm_null: Handle,
    /// `MPI_BYTE`.
    pub byte: Handle,
    /// `MPI_ERRORS_RETURN`.
    pub errors_return: Handle,
    /// `MPI_ANY_SOURCE`.
    pub any_source: c_int,
    /// `MPI_THREAD_MULTIPLE`.
    pub thread_multiple: c_int,
    /// `MPI_STATUS_IGNORE`.
    pub status_ignore: *mut c_void,
    /// Which number of a status says who sent.
    pub status_source: usize,
}

// SAFETY: the pointer is a constant that nobody follows.
unsafe impl Send for Constants {}
// SAFETY: as above.
unsafe impl Sync for Constants {}

/// As many 32-bit numbers as any ABI's status has (Open MPI: 24 bytes, the standard: 32), and some more.
pub type Status = [c_int; 16];

impl Abi {
    /// The ABI's constants; `None` if the library lacks what they name.
    pub fn constants(self, library: &Library) -> Option<Constants> {
        let address = |name: &str| {
            // SAFETY: only the address is taken.
            let object = unsafe { library.get::<*mut c_void>(name.as_bytes()) };
            object.ok().map(|object| object.as_raw_ptr() as usize)
        };
        Some(match self {
            Abi::Standard => Constants {
                comm_world: 0x101,
                comm_null: 0x100,
                byte: 0x247,
                errors_return: 0x143,
                any_source: -1,
                thread_multiple: 4096,
                status_ignore: std::ptr::null_mut(),
                status_source: 0,
            },
            Abi::Mpich => Constants {
                comm_world: 0x4400_0000,
                comm_null: 0x0400_0000,
                byte: 0x4c00_010d,
                errors_return: 0x5400_0001,
                any_source: -2,
                thread_multiple: 3,
                status_ignore: std::ptr::without_provenance_mut(1),
                status_source: 2,
            },
            Abi::OpenMpi => Constants {
                comm_world: address("ompi_mpi_comm_world")?,
                comm_null: address("ompi_mpi_comm_null")?,
                byte: address("ompi_mpi_byte")?,
                errors_return: address("ompi_mpi_errors_return")?,
                any_source: -1,
                thread_multiple: 3,
                status_ignore: std::ptr::null_mut(),
                status_source: 0,
            },
        })
    }
}
