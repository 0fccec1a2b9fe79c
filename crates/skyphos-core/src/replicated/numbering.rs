//! The numbering of replicas: the processes of each rank (Kylix §V).
//!
//! With m = ⌊P / s⌋ ranks, processes i, m + i, 2m + i … are the replicas of rank i. Processes that are left over are one more
//! replica of the first ranks: spares that have everything already.

use skyphos_types::{Error, ProcessId, Result, WorldRank};
use std::collections::BTreeMap;

/// Upper bound on the replicas of a rank: a mask has a bit for each.
const MAX_REPLICAS: u32 = 16;

/// Processes that a frame can name.
const MAX_PROCESSES: u32 = 1 << 16;

/// The numbering of processes and ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Numbering {
    processes: u32,
    ranks: u32,
    me: ProcessId,
}

impl Numbering {
    /// A numbering with at least `replication` processes for each rank. This process is `me`.
    pub fn new(processes: u32, replication: u32, me: ProcessId) -> Result<Numbering> {
        if replication == 0 || replication > processes || processes > MAX_PROCESSES {
            return Err(Error::bad_input(format!(
                "replication={replication} with {processes} processes: each rank needs 1 to {processes} processes (and there \
                 can be at most {MAX_PROCESSES})"
            )));
        }
        let numbering = Numbering { processes, ranks: processes / replication, me };
        match processes.div_ceil(numbering.ranks) {
            each if each > MAX_REPLICAS => Err(Error::bad_input(format!(
                "replication={replication} with {processes} processes is {each} replicas of a rank; there can be {MAX_REPLICAS}"
            ))),
            _ => Ok(numbering),
        }
    }

    /// This process.
    pub fn me(&self) -> ProcessId {
        self.me
    }

    /// Number of processes.
    pub fn processes(&self) -> u32 {
        self.processes
    }

    /// All processes.
    pub fn all(&self) -> impl Iterator<Item = ProcessId> + use<> {
        (0..self.processes).map(ProcessId)
    }

    /// Number of ranks.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// This process's rank.
    pub fn rank(&self) -> WorldRank {
        self.rank_of(self.me)
    }

    /// The rank of a process.
    pub fn rank_of(&self, process: ProcessId) -> WorldRank {
        WorldRank(process.0 % self.ranks)
    }

    /// Which replica of its rank a process is.
    pub fn replica_of(&self, process: ProcessId) -> u32 {
        process.0 / self.ranks
    }

    /// The replicas of a rank, in order.
    pub fn processes_of(
        &self,
        rank: WorldRank,
    ) -> impl DoubleEndedIterator<Item = ProcessId> + Clone + use<> {
        (rank.0..self.processes).step_by(self.ranks as usize).map(ProcessId)
    }

    /// The other replicas of this process's rank.
    pub fn siblings(&self) -> impl Iterator<Item = ProcessId> + use<> {
        let me = self.me;
        self.processes_of(self.rank()).filter(move |process| *process != me)
    }

    /// Refuses replicas of a rank that share a host, since a failure of the host would end both. `hosts` has the host of each process;
    /// `name` returns a process's name for the error.
    pub fn check_hosts(&self, hosts: &[u32], name: impl Fn(ProcessId) -> String) -> Result<()> {
        let mut on_host: BTreeMap<u32, Vec<ProcessId>> = BTreeMap::new();
        (0..self.processes)
            .map(ProcessId)
            .for_each(|process| on_host.entry(hosts[process.index()]).or_default().push(process));
        let shared = on_host.values().find_map(|together| {
            let mut seen = BTreeMap::new();
            together.iter().find_map(|p| seen.insert(self.rank_of(*p), *p).map(|other| (other, *p)))
        });
        let Some((one, other)) = shared else { return Ok(()) };
        let rank = self.rank_of(one);
        let what = format!(
            "processes {one} and {other} are replicas of rank {rank} and both on {}, so the host's failure would end the rank",
            name(one)
        );
        let largest = on_host.values().map(Vec::len).max().unwrap_or(0);
        let advice = if largest > self.ranks as usize {
            let processes = if self.ranks == 1 { "process" } else { "processes" };
            format!("at most {} {processes} may be on a host, of {} in all", self.ranks, self.processes)
        } else {
            let mut next = 0;
            let each = on_host.values().map(|together| {
                let first = next;
                next += together.len();
                match together.len() {
                    1 => format!("{first} on {}", name(together[0])),
                    _ => format!("{first} to {} on {}", next - 1, name(together[0])),
                }
            });
            format!("number them host by host: {}", each.collect::<Vec<_>>().join(", "))
        };
        Err(Error::bad_input(format!("{what}; {advice} (to try things out on one host: share_hosts)")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_and_spares() {
        let numbering = |p, s| Numbering::new(p, s, ProcessId(1)).unwrap();
        let eight = numbering(8, 2);
        assert_eq!((eight.ranks(), eight.rank_of(ProcessId(5)).0, eight.replica_of(ProcessId(5))), (4, 1, 1));
        assert_eq!(eight.processes_of(WorldRank(3)).collect::<Vec<_>>(), [3, 7].map(ProcessId));
        assert_eq!(eight.siblings().collect::<Vec<_>>(), [ProcessId(5)]);
        let nine = numbering(9, 2);
        assert_eq!((nine.ranks(), nine.rank_of(ProcessId(8)).0), (4, 0), "a spare stands by for rank 0");
        assert_eq!(nine.processes_of(WorldRank(0)).collect::<Vec<_>>(), [0, 4, 8].map(ProcessId));
        for (p, s) in [(4, 0), (4, 5), (40, 20), (1 << 17, 2)] {
            assert!(Numbering::new(p, s, ProcessId(0)).is_err(), "{p} {s}");
        }
    }

    #[test]
    fn replicas_on_one_host_are_refused_with_the_numbering_to_use() {
        let numbering = |p| Numbering::new(p, 2, ProcessId(0)).unwrap();
        let name = |process: ProcessId| format!("host {}", ["a", "b"][process.index() % 2]);
        numbering(8).check_hosts(&[0, 0, 0, 0, 1, 1, 1, 1], name).unwrap();
        let error = numbering(8).check_hosts(&[0, 1, 0, 1, 0, 1, 0, 1], name).unwrap_err().to_string();
        let want = "processes 0 and 4 are replicas of rank 0 and both on host a, so the host's failure would end the rank; number \
                    them host by host: 0 to 3 on host a, 4 to 7 on host b (to try things out on one host: share_hosts)";
        assert_eq!(error, want);
        let error = numbering(4).check_hosts(&[0, 0, 0, 1], name).unwrap_err().to_string();
        assert!(error.contains("at most 2 processes may be on a host, of 4 in all"), "{error}");
    }
}
