//! The values of MPI's names in compiled programs: constants and layouts, by ABI.
//!
//! All ABIs have the same functions. Handles differ: numbers as wide as a pointer (MPI 5.0's standard ABI), numbers of 32 bits (MPICH
//! and libraries with its ABI: Intel, Cray), or addresses of objects in the library (Open MPI). A handle here is a `usize` that begins
//! as zero; a library with handles of 32 bits reads and writes the low 32 bits.

use libloading::os::unix::Library;
use skyphos_types::{DType, ReduceOp};
use std::ffi::{c_int, c_void};

#[cfg(not(target_endian = "little"))]
compile_error!("handles of 32 bits are taken for the low half of a usize");

/// A communicator, request, data type, operation or error handler.
pub type Handle = usize;

/// The compiled interface of a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abi {
    /// MPI 5.0, chapter 20: `libmpi_abi.so`.
    Standard,
    /// MPICH since 3.1 and its kin: `libmpi.so.12`.
    Mpich,
    /// Open MPI since 2: `libmpi.so.20`, `.40`.
    OpenMpi,
}

/// The values of MPI's names.
#[derive(Clone, Copy, Debug)]
pub struct Constants {
    /// `MPI_COMM_WORLD`.
    pub comm_world: Handle,
    /// `MPI_COMM_SELF`.
    pub comm_self: Handle,
    /// `MPI_COMM_NULL`.
    pub comm_null: Handle,
    /// `MPI_BYTE`.
    pub byte: Handle,
    /// `MPI_ERRORS_RETURN`.
    pub errors_return: Handle,
    /// `MPI_THREAD_MULTIPLE`.
    pub thread_multiple: c_int,
    /// `MPI_IN_PLACE`.
    pub in_place: *mut c_void,
    /// `MPI_STATUS_IGNORE`, and `MPI_STATUSES_IGNORE`.
    pub status_ignore: *mut c_void,
    /// Bytes of a handle in an array.
    pub handle_bytes: usize,
}

// SAFETY: the pointers are constants that are never dereferenced.
unsafe impl Send for Constants {}
// SAFETY: as above.
unsafe impl Sync for Constants {}

/// The address of an object in Open MPI's library.
fn address(library: &Library, name: &str) -> Option<Handle> {
    // SAFETY: only the symbol's address is used.
    let object = unsafe { library.get::<*mut c_void>(name.as_bytes()) };
    object.ok().map(|object| object.as_raw_ptr() as usize)
}

impl Abi {
    /// The ABI's constants; `None` if the library lacks a symbol.
    pub fn constants(self, library: &Library) -> Option<Constants> {
        Some(match self {
            Abi::Standard => Constants {
                comm_world: 0x101,
                comm_self: 0x102,
                comm_null: 0x100,
                byte: 0x247,
                errors_return: 0x143,
                thread_multiple: 4096,
                in_place: std::ptr::without_provenance_mut(1),
                status_ignore: std::ptr::null_mut(),
                handle_bytes: size_of::<Handle>(),
            },
            Abi::Mpich => Constants {
                comm_world: 0x4400_0000,
                comm_self: 0x4400_0001,
                comm_null: 0x0400_0000,
                byte: 0x4c00_010d,
                errors_return: 0x5400_0001,
                thread_multiple: 3,
                in_place: std::ptr::without_provenance_mut(usize::MAX),
                status_ignore: std::ptr::without_provenance_mut(1),
                handle_bytes: 4,
            },
            Abi::OpenMpi => Constants {
                comm_world: address(library, "ompi_mpi_comm_world")?,
                comm_self: address(library, "ompi_mpi_comm_self")?,
                comm_null: address(library, "ompi_mpi_comm_null")?,
                byte: address(library, "ompi_mpi_byte")?,
                errors_return: address(library, "ompi_mpi_errors_return")?,
                thread_multiple: 3,
                in_place: std::ptr::without_provenance_mut(1),
                status_ignore: std::ptr::null_mut(),
                handle_bytes: size_of::<Handle>(),
            },
        })
    }

    /// MPI's data type for `dtype`; `None` if MPI has none.
    pub fn data_type(self, library: &Library, dtype: DType) -> Option<Handle> {
        let (standard, mpich, name) = match dtype {
            DType::F32 => (0x210, 0x4c00_040a, "float"),
            DType::F64 => (0x214, 0x4c00_080b, "double"),
            DType::I32 => (0x250, 0x4c00_0439, "int32_t"),
            DType::I64 => (0x258, 0x4c00_083a, "int64_t"),
            DType::U8 => (0x241, 0x4c00_013b, "uint8_t"),
            DType::U32 => (0x251, 0x4c00_043d, "uint32_t"),
            DType::U64 => (0x259, 0x4c00_083e, "uint64_t"),
            DType::BF16 | DType::F16 => return None,
        };
        self.choose(library, standard, mpich, &format!("ompi_mpi_{name}"))
    }

    /// MPI's operation; `None` if MPI has none for this type. A mean is a sum that is divided afterwards.
    pub fn operation(self, library: &Library, op: &ReduceOp, dtype: DType) -> Option<Handle> {
        let (standard, mpich, name) = match op {
            ReduceOp::Sum | ReduceOp::Mean | ReduceOp::MeanPresent => (0x21, 0x5800_0003, "sum"),
            ReduceOp::Prod => (0x24, 0x5800_0004, "prod"),
            // MPI does not define the result with NaN; here the result is NaN.
            ReduceOp::Min if !dtype.is_float() => (0x22, 0x5800_0002, "min"),
            ReduceOp::Max if !dtype.is_float() => (0x23, 0x5800_0001, "max"),
            ReduceOp::Or => (0x29, 0x5800_0008, "bor"),
            ReduceOp::And => (0x28, 0x5800_0006, "band"),
            ReduceOp::Min | ReduceOp::Max | ReduceOp::Custom(_) => return None,
        };
        self.choose(library, standard, mpich, &format!("ompi_mpi_op_{name}"))
    }

    fn choose(self, library: &Library, standard: Handle, mpich: Handle, object: &str) -> Option<Handle> {
        match self {
            Abi::Standard => Some(standard),
            Abi::Mpich => Some(mpich),
            Abi::OpenMpi => address(library, object),
        }
    }
}
