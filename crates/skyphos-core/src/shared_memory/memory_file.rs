//! A file in memory that processes of one host map. It has no name, and the system frees it with the last process that has it open.
//!
//! One process makes the file and sends another one its process id, the file's descriptor number and a random token. The other
//! process opens `/proc/PROCESS/fd/FILE` and compares the token. The kernel allows this only between processes of one user that
//! see each other, which processes in different containers may not.

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// A random number that identifies a file's memory. Only the processes that it was sent to know it.
pub type Token = [u8; 32];

/// Bytes of a file's head. It begins with the token; users of the memory may use the rest.
pub const HEAD_BYTES: usize = 4096;

/// A mapping of a part of a file. Dropping it unmaps the memory.
pub struct Mapping {
    start: *mut u8,
    len: usize,
}

// SAFETY: the memory belongs to no thread.
unsafe impl Send for Mapping {}
// SAFETY: the memory is accessed through raw pointers only. Their users see to it that writes are exclusive.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(file: impl AsFd, from: usize, len: usize, kind: MapFlags) -> io::Result<Mapping> {
        Mapping::with(file, from, len, kind, ProtFlags::READ | ProtFlags::WRITE)
    }

    fn with(
        file: impl AsFd,
        from: usize,
        len: usize,
        kind: MapFlags,
        access: ProtFlags,
    ) -> io::Result<Mapping> {
        // SAFETY: a new mapping at an address that the kernel chooses. The file is sealed, so it cannot shrink.
        let start = unsafe { mmap(std::ptr::null_mut(), len, access, kind, file, from as u64)? };
        Ok(Mapping { start: start.cast(), len })
    }

    /// The address of the first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the mapping has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `with`, with this length; nothing borrows it any more. Unmapping such a mapping cannot fail.
        let _ = unsafe { munmap(self.start.cast(), self.len) };
    }
}

/// A file in memory: a head of [`HEAD_BYTES`], then the bytes for use.
pub struct MemoryFile(OwnedFd);

impl MemoryFile {
    /// Makes a file of `len` bytes after a head with this token.
    pub fn make(len: usize, token: &Token) -> io::Result<MemoryFile> {
        let file = memfd_create("skyphos", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, (HEAD_BYTES + len) as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let file = MemoryFile(file);
        let head = file.head()?;
        // SAFETY: the head is longer than the token, and no other process has the file yet.
        unsafe { std::ptr::copy_nonoverlapping(token.as_ptr(), head.start, token.len()) };
        Ok(file)
    }

    /// Opens the file that another process has open under a descriptor number, if its length and token are as expected.
    pub fn open(process: u32, number: u32, len: usize, token: &Token) -> io::Result<MemoryFile> {
        let refuse = |what: &str| io::Error::new(ErrorKind::InvalidData, what);
        let path = format!("/proc/{process}/fd/{number}");
        let file: File = OpenOptions::new().read(true).write(true).open(path)?;
        // Access to a file that has shrunk would kill this process. Only a memory file can have the seal against that.
        let whole = i64::try_from(len).ok().and_then(|len| len.checked_add(HEAD_BYTES as i64));
        if !fcntl_get_seals(&file)?.contains(SealFlags::SHRINK) || Some(fstat(&file)?.st_size) != whole {
            return Err(refuse("not a memory file of the expected length"));
        }
        let file = MemoryFile(file.into());
        let (head, mut found) = (file.head()?, Token::default());
        // SAFETY: the head is longer than the token; no process writes there after the file is made.
        unsafe { std::ptr::copy_nonoverlapping(head.start, found.as_mut_ptr(), found.len()) };
        if found == *token { Ok(file) } else { Err(refuse("a memory file with another token")) }
    }

    fn head(&self) -> io::Result<Mapping> {
        Mapping::new(&self.0, 0, HEAD_BYTES, MapFlags::SHARED)
    }

    /// Maps the whole file, head included. All processes see what one writes.
    pub fn map_shared(&self, len: usize) -> io::Result<Mapping> {
        Mapping::new(&self.0, 0, HEAD_BYTES + len, MapFlags::SHARED)
    }

    /// Like [`MemoryFile::map_shared`], for reading only.
    pub fn map_read_only(&self, len: usize) -> io::Result<Mapping> {
        Mapping::with(&self.0, 0, HEAD_BYTES + len, MapFlags::SHARED, ProtFlags::READ)
    }

    /// Maps the bytes after the head, copy-on-write: a page that this process writes to becomes its own.
    pub fn map_private(&self, len: usize) -> io::Result<Mapping> {
        Mapping::new(&self.0, HEAD_BYTES, len, MapFlags::PRIVATE)
    }

    /// The descriptor number, which another process needs to open the file.
    pub fn number(&self) -> u32 {
        self.0.as_raw_fd() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(map: &mut Mapping) -> &mut [u8] {
        // SAFETY: no other reference to it exists.
        unsafe { std::slice::from_raw_parts_mut(map.as_ptr(), map.len()) }
    }

    #[test]
    fn a_private_mapping_sees_writes_of_others_until_it_is_written() {
        let (token, len, me) = ([7; 32], 100_000, std::process::id());
        let made = MemoryFile::make(len, &token).unwrap();
        let opened = MemoryFile::open(me, made.number(), len, &token).unwrap();
        let (mut here, mut own, mut other) = (
            made.map_shared(len).unwrap(),
            opened.map_private(len).unwrap(),
            opened.map_private(len).unwrap(),
        );
        bytes(&mut here)[HEAD_BYTES..].fill(5);
        assert!(bytes(&mut own).iter().all(|byte| *byte == 5));
        bytes(&mut own)[77] = 9;
        assert_eq!(
            (bytes(&mut own)[77], bytes(&mut here)[HEAD_BYTES + 77], bytes(&mut other)[77]),
            (9, 5, 5)
        );
        drop((made, here));
        assert_eq!(bytes(&mut other)[len - 1], 5);
    }

    #[test]
    fn files_with_another_length_or_token_are_refused() {
        let (token, me) = ([7; 32], std::process::id());
        let made = MemoryFile::make(5000, &token).unwrap();
        let open = |file, len, token| MemoryFile::open(me, file, len, &token);
        assert!(open(made.number(), 5000, token).is_ok());
        assert!(open(made.number(), 5000, [8; 32]).is_err());
        assert!(open(made.number(), 5001, token).is_err());
        assert!(open(made.number(), usize::MAX, token).is_err());
        assert!(open(0, 5000, token).is_err());
        assert!(MemoryFile::open(u32::MAX, 0, 5000, &token).is_err());
        let unsealed = memfd_create("may shrink", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&unsealed, (HEAD_BYTES + 5000) as u64).unwrap();
        assert!(open(unsealed.as_raw_fd() as u32, 5000, Token::default()).is_err());
    }
}
