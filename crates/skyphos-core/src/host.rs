//! The host of a process: its name, and a key that is equal for exactly the processes of one host.
//!
//! Containers may share a host's name, or have equal names on different hosts. So the key is the kernel's boot id with the network
//! namespace: two namespaces of one machine count as two hosts, because they reach each other over a network.

use std::sync::OnceLock;
use std::{fs, thread};

/// Longest host name sent to others (POSIX allows 255 bytes).
pub const NAME_BYTES: usize = 255;

/// Cores that this process may use. They are counted once, since the limits of a container are in files.
pub fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| thread::available_parallelism().map_or(1, usize::from))
}

/// A host.
pub struct Host {
    /// The host's name, for messages to users.
    pub name: String,
    /// A key that is equal for exactly the processes of one host.
    pub machine: String,
}

impl Host {
    /// The host of this process.
    pub fn this() -> Host {
        let read = |path: &str| fs::read_to_string(path).map(|t| t.trim().to_owned()).ok();
        let mut name =
            read("/proc/sys/kernel/hostname").filter(|n| !n.is_empty()).unwrap_or("localhost".to_owned());
        while name.len() > NAME_BYTES {
            name.pop();
        }
        let boot = read("/proc/sys/kernel/random/boot_id");
        let net = fs::read_link("/proc/self/ns/net").ok().map(|p| p.to_string_lossy().into_owned());
        let machine = match (boot, net) {
            (Some(boot), Some(net)) if boot.len() + net.len() < NAME_BYTES => format!("{boot} {net}"),
            _ => name.clone(),
        };
        Host { name, machine }
    }
}
