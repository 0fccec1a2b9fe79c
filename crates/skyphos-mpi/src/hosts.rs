//! The host of each process, gathered from all.

use crate::abi::Handle;
use crate::library::Library;
use crate::waiting::{Until, wait};
use skyphos_core::Topology;
use skyphos_core::host::{Host, NAME_BYTES};
use skyphos_types::{Error, Result};
use std::collections::BTreeMap;
use std::ffi::c_int;

/// A process's record on the wire: the host's name, its key, and the process number; each text after its length.
const TEXT_BYTES: usize = 1 + NAME_BYTES;
const RECORD_BYTES: usize = 2 * TEXT_BYTES + 4;

/// The hosts of all processes.
pub(crate) struct ProcessHosts {
    /// Host and process of each rank, for messages.
    pub(crate) addresses: Vec<String>,
    /// Hosts by number.
    pub(crate) topology: Topology,
}

/// Gathers the hosts of all processes. Collective.
pub(crate) fn gather(
    library: &'static Library,
    comm: Handle,
    size: u32,
    until: &Until<'_>,
) -> Result<ProcessHosts> {
    let own_record = encode(&Host::this());
    let mut all = vec![0u8; RECORD_BYTES * size as usize];
    let mut request: Handle = 0;
    // SAFETY: both buffers live until the request is complete; if it does not complete, they are leaked below.
    let code = unsafe {
        let (each, byte) = (RECORD_BYTES as c_int, library.constants.byte);
        (library.call.iallgather)(
            own_record.as_ptr().cast(),
            each,
            byte,
            all.as_mut_ptr().cast(),
            each,
            byte,
            comm,
            &mut request,
        )
    };
    library.check(code, "MPI_Iallgather").map_err(Error::bad_input)?;
    if let Err(error) = wait(library, &mut request, until) {
        std::mem::forget((own_record, all));
        return Err(error);
    }
    let mut hosts = BTreeMap::new();
    let (mut addresses, mut numbers) = (Vec::new(), Vec::new());
    for record in all.chunks_exact(RECORD_BYTES) {
        let (name, machine) = (text(record), text(&record[TEXT_BYTES..]));
        let process = u32::from_le_bytes(record[2 * TEXT_BYTES..].try_into().expect("four bytes"));
        addresses.push(format!("{name} (pid {process})"));
        let next = hosts.len() as u32;
        numbers.push(*hosts.entry(machine).or_insert(next));
    }
    Ok(ProcessHosts { addresses, topology: Topology::new(&numbers, &vec![0; numbers.len()])? })
}

fn encode(host: &Host) -> Vec<u8> {
    let mut record = vec![0u8; RECORD_BYTES];
    for (k, text) in [&host.name, &host.machine].into_iter().enumerate() {
        let place = &mut record[k * TEXT_BYTES..][..=text.len()];
        place[0] = text.len() as u8;
        place[1..].copy_from_slice(text.as_bytes());
    }
    record[2 * TEXT_BYTES..].copy_from_slice(&std::process::id().to_le_bytes());
    record
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[1..][..usize::from(bytes[0])]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_of_the_longest_names_survives_the_wire() {
        let long = "é".repeat(NAME_BYTES / 2);
        let record = encode(&Host { name: long.clone(), machine: "boot".to_owned() });
        assert_eq!(
            (text(&record), text(&record[TEXT_BYTES..]), record.len()),
            (long, "boot".to_owned(), RECORD_BYTES)
        );
    }
}
