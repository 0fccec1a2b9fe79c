//! The hosts and racks of a group's ranks.
//!
//! The topology orders the ranks so that those of a host follow each other, and so do the hosts of a rack. A butterfly forms its
//! layers in that order, so that its first layers join neighbours. If the degrees of the first layers multiply to the number of
//! ranks per host, a host's entries are reduced within it, and each of its ranks sends its part of them over the network once.

use skyphos_types::{Error, Result};
use std::sync::Arc;

/// The hosts and racks of a group's ranks, and the order of ranks that follows from them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Host and rack of each rank, numbered from 0 in the order of their first ranks.
    hosts: Arc<[u32]>,
    racks: Arc<[u32]>,
    /// `None` if the order is that of the ranks' numbers.
    order: Option<Arc<Order>>,
}

#[derive(Debug, PartialEq, Eq)]
struct Order {
    /// The rank at each index of the order.
    ranks: Vec<u32>,
    /// The index of each rank.
    indices: Vec<u32>,
}

impl Topology {
    /// The topology without information: each rank is on a host of its own, and all hosts are in one rack.
    pub fn flat(size: u32) -> Topology {
        Topology { hosts: (0..size).collect(), racks: (0..size).map(|_| 0).collect(), order: None }
    }

    /// A topology from the host and the rack of each rank. The numbers are arbitrary names. A host is in one rack.
    pub fn new(hosts: &[u32], racks: &[u32]) -> Result<Topology> {
        if hosts.len() != racks.len() {
            let message =
                format!("{} hosts and {} racks: expected one each per rank", hosts.len(), racks.len());
            return Err(Error::bad_input(message));
        }
        let (hosts, racks) = (renumbered(hosts), renumbered(racks));
        let mut rack_of = vec![None; hosts.len()];
        for (rank, (host, rack)) in hosts.iter().zip(&racks).enumerate() {
            if *rack_of[*host as usize].get_or_insert(*rack) != *rack {
                let message = format!("rank {rank} is in another rack than other ranks of its host");
                return Err(Error::bad_input(message));
            }
        }
        let mut ranks: Vec<u32> = (0..hosts.len() as u32).collect();
        ranks.sort_by_key(|rank| (racks[*rank as usize], hosts[*rank as usize], *rank));
        let in_order = ranks.is_sorted();
        let mut indices = vec![0; ranks.len()];
        (0..).zip(&ranks).for_each(|(index, rank)| indices[*rank as usize] = index);
        let order = (!in_order).then(|| Arc::new(Order { ranks, indices }));
        Ok(Topology { hosts: hosts.into(), racks: racks.into(), order })
    }

    /// The topology of a group of these ranks.
    pub fn of_group(&self, ranks: &[u32]) -> Topology {
        let pick = |all: &[u32]| -> Vec<u32> { ranks.iter().map(|rank| all[*rank as usize]).collect() };
        Topology::new(&pick(&self.hosts), &pick(&self.racks)).expect("hosts keep their racks")
    }

    /// The host of each rank.
    pub fn hosts(&self) -> &[u32] {
        &self.hosts
    }

    /// The rack of each rank.
    pub fn racks(&self) -> &[u32] {
        &self.racks
    }

    /// The rank at an index of the order.
    pub fn rank_at(&self, index: u32) -> u32 {
        self.order.as_ref().map_or(index, |order| order.ranks[index as usize])
    }

    /// The index of a rank in the order.
    pub fn index_of(&self, rank: u32) -> u32 {
        self.order.as_ref().map_or(rank, |order| order.indices[rank as usize])
    }

    /// Ranks of a host, if there are several hosts and all have equally many; else 1, because then no layer fits the hosts.
    pub fn ranks_per_host(&self) -> u32 {
        let ranks = common_count(&self.hosts);
        if ranks as usize == self.hosts.len() { 1 } else { ranks }
    }
}

impl Default for Topology {
    fn default() -> Topology {
        Topology::flat(0)
    }
}

/// Numbers from 0 for arbitrary names, in the order of their first occurrence.
fn renumbered(names: &[u32]) -> Vec<u32> {
    let mut seen = std::collections::BTreeMap::new();
    names
        .iter()
        .map(|name| {
            let next = seen.len() as u32;
            *seen.entry(*name).or_insert(next)
        })
        .collect()
}

/// How often each number occurs, if all occur equally often; else 1.
fn common_count(numbers: &[u32]) -> u32 {
    let mut counts = vec![0u32; numbers.iter().max().map_or(0, |largest| *largest as usize + 1)];
    numbers.iter().for_each(|number| counts[*number as usize] += 1);
    match counts.iter().all(|count| *count == counts[0]) {
        true => counts.first().copied().unwrap_or(1),
        false => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_racks_stay_together() {
        // Ranks are assigned in turn to four hosts in two racks.
        let topology = Topology::new(&[7, 3, 9, 5, 7, 3, 9, 5], &[1, 2, 1, 2, 1, 2, 1, 2]).unwrap();
        let order: Vec<u32> = (0..8).map(|index| topology.rank_at(index)).collect();
        assert_eq!(order, [0, 4, 2, 6, 1, 5, 3, 7]);
        assert!((0..8).all(|rank| topology.rank_at(topology.index_of(rank)) == rank));
        assert_eq!(topology.ranks_per_host(), 2);
        let group = topology.of_group(&[1, 0, 5, 4]);
        assert_eq!((group.hosts(), group.racks()), (&[0, 1, 0, 1][..], &[0, 1, 0, 1][..]));
        assert_eq!(topology.of_group(&[0, 1, 5]).ranks_per_host(), 1, "hosts of different sizes");
    }

    #[test]
    fn ranks_that_are_in_order_need_no_tables() {
        let topology = Topology::new(&[0, 0, 1, 1], &[0, 0, 0, 0]).unwrap();
        assert!(topology.order.is_none() && topology.index_of(3) == 3);
        assert_eq!(Topology::flat(3), Topology::new(&[4, 5, 6], &[1, 1, 1]).unwrap());
    }

    #[test]
    fn a_host_is_in_one_rack() {
        assert!(Topology::new(&[0, 0], &[0, 1]).unwrap_err().to_string().contains("rank 1"));
        assert!(Topology::new(&[0], &[]).is_err());
    }
}
