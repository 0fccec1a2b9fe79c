//! The groups of the nested butterfly of mixed degrees (Kylix §II-A, §III-D).
//!
//! A rank's index is a number of mixed radix with one digit per layer; the first layer's digit is the least significant. In layer
//! i the d_i ranks that differ only in digit i form a group, and the rank with digit c takes part c of the range that they share.
//! One layer of degree P is the direct algorithm; degrees of 2 make the binary butterfly. Indices follow the order of the
//! [`Topology`], not the rank numbers, so the first layers, which carry most bytes, join ranks of one host, and the next ones
//! hosts of one rack.

use crate::topology::Topology;
use skyphos_types::{Error, Result};

/// The group of one rank in one layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbours {
    /// The ranks of the group, by digit.
    pub members: Vec<u32>,
    /// This rank's digit.
    pub me: usize,
}

/// Checks that there are degrees, and that their product is the group's size.
pub fn check_degrees(degrees: &[u32], size: u32) -> Result<()> {
    if degrees.is_empty() {
        return Err(Error::bad_input(format!(
            "no degrees: a butterfly of {size} ranks has at least one layer; without degrees= the planner chooses them"
        )));
    }
    let product = degrees.iter().try_fold(1u32, |p, d| p.checked_mul(*d));
    if product != Some(size) || degrees.contains(&0) {
        let text: Vec<_> = degrees.iter().map(u32::to_string).collect();
        return Err(Error::bad_input(format!(
            "degrees {} do not multiply to the group's size {size}",
            text.join("x")
        )));
    }
    Ok(())
}

/// The neighbours of a rank, layer by layer. With more than one layer, the digits are those of the index in the topology's order.
pub fn layers(degrees: &[u32], rank: u32, topology: &Topology) -> Vec<Neighbours> {
    let in_order = degrees.len() > 1;
    let index = if in_order { topology.index_of(rank) } else { rank };
    let rank_at = |index: u32| if in_order { topology.rank_at(index) } else { index };
    let mut stride = 1;
    degrees
        .iter()
        .map(|d| {
            let digit = index / stride % d;
            let first = index - digit * stride;
            let members = (0..*d).map(|c| rank_at(first + c * stride)).collect();
            stride *= d;
            Neighbours { members, me: digit as usize }
        })
        .collect()
}

/// Like [`layers`], for a reduction after which rank r has part r: the first digit is the most significant.
pub fn layers_by_rank(degrees: &[u32], rank: u32) -> Vec<Neighbours> {
    let mut stride: u32 = degrees.iter().product();
    degrees
        .iter()
        .map(|d| {
            stride /= d;
            let digit = rank / stride % d;
            let first = rank - digit * stride;
            Neighbours { members: (0..*d).map(|c| first + c * stride).collect(), me: digit as usize }
        })
        .collect()
}

/// The number of the part that a rank has after all layers.
pub fn part_of(layers: &[Neighbours]) -> u32 {
    layers.iter().fold(0, |part, group| part * group.members.len() as u32 + group.me as u32)
}

/// The rank that has a part after all [`layers`].
pub fn rank_of_part(degrees: &[u32], part: u32, topology: &Topology) -> u32 {
    if degrees.len() == 1 {
        return part;
    }
    let (mut rest, mut parts, mut stride, mut index) = (part, degrees.iter().product::<u32>(), 1, 0);
    for d in degrees {
        parts /= d;
        index += rest / parts * stride;
        (rest, stride) = (rest % parts, stride * d);
    }
    topology.rank_at(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_by_rank_leave_each_rank_with_the_part_of_its_number() {
        for degrees in [vec![12], vec![3, 4], vec![4, 3], vec![2, 3, 2], vec![1, 12]] {
            let size: u32 = degrees.iter().product();
            for rank in 0..size {
                let all = layers_by_rank(&degrees, rank);
                assert_eq!(part_of(&all), rank);
                for group in all {
                    assert_eq!(group.members[group.me], rank);
                    for peer in &group.members {
                        let theirs = layers_by_rank(&degrees, *peer);
                        assert!(theirs.iter().any(|layer| layer.members == group.members));
                    }
                }
            }
        }
    }

    #[test]
    fn groups_partition_the_ranks_and_agree() {
        for degrees in [vec![12], vec![3, 4], vec![2, 3, 2], vec![1, 12], vec![11]] {
            let size: u32 = degrees.iter().product();
            check_degrees(&degrees, size).unwrap();
            let (hosts, racks): (Vec<u32>, Vec<u32>) = (0..size).map(|rank| (rank % 4, 0)).unzip();
            for topology in [Topology::flat(size), Topology::new(&hosts, &racks).unwrap()] {
                let part = |rank| part_of(&layers(&degrees, rank, &topology));
                assert!((0..size).all(|rank| rank_of_part(&degrees, part(rank), &topology) == rank));
                for rank in 0..size {
                    for (k, group) in layers(&degrees, rank, &topology).iter().enumerate() {
                        assert_eq!(group.members[group.me], rank);
                        for peer in &group.members {
                            assert_eq!(layers(&degrees, *peer, &topology)[k].members, group.members);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn the_first_layer_joins_ranks_of_one_host() {
        // Two ranks on each of three hosts, round robin.
        let topology = Topology::new(&[0, 1, 2, 0, 1, 2], &[0; 6]).unwrap();
        for rank in 0..6 {
            let layers = layers(&[2, 3], rank, &topology);
            assert!(layers[0].members.iter().all(|peer| peer % 3 == rank % 3));
            assert!(layers[1].members.iter().all(|peer| peer / 3 == rank / 3));
        }
    }

    #[test]
    fn wrong_products_are_refused() {
        assert!(check_degrees(&[], 8).unwrap_err().to_string().starts_with("no degrees"));
        for degrees in [vec![3, 2], vec![0, 8], vec![1 << 31, 1 << 31, 2]] {
            assert!(check_degrees(&degrees, 8).unwrap_err().to_string().contains("size 8"));
        }
    }
}
