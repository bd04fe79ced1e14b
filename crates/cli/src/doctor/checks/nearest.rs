//! The NIC beside each GPU.

use bellpush::pcie::topology::{Address, Assigned, Class, Distance, Tree};

use super::place::{both, far};
use crate::doctor::finding::Finding;
use crate::doctor::machine::{Machine, RANKED};
use crate::doctor::read::short;
use crate::doctor::verdict::label;

/// The nearest NIC with an active port, other than `not`.
fn active(m: &Machine, tree: &Tree<'_>, gpu: Address, not: Address) -> Option<(Address, Class)> {
    let works = |a: &Address| *a != not && m.rdma_at(*a).is_some_and(|d| d.is_active());
    let nics = m.nics(tree).into_iter().filter(works);
    nics.map(|a| (a, tree.class(gpu, a))).min_by_key(|(_, class)| far(*class))
}

/// Of a GPU's nearest functions one that mlx5 drives and that has no RDMA device, where those that have one are known to
/// be farther. Without mlx5 it is a card for other networks, or a virtual machine's.
fn bare(m: &Machine, nearest: &Assigned<Address>, class: Class) -> Option<Address> {
    let is_farther = matches!(class, Class::Known(_)) && far(class) > far(nearest.class);
    let is_bare = |nic: &&Address| {
        m.rdma_at(**nic).is_none()
            && m.pci.more(**nic).driver.as_deref() == Some("mlx5_core")
            && !m.is_gone(**nic)
    };
    nearest.nic.iter().chain(&nearest.ties).filter(|_| is_farther).find(is_bare).copied()
}

pub fn nic_of_gpu(m: &Machine) -> Vec<Finding> {
    let Some((tree, _, _)) = both(m) else { return Vec::new() };
    let mut all = Vec::new();
    if let Some((gpus, nics)) = m.unranked() {
        let found = format!("{gpus} GPUs and {nics} NICs: more than {RANKED} are not ranked");
        return vec![Finding::unseen(found, "bellpush topo")];
    }
    let unplaced = m.unplaced();
    if !unplaced.is_empty() {
        let found = format!("PCI functions of {}", short(&unplaced.join(", ")));
        return vec![Finding::unseen(found, "bellpush topo on the host")];
    }
    let of_any_kind: Vec<&str> = m.of_any_kind().map(|device| device.name.as_str()).collect();
    if !of_any_kind.is_empty() {
        let found =
            format!("whether these are of cards or of software: {}", of_any_kind.join(", "));
        return vec![Finding::unseen(short(&found), "rdma link")];
    }
    let nearest = m.pairs_of(&tree, &m.nics(&tree));
    // Where none has an RDMA device, `rdma-device` tells of it.
    for pair in m.pairs_of(&tree, &m.rdma_nics(&tree)) {
        let Some(nic) = pair.nic else { continue };
        // Another check tells of it, and what was near is of no use.
        if m.is_gone(pair.gpu) || m.is_gone(nic) {
            continue;
        }
        let (gpu, name) = (m.gpu_name(pair.gpu), m.nic_name(nic));
        let found = short(&format!("{name}, {}", pair.class));
        let of_any = nearest.iter().find(|any| any.gpu == pair.gpu);
        if let Some((any, card)) = of_any.and_then(|any| Some((any, bare(m, any, pair.class)?))) {
            all.push(
                Finding::warn(format!("{card}, {}, has no RDMA device", any.class))
                    .of(gpu)
                    .expected("an RDMA device at the nearest card")
                    .cost(format!("the nearest NIC that has one is {found}"))
                    .fix(format!(
                        "look at mlx5_ib in dmesg, and at devlink dev param show pci/{card} name \
                         enable_rdma; in a container, move the device in (rdma dev set DEVICE netns)"
                    )),
            );
            continue;
        }
        if m.rdma_at(nic).is_some_and(|d| d.is_down()) {
            let other = active(m, &tree, pair.gpu, nic);
            if let Some((other, class)) = other.filter(|(_, class)| far(*class) > far(pair.class)) {
                all.push(
                    Finding::warn(format!("{found}, has no active port"))
                        .of(gpu)
                        .expected("an active port at the nearest NIC")
                        .cost(format!("the next one is {}, {class}", m.nic_name(other)))
                        .fix("bring up the port"),
                );
                continue;
            }
        }
        match pair.class {
            Class::Known(Distance::Sys) => all.push(
                Finding::warn(found)
                    .of(gpu)
                    .expected("a NIC of the GPU's NUMA node")
                    .cost("every transfer crosses the link between sockets, which peers share")
                    .fix(
                        "move a NIC to the GPU's socket, or give this GPU's traffic to GPUs \
                     that have one",
                    ),
            ),
            Class::NodeOrSys | Class::Unknown => all.push(
                Finding::unseen(
                    format!("{found}: the tree above is not shown"),
                    "look on the host",
                )
                .of(gpu),
            ),
            class => {
                let own = format!("{} {}", label(m, pair.gpu), short(&name));
                all.push(Finding::fine(class.to_string()).of(own));
            }
        }
    }
    all
}
