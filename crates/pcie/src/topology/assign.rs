//! A NIC for every GPU: the nearest, spread evenly where several are equally near.

use std::collections::VecDeque;

use super::capture::Address;
use super::identity;
use super::model::{Kind, NodeId, Topology};
use super::nvidia_smi::Matrix;
use super::tree::{Class, Tree};

/// The NIC of one GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assigned<T> {
    /// GPU.
    pub gpu: T,
    /// Its NIC; `None` where there is no NIC.
    pub nic: Option<T>,
    /// Their class.
    pub class: Class,
    /// NICs that are as near.
    pub ties: Vec<T>,
    /// Other GPUs with this NIC.
    pub shared_with: Vec<T>,
}

/// NICs of a capture that GPUs are given: those with RDMA if there are any, else those that may
/// have it, and physical functions before virtual ones.
pub fn candidates(tree: &Tree<'_>) -> Vec<Address> {
    let capture = tree.capture();
    let mut nics = capture.of_kind(Kind::Nic);
    prefer_rdma(&mut nics, |a| capture.get(*a).and_then(identity::has_rdma));
    prefer(&mut nics, |a| !capture.is_virtual(*a));
    nics
}

/// Leaves those that are wanted, if any is.
fn prefer<T>(all: &mut Vec<T>, is_wanted: impl Fn(&T) -> bool) {
    if all.iter().any(&is_wanted) {
        all.retain(is_wanted);
    }
}

fn prefer_rdma<T>(nics: &mut Vec<T>, has_rdma: impl Fn(&T) -> Option<bool>) {
    prefer(nics, |nic| has_rdma(nic) == Some(true));
    prefer(nics, |nic| has_rdma(nic) != Some(false));
}

/// Assigns the NICs of a capture. Functions of one card share its link, so GPUs are spread over
/// cards first.
pub fn assign(tree: &Tree<'_>) -> Vec<Assigned<Address>> {
    assign_to(tree, &candidates(tree))
}

/// As [`assign`], of these NICs.
pub fn assign_to(tree: &Tree<'_>, nics: &[Address]) -> Vec<Assigned<Address>> {
    let gpus = tree.capture().of_kind(Kind::Gpu);
    let card = |a: &Address| tree.capture().card(*a);
    let cards: Vec<usize> = nics
        .iter()
        .enumerate()
        .map(|(i, nic)| nics.iter().position(|n| card(n) == card(nic)).unwrap_or(i))
        .collect();
    let class = |g: usize, n: usize| tree.class(gpus[g], nics[n]);
    spread(gpus.len(), &cards, class).into_iter().map(|a| a.map(&gpus, nics)).collect()
}

/// Assigns the NICs of a matrix, as indices of its rows.
pub fn assign_matrix(matrix: &Matrix) -> Vec<Assigned<usize>> {
    let (gpus, nics) = (matrix.of_kind(Kind::Gpu), matrix.of_kind(Kind::Nic));
    let cards: Vec<usize> = (0..nics.len()).collect();
    let class =
        |g: usize, n: usize| matrix.class(gpus[g], nics[n]).map_or(Class::Unknown, Class::Known);
    spread(gpus.len(), &cards, class).into_iter().map(|a| a.map(&gpus, &nics)).collect()
}

/// Assigns the NICs of a topology, those with RDMA by their names first, over cards as far as they
/// are known.
pub fn assign_topology(topology: &Topology) -> Vec<Assigned<NodeId>> {
    let (gpus, mut nics) = (topology.of_kind(Kind::Gpu), topology.of_kind(Kind::Nic));
    prefer_rdma(&mut nics, |&nic| topology.nic_family(nic).map(|family| family.has_rdma));
    let card = |n: usize| topology.node(nics[n]).card.as_ref();
    let same = |n: usize| (0..n).find(|&m| card(m).is_some() && card(m) == card(n));
    let cards: Vec<usize> = (0..nics.len()).map(|n| same(n).unwrap_or(n)).collect();
    let class = |g: usize, n: usize| topology.class_of(gpus[g], nics[n]);
    spread(gpus.len(), &cards, class).into_iter().map(|a| a.map(&gpus, &nics)).collect()
}

impl Assigned<usize> {
    fn map<T: Copy>(self, gpus: &[T], nics: &[T]) -> Assigned<T> {
        Assigned {
            gpu: gpus[self.gpu],
            nic: self.nic.map(|n| nics[n]),
            class: self.class,
            ties: self.ties.into_iter().map(|n| nics[n]).collect(),
            shared_with: self.shared_with.into_iter().map(|g| gpus[g]).collect(),
        }
    }
}

/// Gives every GPU one of its nearest NICs. GPUs are added one by one, each along a chain of moves
/// to the least loaded NIC that such a chain reaches; this makes the greatest load of a NIC as
/// small as it can be (Harvey et al., *Semi-matchings for bipartite graphs*, 2003). `cards[n]` says
/// which NICs are of one card; of equally loaded NICs, that of the less loaded card is taken.
fn spread(
    gpus: usize,
    cards: &[usize],
    class: impl Fn(usize, usize) -> Class,
) -> Vec<Assigned<usize>> {
    let nearest: Vec<Vec<usize>> = (0..gpus)
        .map(|g| {
            let ranks: Vec<u8> = (0..cards.len()).map(|n| class(g, n).rank()).collect();
            let least = ranks.iter().min().copied();
            (0..cards.len()).filter(|&n| Some(ranks[n]) == least).collect()
        })
        .collect();
    let mut given: Vec<Option<usize>> = vec![None; gpus];
    for g in 0..gpus {
        add(g, cards, &nearest, &mut given);
    }
    (0..gpus)
        .map(|g| {
            let nic = given[g];
            let shares = |&h: &usize| h != g && nic.is_some() && given[h] == nic;
            Assigned {
                gpu: g,
                nic,
                class: nic.map_or(Class::Unknown, |n| class(g, n)),
                ties: nearest[g].iter().copied().filter(|&n| Some(n) != nic).collect(),
                shared_with: (0..gpus).filter(shares).collect(),
            }
        })
        .collect()
}

fn add(gpu: usize, cards: &[usize], nearest: &[Vec<usize>], given: &mut [Option<usize>]) {
    let mut loads = vec![0usize; cards.len()];
    let mut card_loads = vec![0usize; cards.len()];
    for &nic in given.iter().flatten() {
        loads[nic] += 1;
        card_loads[cards[nic]] += 1;
    }
    // For each NIC that is reached, the GPU that would move there.
    let mut mover: Vec<Option<usize>> = vec![None; cards.len()];
    let mut reached = Vec::new();
    let mut open = VecDeque::from([gpu]);
    while let Some(g) = open.pop_front() {
        for &nic in &nearest[g] {
            if mover[nic].is_some() {
                continue;
            }
            mover[nic] = Some(g);
            reached.push(nic);
            open.extend((0..given.len()).filter(|&h| given[h] == Some(nic)));
        }
    }
    let least = reached.into_iter().min_by_key(|&nic| (loads[nic], card_loads[cards[nic]]));
    let mut to = least;
    while let Some(nic) = to {
        let Some(g) = mover[nic] else { break };
        to = given[g].replace(nic);
        if g == gpu {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Distance;
    use proptest::prelude::*;

    fn greatest(loads: &[usize]) -> usize {
        loads.iter().copied().max().unwrap_or(0)
    }

    /// The least greatest load, by trying everything.
    fn best(nearest: &[Vec<usize>], loads: &mut Vec<usize>) -> usize {
        let Some((first, rest)) = nearest.split_first() else { return greatest(loads) };
        let mut least = usize::MAX;
        for &nic in first {
            loads[nic] += 1;
            least = least.min(best(rest, loads));
            loads[nic] -= 1;
        }
        least
    }

    proptest! {
        /// Everyone gets a nearest NIC, and no NIC has more than it must.
        #[test]
        fn nearest_and_spread(
            ranks in proptest::collection::vec(proptest::collection::vec(0u8..3, 4), 1..7),
        ) {
            let distance = [Distance::Pix, Distance::Phb, Distance::Sys];
            let class = |g: usize, n: usize| Class::Known(distance[usize::from(ranks[g][n])]);
            let all = spread(ranks.len(), &[0, 1, 2, 3], class);
            let mut loads = vec![0; 4];
            let mut nearest = Vec::new();
            for (g, own) in all.iter().enumerate() {
                let nic = own.nic.expect("there are NICs");
                let least = *ranks[g].iter().min().expect("four");
                prop_assert_eq!(ranks[g][nic], least);
                let near: Vec<usize> = (0..4).filter(|&n| ranks[g][n] == least).collect();
                prop_assert_eq!(own.ties.len() + 1, near.len());
                loads[nic] += 1;
                nearest.push(near);
            }
            for own in &all {
                let nic = own.nic.expect("there are NICs");
                prop_assert_eq!(own.shared_with.len() + 1, loads[nic]);
            }
            let least = best(&nearest, &mut vec![0; 4]);
            prop_assert_eq!(greatest(&loads), least);
        }
    }

    #[test]
    fn cards_before_ports_and_no_nic() {
        let class = |_: usize, _: usize| Class::Known(Distance::Node);
        // Two cards of two ports: two GPUs get one card each.
        let two: Vec<_> = spread(2, &[0, 0, 2, 2], class).iter().map(|a| a.nic).collect();
        assert_eq!(two, [Some(0), Some(2)]);
        assert_eq!(spread(1, &[], class)[0].nic, None);
    }
}
