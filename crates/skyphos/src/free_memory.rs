//! Free memory of this machine, for checks before a call sends anything.

use std::fs::read_to_string;

/// Bytes that can be allocated now: the smaller of the machine's free memory and the rest of the control group's limit
/// (cgroup v2). `None` if the system does not report them.
pub(crate) fn available_bytes() -> Option<u64> {
    let meminfo = read_to_string("/proc/meminfo").ok()?;
    let free = parse_meminfo(&meminfo)?;
    let number =
        |name: &str| read_to_string(format!("/sys/fs/cgroup/{name}")).ok()?.trim().parse::<u64>().ok();
    let left = number("memory.max").zip(number("memory.current")).map(|(max, now)| max.saturating_sub(now));
    Some(left.map_or(free, |left| left.min(free)))
}

fn parse_meminfo(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_memory_is_read_from_the_system() {
        let text = "MemTotal:       24689084 kB\nMemFree:        20000000 kB\nMemAvailable:   22000000 kB\n";
        assert_eq!(parse_meminfo(text), Some(22_000_000 * 1024));
        assert_eq!(parse_meminfo("MemAvailable: much"), None);
        if cfg!(target_os = "linux") {
            assert!(available_bytes().is_some_and(|bytes| bytes > 0));
        }
    }
}
