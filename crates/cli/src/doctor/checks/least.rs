//! The least that bellpush takes of a GPU and its driver: what `Gpu::open` refuses.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use bellpush::pcie::topology::Address;

use crate::doctor::finding::{Finding, Need};
use crate::doctor::machine::Machine;
use crate::doctor::machine::system::{Cuda, major};
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

/// GPUs that the open kernel module alone drives, by PCI device id: Blackwell (GB100 and GB102, GB202, GB110) and Grace
/// Hopper (pci.ids; Linux, drivers/vfio/pci/nvgrace-gpu/main.c). Others of these generations are not told apart.
const OPEN_ALONE: [RangeInclusive<u16>; 6] = [
    0x2900..=0x29ff,
    0x2b80..=0x2bff,
    0x31c2..=0x31c3,
    0x2342..=0x2342,
    0x2345..=0x2345,
    0x2348..=0x2348,
];

/// The kernel module that a GPU needs, where the driver's is the other: the open one has no GPU from before Turing, the
/// closed one no Blackwell and no Grace Hopper (NVIDIA Driver Installation Guide, "Kernel Modules").
pub fn other_module(m: &Machine, gpu: Address) -> Option<&'static str> {
    other_than(m.pci.capture.known()?.get(gpu)?.device?, m.nvidia.is_open()?)
}

/// The same of a PCI device id.
fn other_than(device: u16, is_open: bool) -> Option<&'static str> {
    let is_old = older(device).is_some_and(|(generation, _)| generation != "Turing");
    match is_open {
        true => is_old.then_some("closed"),
        false => OPEN_ALONE.iter().any(|ids| ids.contains(&device)).then_some("open"),
    }
}

/// What is said of versions that bellpush refuses.
const REFUSED: &str = "bellpush refuses its CUDA: kernels run on CPU threads";
const LEAST: &str = "driver 550 or later: CUDA 12.4";
const SOURCE: &str =
    "CUDA Toolkit 12.4, Release Notes, table 3 (minimum driver); CUDA Compatibility";
/// The same of versions that NVIDIA's driver refuses.
const MISMATCH: &str = "CUDA Driver API, CUresult (803 CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, \
                        804 CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE); CUDA Compatibility";

/// How a library's version stands to the module's; the same where either is no version.
fn beside(library: &str, module: Option<&str>) -> Ordering {
    let numbers = |version: &str| -> Option<Vec<u32>> {
        version.split('.').map(|number| number.parse().ok()).collect()
    };
    let module = module.and_then(numbers);
    numbers(library).zip(module).map_or(Ordering::Equal, |(library, module)| library.cmp(&module))
}

/// The libraries of CUDA that the loader may take: the one that `LD_LIBRARY_PATH` names, or else any. What cuda-compat
/// leaves beside the driver's own is taken by those who name its folder.
fn taken(m: &Machine) -> Vec<&Cuda> {
    let all = &m.system.cudas;
    if let Some(first) = all.iter().find(|cuda| cuda.is_first) {
        return vec![first];
    }
    let is_new = |cuda: &&Cuda| major(&cuda.version).is_some_and(|number| number >= DRIVER);
    let is_own = |cuda: &&Cuda| m.nvidia.driver() == Some(cuda.version.as_str());
    match all.iter().filter(is_new).find(is_own) {
        Some(own) => vec![own],
        None => all.iter().collect(),
    }
}

/// A library and the module over which it lies.
fn over(library: &Cuda, module: Option<&str>) -> String {
    let (library, module) = (short(&library.version), short(module.unwrap_or("?")));
    format!("libcuda {library} over the driver {module}")
}

/// A library that is older than the module: no compatibility goes that way.
fn mismatched(library: &Cuda, module: &str) -> Finding {
    let (version, module) = (short(&library.version), short(module));
    let found = format!("libcuda {version}, older than the driver {module}");
    let fix = match library.is_first {
        true => {
            format!("take {} out of LD_LIBRARY_PATH", short(&library.folder))
        }
        false => "install the user-space part of the module's driver".to_owned(),
    };
    Finding::prevents(&[Need::Gpu], found)
        .expected(format!(
            "libcuda {module}, of the module's own driver, or one of cuda-compat that is newer"
        ))
        .cost("CUDA does not start (error 803): kernels run on CPU threads")
        .fix(fix)
        .source(MISMATCH)
}

/// The driver, where CUDA of it is too old or not to be told. Its library counts where that is shown, which is another
/// than the module's with cuda-compat.
pub fn driver(m: &Machine, gpus: &[Address]) -> Vec<Finding> {
    let module = m.nvidia.driver();
    let is_new = |version: &str| major(version).map(|number| number >= DRIVER);
    let is_older = |cuda: &Cuda| beside(&cuda.version, module) == Ordering::Less;
    let (new, old): (Vec<&Cuda>, Vec<&Cuda>) = taken(m)
        .into_iter()
        .partition(|cuda| is_new(&cuda.version) == Some(true) && !is_older(cuda));
    let is_module_new = module.and_then(is_new);
    let refused = |found: String| {
        let finding = Finding::prevents(&[Need::Gpu], found).expected(LEAST).cost(REFUSED);
        let fix = "update the driver; or, on data centre GPUs, the package cuda-compat of CUDA 12.4 \
                   or later beside a driver that it supports, in LD_LIBRARY_PATH";
        vec![finding.fix(fix).source(SOURCE)]
    };
    let Some(library) = new.first() else {
        return match (old.first(), module, is_module_new) {
            (Some(old), Some(module), Some(true)) if is_older(old) => {
                vec![mismatched(old, module)]
            }
            (Some(old), ..) => refused(format!("libcuda {}, older than 550", short(&old.version))),
            (None, Some(module), Some(false)) => {
                refused(format!("driver {}, older than 550", short(module)))
            }
            (None, _, Some(true)) => Vec::new(),
            (None, ..) => {
                let found = "the driver's version, which is to be 550 or later";
                vec![Finding::unseen(found, "nvidia-smi").hides(&[Need::Gpu])]
            }
        };
    };
    let is_newer = beside(&library.version, module) == Ordering::Greater;
    let mut all = Vec::new();
    let mut asked = gpus.to_vec();
    if is_newer {
        let of = |gpu: &Address| m.nvidia.gpus.iter().find(|(a, _)| a == gpu);
        let is_geforce = |gpu: &Address| of(gpu).is_some_and(|(_, it)| it.contains("GeForce"));
        let without = asked.extract_if(.., |gpu| is_geforce(gpu)).collect::<Vec<_>>();
        if !without.is_empty() {
            let found =
                format!("{}: a GeForce has no forward compatibility", over(library, module));
            let (expected, fix) = match is_module_new {
                Some(true) => (
                    "the library of the module's own driver",
                    "take that library, or update the driver",
                ),
                _ => (LEAST, "update the driver"),
            };
            let cost = "CUDA does not start (error 804): kernels run on CPU threads";
            let finding = Finding::warn(found).expected(expected).cost(cost).fix(fix);
            all.push(lacking(m, finding.source(MISMATCH), &without));
        }
    }
    let hidden = match old.first() {
        Some(old) => {
            let each = [*old, library].map(|it| format!("{} of {}", it.version, it.folder));
            let found = format!("which libcuda the loader takes: {}", short(&each.join(", or ")));
            Finding::unseen(
                found,
                format!("LD_LIBRARY_PATH={} takes this one", short(&library.folder)),
            )
        }
        None if is_newer => Finding::unseen(
            format!(
                "{}: whether forward compatibility has this driver and GPU",
                over(library, module)
            ),
            "nvidia-smi; CUDA Compatibility has the table",
        ),
        None => return all,
    };
    if all.is_empty() {
        all.push(hidden.hides(&[Need::Gpu]));
    } else if !asked.is_empty() {
        all.push(lacking(m, hidden, &asked));
    }
    all
}

/// Of these GPUs.
fn lacking(m: &Machine, finding: Finding, gpus: &[Address]) -> Finding {
    let names: Vec<String> = gpus.iter().map(|gpu| label(m, *gpu)).collect();
    gpus.iter().fold(finding, |f, gpu| f.lacks_of_gpu(Need::Gpu, *gpu)).of(names.join(", "))
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
    let told = |((generation, capability), gpus): (&(&str, &str), &Vec<Address>)| {
        let found = format!("{generation}: compute capability {capability}");
        lacking(m, Finding::warn(found), gpus)
            .expected("compute capability 8.0 or later: Ampere and what came after it")
            .cost("bellpush refuses them: it has no kernels for them")
            .fix("use a later GPU, or --gpu host")
            .source("pci.ids (the chip of a device id); CUDA GPU Compute Capability")
    };
    let mut all: Vec<Finding> = old.iter().map(told).collect();
    if !hidden.is_empty() {
        let found = "compute capability: no PCI device id is shown";
        let finding = Finding::unseen(found, "nvidia-smi --query-gpu=compute_cap");
        all.push(lacking(m, finding, &hidden));
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

    /// Which kernel module drives a GPU, by the GPU's id.
    #[test]
    fn device_ids_tell_the_module() {
        for (device, is_open, needs) in [
            (0x1db6, true, Some("closed")), // V100
            (0x1eb8, true, None),           // T4
            (0x1eb8, false, None),
            (0x2330, false, None),         // H100
            (0x2345, false, Some("open")), // GH200
            (0x2901, false, Some("open")), // B200
            (0x2901, true, None),
        ] {
            assert_eq!(other_than(device, is_open), needs, "{device:#06x}");
        }
    }
}
