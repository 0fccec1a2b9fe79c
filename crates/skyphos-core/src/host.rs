//! Which machine this is: a name for people, and a key that is equal exactly for ranks that share one.
//!
//! Containers may share a host's name or have equal names on different hosts, so the key is the
//! kernel's boot id with the network namespace: two namespaces of one machine count as two hosts, as
//! they do to the network between them.

use std::fs;

/// Longest host name sent to others (POSIX allows 255 bytes).
pub const NAME_BYTES: usize = 255;

/// See the module's text.
pub struct Host {
    /// For people.
    pub name: String,
    /// Equal for those who share one.
    pub machine: String,
}

impl Host {
    /// The one that this process runs on.
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
