//! The least that bellpush takes of a GPU and its driver: what `Gpu::open` refuses.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use bellpush::pcie::topology::Address;

use crate::doctor::finding::{Finding, Need};
use crate::doctor::machine::Machine;
use crate::doctor::read::short;
use crate::doctor::verdict::label;

/// First driver with CUDA 12.4.
const DRIVER: u32 = 550;

/// GPUs older than Ampere, by PCI device id: generation and the highest compute capability in it. NVIDIA gives the ids of
/// a chip from one block; pci.ids names the chip of each id.
const OLDER: [(RangeInclusive<u16>, &str, &str); 8] = [
    (0x0000..=0x133f, "Kepler or older", "3.7 at most"),
    (0x15f0..=0x15ff, "Pascal", "6.0"), // GP100, amid Maxwell
    (0x1725..=0x172f, "Pascal", "6.0"), // GP100
    (0x1340..=0x17ff, "Maxwell", "5.2 at most"),
    (0x1b00..=0x1d7f, "Pascal", "6.1"),
    (0x1d80..=0x1dff, "Volta", "7.0"),
    (0x1e00..=0x1fff, "Turing", "7.5"),
    (0x2180..=0x21ff, "Turing", "7.5"), // TU116, behind GA100 (0x2080 to 0x20ff)
];

/// Generation and compute capability of a GPU that is older than Ampere.
fn older(device: u16) -> Option<(&'static str, &'static str)> {
    let own = OLDER.iter().find(|(ids, ..)| ids.contains(&device));
    own.map(|(_, generation, capability)| (*generation, *capability))
}

/// The driver's version that counts for CUDA: that of its library where it is shown, which is another with cuda-compat.
enum Version<'a> {
    Library(&'a str),
    Module(&'a str),
}

impl<'a> Version<'a> {
    fn of(m: &'a Machine) -> Option<Self> {
        let libraries = m.system.libraries.known();
        let file = libraries.and_then(|all| all.get("libcuda.so.1"));
        let version = file.and_then(|name| name.strip_prefix("libcuda.so."));
        let library = version.filter(|version| major(version).is_some_and(|n| n > 1));
        library.map(Self::Library).or_else(|| m.nvidia.driver().map(Self::Module))
    }

    const fn text(&self) -> &'a str {
        match self {
            Self::Library(version) | Self::Module(version) => version,
        }
    }
}

fn major(version: &str) -> Option<u32> {
    version.split('.').next()?.parse().ok()
}

/// The driver, where CUDA of it is too old or not to be told.
pub fn driver(m: &Machine) -> Option<Finding> {
    let version = Version::of(m);
    match version.as_ref().and_then(|version| major(version.text())) {
        Some(number) if number >= DRIVER => None,
        None => Some(
            Finding::unseen("the driver's version, which is to be 550 or later", "nvidia-smi")
                .hides(&[Need::Gpu]),
        ),
        Some(_) => {
            let version = version?;
            let what = if let Version::Library(_) = version { "libcuda" } else { "driver" };
            Some(
                Finding::prevents(
                    &[Need::Gpu],
                    format!("{what} {}, older than 550", short(version.text())),
                )
                .expected("driver 550 or later: CUDA 12.4")
                .cost("bellpush refuses its CUDA: kernels run on CPU threads")
                .fix(
                    "update the driver; or, on data centre GPUs, the package cuda-compat of CUDA \
                     12.4 or later beside a driver that it supports",
                )
                .source("CUDA Toolkit 12.4, Release Notes, table 3 (minimum driver); CUDA Compatibility"),
            )
        }
    }
}

/// GPUs that are too old, those of one generation together, and those of which that is not shown.
pub fn generation(m: &Machine, gpus: &[Address]) -> Vec<Finding> {
    let mut old: BTreeMap<_, Vec<Address>> = BTreeMap::new();
    let mut hidden = Vec::new();
    for &gpu in gpus {
        let function = m.pci.capture.known().and_then(|capture| capture.get(gpu));
        match function.and_then(|function| function.device) {
            None => hidden.push(gpu),
            Some(device) => {
                if let Some(generation) = older(device) {
                    old.entry(generation).or_default().push(gpu);
                }
            }
        }
    }
    let of = |finding: Finding, gpus: &[Address]| {
        let names: Vec<String> = gpus.iter().map(|gpu| label(m, *gpu)).collect();
        gpus.iter().fold(finding, |f, gpu| f.lacks_of_gpu(Need::Gpu, *gpu)).of(names.join(", "))
    };
    let told = |((generation, capability), gpus): (&(&str, &str), &Vec<Address>)| {
        let found = format!("{generation}: compute capability {capability}");
        of(Finding::warn(found), gpus)
            .expected("compute capability 8.0 or later: Ampere and what came after it")
            .cost("bellpush refuses them: it has no kernels for them")
            .fix("use a later GPU, or --gpu host")
            .source("pci.ids (the chip of a device id); CUDA GPU Compute Capability")
    };
    let mut all: Vec<Finding> = old.iter().map(told).collect();
    if !hidden.is_empty() {
        let found = "compute capability: no PCI device id is shown";
        all.push(of(Finding::unseen(found, "nvidia-smi --query-gpu=compute_cap"), &hidden));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The chips' ids by pci.ids, at both ends of each generation.
    #[test]
    fn device_ids_tell_the_generation() {
        for (device, generation) in [
            (0x1024, Some("Kepler or older")), // Tesla K40c
            (0x12b9, Some("Kepler or older")), // Quadro K610M
            (0x1340, Some("Maxwell")),         // GeForce 830M
            (0x17f0, Some("Maxwell")),         // Quadro M6000
            (0x15f8, Some("Pascal")),          // Tesla P100
            (0x172f, Some("Pascal")),          // GP100
            (0x1b00, Some("Pascal")),          // TITAN X
            (0x1d52, Some("Pascal")),          // GeForce MX250
            (0x1d81, Some("Volta")),           // TITAN V
            (0x1df6, Some("Volta")),           // Tesla V100S
            (0x1e02, Some("Turing")),          // TITAN RTX
            (0x1eb8, Some("Turing")),          // Tesla T4
            (0x1ff9, Some("Turing")),          // Quadro T1000 Mobile
            (0x2182, Some("Turing")),          // GeForce GTX 1660 Ti
            (0x21d1, Some("Turing")),          // GeForce GTX 1660 Ti Mobile
            (0x2082, None),                    // CMP 170HX, GA100
            (0x20b0, None),                    // A100
            (0x2204, None),                    // GeForce RTX 3090
            (0x25b6, None),                    // A2
            (0x2330, None),                    // H100
            (0x2bb5, None),                    // RTX PRO 6000 Blackwell Server
        ] {
            assert_eq!(older(device).map(|(name, _)| name), generation, "{device:#06x}");
        }
    }
}
