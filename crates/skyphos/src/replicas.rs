//! Groups whose ranks are several processes each.

use crate::comm::{Comm, LocalRanks};
use crate::observe::own_cores;
use skyphos_core::local::local_group;
use skyphos_core::replicated::{Replicated, first_tells};
use skyphos_core::transport::{Health, Transport};
use skyphos_core::{Settings, Topology};
use skyphos_plan::Profile;
use skyphos_types::{Error, Result};

/// How a group's ranks are several processes.
#[derive(Clone, Copy, Debug)]
pub struct Replication {
    /// Processes of each rank, at least: P processes are ⌊P / s⌋ ranks.
    pub each: u32,
    /// Whether replicas of a rank may share a host, to try things out: its end would be the rank's.
    pub share_hosts: bool,
}

impl Comm {
    /// The group of all processes of a connected transport, several to a rank (Kylix §V): processes i, m + i, 2m + i … are
    /// rank i, hold the same data and make the same calls. The group lives as long as one process of each rank does, and a
    /// slow one holds nobody up. All results are the same bits on all replicas.
    ///
    /// What `auto` begins with is process 0's: `mine`, a profile and the hosts and racks of all processes. It learns nothing
    /// from calls, for replicas would learn different things.
    ///
    /// # Errors
    /// `BadInput` if there are too few processes, replicas of a rank share a host (with the numbering to use), or process 0
    /// has no profile to tell (`mine`'s own error), on all.
    pub fn replicated(
        mut transport: Box<dyn Transport>,
        replication: Replication,
        settings: Settings,
        mine: Result<(Option<Profile>, Option<Topology>)>,
    ) -> Result<Comm> {
        let mut waiting = Vec::new();
        let mine = mine.map(|(profile, topology)| words(profile, topology.as_ref()));
        let told = first_tells(&mut *transport, mine, settings.timeout, &mut waiting)?;
        let (profile, cores, topology) = read(&told).ok_or_else(|| Error::Corrupt {
            rank: 0,
            message: format!("{} bytes of what a group begins with", told.len()),
        })?;
        let processes = transport.size();
        let replicated = Replicated::new(transport, replication.each, replication.share_hosts, waiting)?;
        Comm::over_replicas(replicated, settings, profile, cores, |ranks| match topology {
            Some(topology) if topology.hosts().len() != processes as usize => Err(Error::bad_input(format!(
                "process 0 has a topology of {} processes, of {processes}",
                topology.hosts().len()
            ))),
            Some(topology) => {
                let m = ranks as usize;
                Topology::new(&topology.hosts()[..m], &topology.racks()[..m]).map(Some)
            }
            None => Ok(None),
        })
    }

    /// Groups for `size` processes inside this one, `each` of them a rank; by process.
    pub fn local_replicated(size: u32, each: u32, settings: &Settings) -> Result<LocalRanks> {
        let comms = local_group(size).into_iter().map(|local| {
            let replicated = Replicated::new(Box::new(local), each, true, Vec::new())?;
            Comm::over_replicas(replicated, settings.clone(), None, own_cores(), |_| Ok(None))
        });
        Ok(LocalRanks(comms.collect::<Result<_>>()?))
    }

    fn over_replicas(
        replicated: Replicated,
        settings: Settings,
        profile: Option<Profile>,
        cores: f64,
        placed: impl FnOnce(u32) -> Result<Option<Topology>>,
    ) -> Result<Comm> {
        let comm = Comm::over_placed(Box::new(replicated), settings, placed)?;
        let mut observed = comm.observed();
        (observed.base, observed.host_cores, observed.fixed) = (profile, Some(cores), true);
        drop(observed);
        Ok(comm)
    }

    /// This process's number, and how many there are: more than ranks, where those are replicated.
    pub fn process(&self) -> (u32, u32) {
        self.node().place()
    }

    /// Processes of each rank, at least.
    pub fn replication(&self) -> u32 {
        self.process().1 / self.node().size()
    }

    /// Which replica of its rank this process is.
    pub fn replica(&self) -> u32 {
        self.process().0 / self.node().size()
    }

    /// Whether ranks are several processes.
    pub fn is_replicated(&self) -> bool {
        self.replication() > 1
    }

    /// Refuses what cannot run replicated.
    pub(crate) fn needs_single_processes(&self, what: &str, instead: &str) -> Result<()> {
        match self.is_replicated() {
            true => Err(Error::bad_input(format!("{what} cannot run in a replicated group: {instead}"))),
            false => Ok(()),
        }
    }

    /// How the group's processes are: who is lost or late, and whose messages came first here. Not collective.
    pub fn health(&self) -> Vec<Health> {
        self.node().health()
    }
}

/// What process 0 tells: numbers of a profile (zeros: none), cores, then host and rack of each process.
fn words(profile: Option<Profile>, topology: Option<&Topology>) -> Vec<u8> {
    let numbers = profile.map_or([0.0; Profile::LEN], |profile| profile.numbers());
    let mut bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    bytes.extend(own_cores().to_le_bytes());
    for (host, rack) in topology.iter().flat_map(|t| t.hosts().iter().zip(t.racks())) {
        bytes.extend([host.to_le_bytes(), rack.to_le_bytes()].concat());
    }
    bytes
}

fn read(bytes: &[u8]) -> Option<(Option<Profile>, f64, Option<Topology>)> {
    let (numbers, places) = bytes.split_at_checked(8 * (Profile::LEN + 1))?;
    let number = |k: usize| f64::from_le_bytes(numbers[8 * k..][..8].try_into().expect("8 bytes"));
    let profile = Profile::from_numbers(std::array::from_fn(number));
    let half = |from: usize| -> Vec<u32> {
        let each = places.chunks_exact(8);
        each.map(|pair| u32::from_le_bytes(pair[from..][..4].try_into().expect("4 bytes"))).collect()
    };
    let topology = match places.len() {
        0 => None,
        _ => Some(Topology::new(&half(0), &half(4)).ok()?),
    };
    Some((profile, number(Profile::LEN), topology))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_group_begins_with_survives_the_wire() {
        let topology = Topology::new(&[0, 0, 1, 1], &[0, 0, 0, 0]).unwrap();
        let profile = Profile::network(1e8);
        let (got, cores, places) = read(&words(Some(profile), Some(&topology))).unwrap();
        assert_eq!((got, cores, places), (Some(profile), own_cores(), Some(topology)));
        let (got, _, places) = read(&words(None, None)).unwrap();
        assert_eq!((got, places), (None, None));
        assert!(read(&[0; 7]).is_none());
    }
}
