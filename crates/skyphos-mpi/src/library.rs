//! The MPI library of the process: search and loading, its ABI, and its functions.
//!
//! A process uses one MPI library, the first one found. A second library would take over the connection to the launcher.

use crate::abi::{Abi, Constants, Handle};
use libloading::os::unix::{Library as Shared, RTLD_GLOBAL, RTLD_NOW};
use skyphos_types::{DType, Error, ReduceOp, Result};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard};

/// Names under which libraries are known to the system's loader: the standard ABI's, MPICH's, Open MPI's.
const NAMES: [&str; 4] = ["libmpi_abi.so.1", "libmpi_abi.so.0", "libmpi.so.12", "libmpi.so.40"];

/// The environment variable that names a library.
pub const CHOICE: &str = "SKYPHOS_LIBMPI";

/// Bytes for the longest text of any function (the standard ABI: 8192 for a library's version).
const TEXT_BYTES: usize = 16 * 1024;

macro_rules! functions {
    ($($field:ident = $name:literal ($($argument:ty),*);)*) => {
        /// MPI's functions.
        #[allow(missing_docs, reason = "the MPI standard documents them")]
        #[derive(Clone, Copy)]
        pub struct Functions {
            $(pub $field: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Functions {
            /// The functions of a library, or the name of a missing function.
            fn of(library: &Shared) -> std::result::Result<Functions, &'static str> {
                // SAFETY: these are the functions' types by the standard. Handles have the width of the widest ABI; a library that
                // reads 32 bits finds them in the same register.
                unsafe {
                    Ok(Functions {
                        $($field: *library.get($name.as_bytes()).map_err(|_| $name)?,)*
                    })
                }
            }
        }
    };
}

/// A function that MPI calls when it copies an attribute of a communicator, and when it deletes one.
pub type CopyAttribute =
    unsafe extern "C" fn(Handle, c_int, *mut c_void, *mut c_void, *mut c_void, *mut c_int) -> c_int;
/// See [`CopyAttribute`].
pub type DeleteAttribute = unsafe extern "C" fn(Handle, c_int, *mut c_void, *mut c_void) -> c_int;

functions! {
    initialized = "MPI_Initialized" (*mut c_int);
    finalized = "MPI_Finalized" (*mut c_int);
    init_thread = "MPI_Init_thread" (*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int);
    query_thread = "MPI_Query_thread" (*mut c_int);
    finalize = "MPI_Finalize" ();
    comm_rank = "MPI_Comm_rank" (Handle, *mut c_int);
    comm_size = "MPI_Comm_size" (Handle, *mut c_int);
    comm_idup = "MPI_Comm_idup" (Handle, *mut Handle, *mut Handle);
    comm_free = "MPI_Comm_free" (*mut Handle);
    comm_create_keyval = "MPI_Comm_create_keyval" (CopyAttribute, DeleteAttribute, *mut c_int, *mut c_void);
    comm_set_attr = "MPI_Comm_set_attr" (Handle, c_int, *mut c_void);
    comm_set_errhandler = "MPI_Comm_set_errhandler" (Handle, Handle);
    isend = "MPI_Isend" (*const c_void, c_int, Handle, c_int, c_int, Handle, *mut Handle);
    irecv = "MPI_Irecv" (*mut c_void, c_int, Handle, c_int, c_int, Handle, *mut Handle);
    test = "MPI_Test" (*mut Handle, *mut c_int, *mut c_void);
    testsome = "MPI_Testsome" (c_int, *mut Handle, *mut c_int, *mut c_int, *mut c_void);
    wait = "MPI_Wait" (*mut Handle, *mut c_void);
    cancel = "MPI_Cancel" (*mut Handle);
    iallgather = "MPI_Iallgather" (*const c_void, c_int, Handle, *mut c_void, c_int, Handle, Handle, *mut Handle);
    error_string = "MPI_Error_string" (c_int, *mut c_char, *mut c_int);
    iallreduce = "MPI_Iallreduce" (*const c_void, *mut c_void, c_int, Handle, Handle, Handle, *mut Handle);
    get_library_version = "MPI_Get_library_version" (*mut c_char, *mut c_int);
}

/// An MPI library in this process.
pub struct Library {
    /// Its functions.
    pub call: Functions,
    /// The values of MPI's names in it.
    pub constants: Constants,
    abi: Abi,
    /// Data types in [`DType`]'s order, and the operations of each type in [`ReduceOp`]'s order.
    data_types: [Option<Handle>; DType::ALL.len()],
    operations: [[Option<Handle>; ReduceOp::NAMED.len()]; DType::ALL.len()],
    /// Whether MPI has a request that may never complete.
    stuck: AtomicBool,
    /// Number of open transports.
    transports: AtomicUsize,
    /// The library's file, for messages.
    file: String,
    /// The library's version text, in one line.
    version: String,
    /// Whether all threads may call it at once.
    is_thread_multiple: bool,
    /// Whether this crate has initialised MPI, and is to finalise it.
    initialised_here: bool,
}

/// The process's library, once there is one.
static OPEN: Mutex<Option<&'static Library>> = Mutex::new(None);

/// Whether MPI is being finalised. A thread holds a read lock while it calls MPI functions that finalisation forbids.
static HAS_ENDED: RwLock<bool> = RwLock::new(false);

/// Called when MPI begins to finalise: `MPI_Finalize` first deletes the attributes of `MPI_COMM_SELF` (MPI 4.1, 11.2.4). Waits for
/// other threads of this crate to leave MPI.
unsafe extern "C" fn on_finalize(_: Handle, _: c_int, _: *mut c_void, _: *mut c_void) -> c_int {
    Library::prepare_end();
    0
}

/// Keeps duplicates of `MPI_COMM_SELF` from inheriting the attribute.
unsafe extern "C" fn do_not_copy(
    _: Handle,
    _: c_int,
    _: *mut c_void,
    _: *mut c_void,
    _: *mut c_void,
    flag: *mut c_int,
) -> c_int {
    // SAFETY: MPI passes a valid pointer.
    unsafe { *flag = 0 };
    0
}

impl Library {
    /// The library of this process: a loaded one, else the one that the environment names, else the first one found in
    /// these places (files, then folders) or by the system's loader. Initialises it.
    ///
    /// # Errors
    /// `BadInput` if there is none, or none that can be used.
    pub fn get(places: &[PathBuf]) -> Result<&'static Library> {
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(library) = *open {
            return Ok(library);
        }
        let (shared, place) = open_any(places)?;
        let mut library = Library::new(&shared, place)?;
        library.begin()?;
        // Never unloaded: its code may run until the process ends.
        std::mem::forget(shared);
        Ok(*open.insert(Box::leak(Box::new(library))))
    }

    /// Whether [`Library::get`] would find a library. Opens it without initialising it.
    pub fn is_there(places: &[PathBuf]) -> bool {
        let open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let opened = || {
            open_any(places).and_then(|(shared, place)| {
                let new = Library::new(&shared, place).map(drop);
                // A library that was opened and closed may not open again.
                std::mem::forget(shared);
                new
            })
        };
        open.is_some() || opened().is_ok()
    }

    /// Finalises MPI if this crate has initialised it, it is not finalised, and no transport is open, since another thread may poll
    /// one. Returns whether it did. The caller makes no MPI calls afterwards.
    pub fn end() -> bool {
        let open = *OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        // MPI_Finalize would wait for requests that never complete.
        let is_free =
            |library: &Library| !library.is_stuck() && library.transports.load(Ordering::Acquire) == 0;
        let may = |library: &&Library| library.initialised_here && library.is_usable() && is_free(library);
        let library = open.filter(may);
        if let Some(library) = library {
            // SAFETY: MPI is initialised and not finalised.
            unsafe { (library.call.finalize)() };
        }
        library.is_some()
    }

    /// Stops MPI calls of open transports, before the program finalises MPI. The callback in `MPI_Finalize` would come too late in
    /// MPICH, which treats the process as single-threaded from the beginning of that function.
    pub fn prepare_end() {
        *HAS_ENDED.write().unwrap_or_else(PoisonError::into_inner) = true;
    }

    fn new(shared: &Shared, place: String) -> Result<Library> {
        let refuse = |what: String| {
            let rest =
                format!("; {CHOICE}=/path/to/libmpi_abi.so.1 chooses another, transport=\"tcp\" needs none");
            Err(Error::bad_input(format!("the MPI library {place} cannot be used: {what}{rest}")))
        };
        let call = match Functions::of(shared) {
            Ok(call) => call,
            Err(name) => return refuse(format!("it has no {name}, so it is no MPI, or older than MPI 3.0")),
        };
        let version = text(|bytes, len| {
            // SAFETY: the buffer holds the longest text; the function may be called at any time.
            unsafe { (call.get_library_version)(bytes, len) }
        });
        let version = version.lines().next().unwrap_or_default().trim().trim_end_matches('\0').to_owned();
        let Some(abi) = abi_of(shared, &place, &version) else {
            return refuse(format!(
                "it has neither MPI 5's standard ABI nor MPICH's or Open MPI's (\"{version}\")"
            ));
        };
        if abi == Abi::Standard
            && let Some((major, minor)) = abi_version(shared)
            && major != 1
        {
            return refuse(format!(
                "its standard ABI has version {major}.{minor}, this build supports version 1"
            ));
        }
        let Some(constants) = abi.constants(shared) else {
            return refuse(format!("it lacks Open MPI's objects (\"{version}\")"));
        };
        let data_types = DType::ALL.map(|dtype| abi.data_type(shared, dtype));
        let all = |dtype: DType| ReduceOp::NAMED.map(|op| abi.operation(shared, &op, dtype));
        let (operations, stuck) = (DType::ALL.map(all), AtomicBool::new(false));
        Ok(Library {
            call,
            constants,
            abi,
            data_types,
            operations,
            stuck,
            transports: AtomicUsize::new(0),
            file: place,
            version,
            is_thread_multiple: false,
            initialised_here: false,
        })
    }

    /// Initialises MPI, unless it is initialised.
    fn begin(&mut self) -> Result<()> {
        if self.query(self.call.finalized) {
            return Err(Error::bad_input(
                "MPI has been finalised in this process, and cannot begin again: call sky.init() before MPI_Finalize",
            ));
        }
        let mut level: c_int = 0;
        self.initialised_here = !self.query(self.call.initialized);
        let code = match self.initialised_here {
            // SAFETY: MPI 2 and later allow null pointers instead of arguments.
            true => unsafe {
                let (argc, argv) = (std::ptr::null_mut(), std::ptr::null_mut());
                (self.call.init_thread)(argc, argv, self.constants.thread_multiple, &mut level)
            },
            // SAFETY: MPI is initialised.
            false => unsafe { (self.call.query_thread)(&mut level) },
        };
        self.check(code, "MPI_Init_thread").map_err(Error::bad_input)?;
        self.is_thread_multiple = level >= self.constants.thread_multiple;
        self.register_on_finalize()
    }

    /// Makes MPI call [`on_finalize`] when it begins to finalise.
    fn register_on_finalize(&self) -> Result<()> {
        let (mut key, none) = (0, std::ptr::null_mut());
        // SAFETY: both functions live as long as the process.
        let code = unsafe { (self.call.comm_create_keyval)(do_not_copy, on_finalize, &mut key, none) };
        self.check(code, "MPI_Comm_create_keyval").map_err(Error::bad_input)?;
        // SAFETY: the attribute is a null pointer, which is never dereferenced.
        let code = unsafe { (self.call.comm_set_attr)(self.constants.comm_self, key, none) };
        self.check(code, "MPI_Comm_set_attr").map_err(Error::bad_input)
    }

    /// A guard for calls of MPI, which is not finalised while the guard is held; `None` if it is finalised.
    pub(crate) fn pass(&self) -> Option<RwLockReadGuard<'static, bool>> {
        let pass = HAS_ENDED.read().unwrap_or_else(PoisonError::into_inner);
        (!*pass).then_some(pass)
    }

    fn query(&self, function: unsafe extern "C" fn(*mut c_int) -> c_int) -> bool {
        let mut flag = 0;
        // SAFETY: `MPI_Initialized` and `MPI_Finalized` may be called at any time.
        unsafe { function(&mut flag) };
        flag != 0
    }

    /// Whether MPI is initialised and not finalised.
    pub fn is_usable(&self) -> bool {
        self.query(self.call.initialized) && !self.query(self.call.finalized)
    }

    /// Whether all threads may call it at once.
    pub fn is_for_all_threads(&self) -> bool {
        self.is_thread_multiple
    }

    /// The library's name and version, file and ABI, for messages.
    pub fn describe(&self) -> String {
        let abi = match self.abi {
            Abi::Standard => "standard ABI",
            Abi::Mpich => "MPICH's ABI",
            Abi::OpenMpi => "Open MPI's ABI",
        };
        format!("{} ({}, {abi})", self.version, self.file)
    }

    /// Returns an error with the text of the code, if it is an error code.
    pub fn check(&self, code: c_int, what: &str) -> std::result::Result<(), String> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: the buffer holds the longest text.
        let message = text(|bytes, len| unsafe { (self.call.error_string)(code, bytes, len) });
        Err(format!("{what} failed: {}", message.trim()))
    }

    /// MPI's data type and operation; `None` if it lacks one of them.
    pub fn reduction(&self, op: &ReduceOp, dtype: DType) -> Option<(Handle, Handle)> {
        let k = DType::ALL.iter().position(|one| *one == dtype)?;
        let operation = *self.operations[k].get(usize::from(op.code()).checked_sub(1)?)?;
        Some((self.data_types[k]?, operation?))
    }

    /// Notes that MPI has a request that may never complete.
    pub fn set_stuck(&self) {
        self.stuck.store(true, Ordering::Release);
    }

    /// Counts a transport that opens.
    pub(crate) fn enter(&self) {
        self.transports.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts a transport that closes.
    pub(crate) fn leave(&self) {
        self.transports.fetch_sub(1, Ordering::AcqRel);
    }

    fn is_stuck(&self) -> bool {
        self.stuck.load(Ordering::Acquire)
    }
}

/// The text that an MPI function writes.
fn text(write: impl FnOnce(*mut c_char, *mut c_int) -> c_int) -> String {
    let mut bytes = vec![0u8; TEXT_BYTES];
    let mut len: c_int = 0;
    write(bytes.as_mut_ptr().cast(), &mut len);
    let len = (len.max(0) as usize).min(TEXT_BYTES - 1);
    CStr::from_bytes_until_nul(&bytes[..=len])
        .map_or(String::new(), |text| text.to_string_lossy().into_owned())
}

/// The ABI of a library: by its file's name, else by a symbol that only one ABI has, else by its version text.
fn abi_of(shared: &Shared, place: &str, version: &str) -> Option<Abi> {
    let file = Path::new(place).file_name().map_or(String::new(), |name| name.to_string_lossy().into_owned());
    // SAFETY: the symbol is only looked up.
    let is_open_mpi = unsafe { shared.get::<*mut c_void>(b"ompi_mpi_comm_world") }.is_ok();
    let names = ["MPICH", "Intel", "MVAPICH", "Parastation"];
    match () {
        () if file.starts_with("libmpi_abi.") => Some(Abi::Standard),
        () if is_open_mpi => Some(Abi::OpenMpi),
        () if names.iter().any(|name| version.to_lowercase().contains(&name.to_lowercase())) => {
            Some(Abi::Mpich)
        }
        () => None,
    }
}

/// The version of the standard ABI that a library reports.
fn abi_version(shared: &Shared) -> Option<(c_int, c_int)> {
    type GetVersion = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the function's type is that of MPI 5.0, and it may be called at any time.
    unsafe { (*shared.get::<GetVersion>(b"MPI_Abi_get_version").ok()?)(&mut major, &mut minor) };
    Some((major, minor))
}

/// Opens the library to use. Returns it with its file.
fn open_any(places: &[PathBuf]) -> Result<(Shared, String)> {
    if let Some(place) = loaded() {
        let shared = open(&place)
            .map_err(|e| Error::bad_input(format!("the MPI library {place} of this process: {e}")))?;
        return Ok((shared, place));
    }
    if let Some(place) = std::env::var(CHOICE).ok().filter(|place| !place.is_empty()) {
        let shared =
            open(&place).map_err(|e| Error::bad_input(format!("{CHOICE}={place} cannot be opened: {e}")))?;
        return Ok((shared, place));
    }
    let mut names = NAMES.to_vec();
    if std::env::var_os("OMPI_COMM_WORLD_SIZE").is_some() {
        names.rotate_right(1); // only Open MPI's own library understands its launcher
    }
    let mut failed = Vec::new();
    let mut tries: Vec<PathBuf> = Vec::new();
    tries.extend(places.iter().filter(|place| place.is_file()).cloned());
    for name in &names {
        let folders = places.iter().filter(|place| place.is_dir());
        tries.extend(folders.map(|folder| folder.join(name)).filter(|path| path.exists()));
        tries.push(PathBuf::from(name));
    }
    for path in tries {
        let place = path.to_string_lossy().into_owned();
        match open(&place) {
            Ok(shared) => return Ok((shared, place)),
            Err(e) if path.is_absolute() => failed.push(e),
            Err(_) => {}
        }
    }
    let found = if failed.is_empty() { String::new() } else { format!(" ({})", failed.join("; ")) };
    Err(Error::bad_input(format!(
        "no MPI library: looked for {}{found}; install one (pip install mpich), set {CHOICE}=/path/to/libmpi_abi.so.1, or use \
         transport=\"tcp\"",
        NAMES.join(", ")
    )))
}

fn open(place: &str) -> std::result::Result<Shared, String> {
    // SAFETY: an MPI library's initialisers are meant to run when it is loaded. Its symbols are global, because Open MPI's plug-ins
    // need them.
    unsafe { Shared::open(Some(place), RTLD_NOW | RTLD_GLOBAL) }.map_err(|e| e.to_string())
}

/// The MPI library that this process has loaded already: mpi4py's, for instance.
fn loaded() -> Option<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let paths = maps.lines().filter_map(|line| line.split_once('/')).map(|(_, path)| format!("/{path}"));
    let mut found: Vec<String> = paths.filter(|path| is_library(path)).collect();
    found.sort();
    found.dedup();
    // If two are loaded, one may be just a dependency of the other.
    found.into_iter().next()
}

/// Whether a file's name is that of an MPI library: libmpi_abi.so.1, libmpi.so.12.1.8, libmpich.so.12 …
fn is_library(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    ["libmpi_abi.so", "libmpi.so", "libmpich.so", "libmpi_cray.so", "libmpi_intel.so"]
        .iter()
        .any(|begin| name.starts_with(begin))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_files_are_recognised_by_name() {
        for (path, expected) in [
            ("/opt/lib/libmpi_abi.so.1.0", true),
            ("/opt/lib/libmpi.so.12", true),
            ("/usr/lib/libmpi.so.40.30.6", true),
            ("/opt/cray/libmpi_cray.so.12", true),
            ("/usr/lib/libmpifort.so.12", false),
            ("/usr/lib/python3/mpi4py/MPI.mpich.cpython-311-x86_64-linux-gnu.so", false),
        ] {
            assert_eq!(is_library(path), expected, "{path}");
        }
    }

    #[test]
    fn libraries_without_mpi_are_refused() {
        let shared = open("libc.so.6").unwrap();
        let message = Library::new(&shared, "libc.so.6".to_owned()).err().unwrap().to_string();
        assert!(message.contains("libc.so.6") && message.contains("MPI_Initialized"), "{message}");
    }
}
