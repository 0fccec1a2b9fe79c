//! Memory that processes of one host share. It has no name, and goes with the last process that has it.
//!
//! One process makes it and tells another its own number, the file's, and a mark; that one opens `/proc/PROCESS/fd/FILE` and looks
//! for the mark. The kernel lets only processes of one user do so that see each other, which those in different containers may not.

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// Nobody but who was told it has these.
pub type Mark = [u8; 32];

/// Bytes before those that are free for use: they begin with the mark.
pub const HEAD_BYTES: usize = 4096;

/// A part of a file, mapped, until it is dropped.
pub struct Map {
    at: *mut u8,
    len: usize,
}

// SAFETY: it is memory that belongs to no thread.
unsafe impl Send for Map {}
// SAFETY: what is in it is reached by raw pointers only, whose users see to it that nobody else writes there.
unsafe impl Sync for Map {}

impl Map {
    fn new(file: impl AsFd, from: usize, len: usize, kind: MapFlags) -> io::Result<Map> {
        Map::with(file, from, len, kind, ProtFlags::READ | ProtFlags::WRITE)
    }

    fn with(file: impl AsFd, from: usize, len: usize, kind: MapFlags, may: ProtFlags) -> io::Result<Map> {
        // SAFETY: a new mapping at an address that the kernel chooses; the file is sealed against shrinking.
        let at = unsafe { mmap(std::ptr::null_mut(), len, may, kind, file, from as u64)? };
        Ok(Map { at: at.cast(), len })
    }

    /// Where it begins.
    pub fn at(&self) -> *mut u8 {
        self.at
    }

    /// Its bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: mapped so, and used by nobody else. It fails for no such mapping.
        let _ = unsafe { munmap(self.at.cast(), self.len) };
    }
}

/// The file that memory is in.
pub struct Backing(OwnedFd);

impl Backing {
    /// A new one of `len` bytes and a head with this mark.
    pub fn make(len: usize, mark: &Mark) -> io::Result<Backing> {
        let file = memfd_create("skyphos", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, (HEAD_BYTES + len) as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let backing = Backing(file);
        let head = backing.head()?;
        // SAFETY: the head is longer than that, and nobody else knows of it yet.
        unsafe { std::ptr::copy_nonoverlapping(mark.as_ptr(), head.at, mark.len()) };
        Ok(backing)
    }

    /// The one that another process has open, if it is it.
    pub fn open(process: u32, file: u32, len: usize, mark: &Mark) -> io::Result<Backing> {
        let refuse = |what: &str| io::Error::new(ErrorKind::InvalidData, what);
        let path = format!("/proc/{process}/fd/{file}");
        let file: File = OpenOptions::new().read(true).write(true).open(path)?;
        // Memory that may shrink would be a trap; and only what was made for it can be sealed.
        let whole = i64::try_from(len).ok().and_then(|len| len.checked_add(HEAD_BYTES as i64));
        if !fcntl_get_seals(&file)?.contains(SealFlags::SHRINK) || Some(fstat(&file)?.st_size) != whole {
            return Err(refuse("not the memory that was told of"));
        }
        let backing = Backing(file.into());
        let (head, mut found) = (backing.head()?, Mark::default());
        // SAFETY: the head is longer than that; nobody writes there once others know of it.
        unsafe { std::ptr::copy_nonoverlapping(head.at, found.as_mut_ptr(), found.len()) };
        if found == *mark { Ok(backing) } else { Err(refuse("memory of another")) }
    }

    fn head(&self) -> io::Result<Map> {
        Map::new(&self.0, 0, HEAD_BYTES, MapFlags::SHARED)
    }

    /// All of it, head included: what is written there all see.
    pub fn shared(&self, len: usize) -> io::Result<Map> {
        Map::new(&self.0, 0, HEAD_BYTES + len, MapFlags::SHARED)
    }

    /// The same, to read only.
    pub fn readable(&self, len: usize) -> io::Result<Map> {
        Map::with(&self.0, 0, HEAD_BYTES + len, MapFlags::SHARED, ProtFlags::READ)
    }

    /// What comes after the head, for this process alone: pages that it writes to become its own.
    pub fn own(&self, len: usize) -> io::Result<Map> {
        Map::new(&self.0, HEAD_BYTES, len, MapFlags::PRIVATE)
    }

    /// The file's number in this process, for another.
    pub fn number(&self) -> u32 {
        self.0.as_raw_fd() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(map: &mut Map) -> &mut [u8] {
        // SAFETY: nobody else uses it meanwhile.
        unsafe { std::slice::from_raw_parts_mut(map.at(), map.len()) }
    }

    #[test]
    fn what_one_writes_the_others_see_until_they_write() {
        let (mark, len, me) = ([7; 32], 100_000, std::process::id());
        let made = Backing::make(len, &mark).unwrap();
        let opened = Backing::open(me, made.number(), len, &mark).unwrap();
        let (mut here, mut own, mut other) =
            (made.shared(len).unwrap(), opened.own(len).unwrap(), opened.own(len).unwrap());
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
    fn other_memory_is_refused() {
        let (mark, me) = ([7; 32], std::process::id());
        let made = Backing::make(5000, &mark).unwrap();
        let open = |file, len, mark| Backing::open(me, file, len, &mark);
        assert!(open(made.number(), 5000, mark).is_ok());
        assert!(open(made.number(), 5000, [8; 32]).is_err());
        assert!(open(made.number(), 5001, mark).is_err());
        assert!(open(made.number(), usize::MAX, mark).is_err());
        assert!(open(0, 5000, mark).is_err());
        assert!(Backing::open(u32::MAX, 0, 5000, &mark).is_err());
        let unsealed = memfd_create("may shrink", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&unsealed, (HEAD_BYTES + 5000) as u64).unwrap();
        assert!(open(unsealed.as_raw_fd() as u32, 5000, Mark::default()).is_err());
    }
}
