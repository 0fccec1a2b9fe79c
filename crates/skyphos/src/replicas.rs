//! Groups whose ranks are several processes each.

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
        let mine = mine.map(|(profile, topology)| {
            [encode_profile(profile), topology.as_ref().map_or_else(Vec::new, encode_topology)].concat()
        });
        let bytes = startup_broadcast(&mut *transport, mine, settings.timeout, &mut waiting)?;
        let Some((start, places)) = bytes.split_at_checked(PROFILE_BYTES) else {
            let message = format!("{} bytes of what a group begins with", bytes.len());
            return Err(Error::Corrupt { rank: 0, message });
        };
        let processes = transport.size() as usize;
        if !places.is_empty() && places.len() != 8 * processes {
            let told = places.len() / 8;
            let message = format!("process 0 has a topology of {told} processes, of {processes}");
            return Err(Error::bad_input(message));
        }
        let replicated = Replicated::new(transport, replication.each, replication.share_hosts, waiting)?;
        Comm::over_replicas(replicated, settings, decode_profile(start), |ranks| match places {
            [] => Ok(None),
            _ => Ok(Some(decode_topology(places)?.of_group(ranks))),
        })
    }

    /// Groups for `size` processes inside this one, `each` of them a rank; by process.
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
        placed: impl FnOnce(&[u32]) -> Result<Option<Topology>>,
    ) -> Result<Comm> {
        let comm = Comm::over_placed(Box::new(replicated), settings, placed)?;
        let mut observed = comm.observed();
        (observed.base, observed.host_cores, observed.fixed) = (profile, Some(cores), true);
        drop(observed);
        Ok(comm)
    }

    /// This process's number, and how many there are: more than ranks, where those are replicated.
    pub fn process(&self) -> (u32, u32) {
        self.node().process()
    }

    /// Processes of each rank, at least.
    pub fn replication(&self) -> u32 {
        self.process().1 / self.node().size()
    }

    /// Which replica of its rank this process is.
    pub fn replica(&self) -> u32 {
        self.process().0 / self.node().size()
    }

    /// How the group's processes are: who is lost or late, and whose messages came first here. Not collective.
    pub fn health(&self) -> Vec<Health> {
        self.node().health()
    }
}
