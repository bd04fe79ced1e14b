//! The NIC that each GPU should take: one that can be used, or why there is none.

use bellpush::pcie::topology::{Address, Tree};

use super::checks::NOT_GIVEN;
use super::machine::{Machine, RANKED, is_card};
use super::verdict::Verdicts;

/// A GPU and a NIC.
pub struct Pair {
    /// The GPU.
    pub gpu: Address,
    /// The NIC.
    pub nic: Address,
    /// Its class, as nvidia-smi names it.
    pub class: String,
    /// NUMA distance by ACPI's SLIT, 10 is local.
    pub distance: Option<u32>,
    /// Whether the GPU should take this NIC.
    pub is_given: bool,
}

/// Every GPU beside every NIC.
#[derive(Default)]
pub struct Placement {
    /// The first 64 of each.
    pub pairs: Vec<Pair>,
    /// GPUs that should take none of them, and why.
    pub without: Vec<(Address, String)>,
}

impl Placement {
    /// The placement of a machine; nothing without RDMA devices.
    pub fn of(m: &Machine, verdicts: &Verdicts) -> Self {
        let Some(tree) = m.pci.tree().filter(|_| !m.rdma.is_empty()) else {
            return Self::default();
        };
        // A function without an RDMA device may be that of one of which the function is not shown.
        let may_be_its = !m.unplaced().is_empty();
        let is_usable = |nic: &Address| {
            m.rdma_at(*nic).map_or(may_be_its, |device| {
                (device.is_mlx5() || device.may_be_mlx5())
                    && verdicts.against_nic(&device.name).is_empty()
            })
        };
        let nics = nics(m, &tree, is_usable);
        let usable: Vec<Address> = nics.iter().copied().filter(is_usable).collect();
        let is_ranked = m.unranked().is_none() && !nics.is_empty();
        let given = m.pairs_of(&tree, &usable);
        let nodes: Vec<u32> = m.system.distances.keys().copied().collect();
        let distance = |a: Address, b: Address| {
            let place = nodes.iter().position(|&n| Some(n) == tree.numa(b))?;
            m.system.distances.get(&tree.numa(a)?)?.get(place).copied()
        };
        let mut own = Self::default();
        for gpu in m.gpus().into_iter().take(RANKED) {
            let why = why_none(m, verdicts, gpu, &usable);
            for &nic in nics.iter().take(RANKED) {
                let is_its = given.iter().any(|p| p.gpu == gpu && p.nic == Some(nic));
                own.pairs.push(Pair {
                    gpu,
                    nic,
                    class: tree.class(gpu, nic).to_string(),
                    distance: distance(gpu, nic),
                    is_given: is_its && why.is_none(),
                });
            }
            own.without.extend(why.filter(|_| is_ranked).map(|why| (gpu, why)));
        }
        own
    }
}

/// The NICs, and virtual functions that can be used where their card's physical ones cannot.
fn nics(m: &Machine, tree: &Tree<'_>, is_usable: impl Fn(&Address) -> bool) -> Vec<Address> {
    let mut all = m.nics(tree);
    let is_lone = |v: &Address| {
        is_usable(v) && !all.iter().any(|nic| is_card(tree, *v, *nic) && is_usable(nic))
    };
    let lone: Vec<Address> = m.virtual_nics(tree).into_iter().filter(is_lone).collect();
    all.extend(lone);
    all
}

/// Why a GPU should take no NIC.
fn why_none(m: &Machine, verdicts: &Verdicts, gpu: Address, usable: &[Address]) -> Option<String> {
    if !m.is_given(gpu) {
        return Some(NOT_GIVEN.to_owned());
    }
    let by = verdicts.against_gpu(gpu);
    if !by.is_empty() {
        return Some(format!("it cannot be used ({})", by.join(", ")));
    }
    if !usable.is_empty() {
        return None;
    }
    let mut by: Vec<&str> =
        m.mlx5().flat_map(|device| verdicts.against_nic(&device.name)).collect();
    by.sort_unstable();
    by.dedup();
    let by = if by.is_empty() { vec!["rdma-device"] } else { by };
    Some(format!("no card can be used ({})", by.join(", ")))
}
