//! Replicated groups: each rank is several processes.

use crate::comm::{Comm, LocalRanks};
use crate::group_start::{
    PROFILE_BYTES, decode_profile, decode_topology, encode_profile, encode_topology, own_cores,
};
use skyphos_core::local::local_group;
use skyphos_core::replicated::{Replicated, startup_broadcast};
use skyphos_core::transport::{Health, Transport};
use skyphos_core::{Settings, Topology};
use skyphos_plan::Profile;
use skyphos_types::{Error, Result};

/// The options of a replicated group.
#[derive(Clone, Copy, Debug)]
pub struct Replication {
    /// The least number s of processes per rank: P processes form ⌊P / s⌋ ranks.
    pub each: u32,
    /// Allow replicas of a rank to share a host, for experiments. If that host fails, the rank is lost.
    pub share_hosts: bool,
}

impl Comm {
    /// A replicated group of all processes of a connected transport (Kylix §V). Processes i, m + i, 2m + i … are rank i, have the
    /// same data and make the same calls. The group lives as long as each rank has a live process, and does not wait for slow
    /// replicas. All replicas get the same bits.
    ///
    /// Only process 0's `mine` counts: the profile that `auto` starts with, and the hosts and racks of all processes. `auto` does
    /// not learn from calls, because replicas would measure different times.
    ///
    /// # Errors
    /// `BadInput` on all processes if there are too few of them, or if replicas of a rank share a host (the error shows
    /// a numbering that works). If process 0's `mine` is an error, all processes get it.
    pub fn replicated(
        mut transport: Box<dyn Transport>,
        replication: Replication,
        settings: Settings,
        mine: Result<(Option<Profile>, Option<Topology>)>,
    ) -> Result<Comm> {
        let mut waiting = Vec::new();
        let mine = mine.map(|(profile, topology)| {
            [encode_profile(profile), topology.as_ref().map_or_else(Vec::new, encode_topology)].concat()
        });
        let bytes = startup_broadcast(&mut *transport, mine, settings.timeout, &mut waiting)?;
        let Some((profile, topology)) = bytes.split_at_checked(PROFILE_BYTES) else {
            let message = format!("a message of {} bytes that cannot start a group", bytes.len());
            return Err(Error::Corrupt { rank: 0, message });
        };
        let processes = transport.size() as usize;
        if !topology.is_empty() && topology.len() != 8 * processes {
            let count = topology.len() / 8;
            let message =
                format!("process 0 has a topology of {count} processes, and the group has {processes}");
            return Err(Error::bad_input(message));
        }
        let replicated = Replicated::new(transport, replication.each, replication.share_hosts, waiting)?;
        Comm::over_replicas(replicated, settings, decode_profile(profile), |ranks| match topology {
            [] => Ok(None),
            _ => Ok(Some(decode_topology(topology)?.of_group(ranks))),
        })
    }

    /// The Comms of a replicated group whose processes are `size` threads of this process, `each` per rank; in process order.
    pub fn local_replicated(size: u32, each: u32, settings: &Settings) -> Result<LocalRanks> {
        let comms = local_group(size).into_iter().map(|local| {
            let replicated = Replicated::new(Box::new(local), each, true, Vec::new())?;
            Comm::over_replicas(replicated, settings.clone(), (None, own_cores()), |_| Ok(None))
        });
        Ok(LocalRanks(comms.collect::<Result<_>>()?))
    }

    fn over_replicas(
        replicated: Replicated,
        settings: Settings,
        (profile, cores): (Option<Profile>, f64),
        topology_of: impl FnOnce(&[u32]) -> Result<Option<Topology>>,
    ) -> Result<Comm> {
        let comm = Comm::over_with_topology(Box::new(replicated), settings, topology_of)?;
        let mut tuner = comm.tuner();
        let observations = &mut tuner.observations;
        (observations.base, observations.host_cores, observations.fixed) = (profile, Some(cores), true);
        drop(tuner);
        Ok(comm)
    }

    /// This process's number, and the number of processes, which exceeds the number of ranks in a replicated group.
    pub fn process(&self) -> (u32, u32) {
        let (process, processes) = self.node().process();
        (process.0, processes)
    }

    /// The least number of processes of a rank.
    pub fn replication(&self) -> u32 {
        self.process().1 / self.node().size()
    }

    /// This process's number among the replicas of its rank.
    pub fn replica(&self) -> u32 {
        self.process().0 / self.node().size()
    }

    /// Health of the group's processes: which are lost or late, and whose messages arrived first. Not collective.
    pub fn health(&self) -> Vec<Health> {
        self.node().health()
    }
}
