//! What CUDA opens and waits for beside a GPU: device nodes, the rights to them, NVSwitches.

use bellpush::pcie::topology::{Address, Function};

use crate::doctor::finding::{Finding, Need};
use crate::doctor::machine::Machine;
use crate::doctor::machine::gpu::is_number;
use crate::doctor::read::short;
use crate::doctor::verdict::label;

const NVIDIA: u16 = 0x10de;
/// Class of an NVSwitch: a bridge of no kind of its own (pci.ids, 0680).
const OTHER_BRIDGE: u16 = 0x0680;

/// Device nodes that are not there: of all GPUs, and of each that has none of its own.
pub fn missing(m: &Machine) -> Vec<Finding> {
    let driver = &m.nvidia;
    let has = |name: &str| driver.nodes.iter().any(|n| n == name);
    let (have, want) = (driver.numbered_nodes(), driver.gpus.len());
    let given: Vec<Address> =
        driver.gpus.iter().map(|(a, _)| *a).filter(|a| m.is_given(*a)).collect();
    let mut missing = Vec::new();
    missing.extend((!has("nvidiactl")).then(|| "no /dev/nvidiactl".to_owned()));
    missing.extend((!has("nvidia-uvm")).then(|| "no /dev/nvidia-uvm".to_owned()));
    let is_of_all = !missing.is_empty() || have == 0;
    let some = format!("{have} of {want} nodes /dev/nvidia0 and so on");
    if !m.has_dev || missing.is_empty() && have >= want {
        return Vec::new();
    }
    let inside = m.container().is_some();
    if driver.makes_nodes && !inside {
        missing.extend((have < want).then_some(some));
        return vec![
            Finding::note(missing.join(", ")).cost("nvidia-modprobe makes them at the first use"),
        ];
    }
    let mut all = Vec::new();
    if is_of_all {
        missing.extend((have == 0).then(|| some.clone()));
        let names: Vec<String> = given.iter().map(|a| label(m, *a)).collect();
        let finding = Finding::warn(missing.join(", ")).of(short(&names.join(", ")));
        // A process of root makes the nodes itself, where there is the driver's own.
        let is_made = has("nvidiactl") && !inside && m.system.is_admin();
        all.push(match is_made {
            true => finding.cost("processes without root's rights find no GPU"),
            false => given
                .iter()
                .fold(finding, |f, gpu| f.lacks_of_gpu(Need::Gpu, *gpu))
                .cost("CUDA finds no GPU"),
        });
    }
    if (1..want).contains(&have) {
        let of = |gpu: Address| {
            let found = format!("no /dev/nvidia{}", driver.minors[&gpu]);
            Finding::warn(found).of(m.gpu_name(gpu)).lacks_of_gpu(Need::Gpu, gpu)
        };
        let cost = "CUDA does not see this GPU";
        let without = given.iter().copied().filter(|a| driver.lacks_node(*a));
        all.extend(without.map(|gpu| of(gpu).cost(cost)));
        // Whose node it is may not be shown.
        if given.iter().any(|gpu| !driver.minors.contains_key(gpu)) {
            all.push(Finding::warn(some).cost("CUDA does not see all GPUs"));
        }
    }
    let numbers: String = (0..want.min(64)).map(|n| format!(" -c {n}")).collect();
    let mended = |finding: Finding| {
        let finding = finding
            .expected("device nodes of the GPUs: /dev/nvidiactl, /dev/nvidia0, /dev/nvidia-uvm");
        match inside {
            true => finding
                .fix("start the container with the GPUs, such as `docker run --gpus all`")
                .script("# start the container again: docker run --gpus all"),
            false => finding
                .fix("run nvidia-smi as root, or nvidia-modprobe -c 0 -u")
                .script(format!("nvidia-modprobe -u{numbers}")),
        }
    };
    all.into_iter().map(mended).collect()
}

/// NVSwitches, which the fabric manager sets up before CUDA starts. It is a process of its own, and nothing that is read
/// here shows whether it has.
pub fn fabric(m: &Machine) -> Option<Finding> {
    let capture = m.pci.capture.known()?;
    let is_it = |f: &&Function| f.vendor == Some(NVIDIA) && f.class == Some(OTHER_BRIDGE);
    let count = capture.functions().filter(is_it).count();
    (count > 0).then(|| {
        let found = format!(
            "whether the fabric manager runs for {count} NVSwitches: without it CUDA does not start (error \
             802)"
        );
        Finding::unseen(found, "systemctl status nvidia-fabricmanager; nvidia-smi -q, \"Fabric\"")
            .source("NVIDIA Fabric Manager user guide; CUDA Driver API, CUresult (802)")
    })
}

/// That this process has no right to nodes that CUDA opens in any case, or to that of any GPU.
pub fn rights(m: &Machine) -> Option<Finding> {
    let driver = &m.nvidia;
    let gpus: Vec<Address> =
        driver.gpus.iter().map(|(a, _)| *a).filter(|a| m.is_given(*a)).collect();
    let is_shut = |name: &&String| {
        let of_all = matches!(name.as_str(), "nvidiactl" | "nvidia-uvm");
        of_all || !driver.opens_any() && name.strip_prefix("nvidia").is_some_and(is_number)
    };
    let shut: Vec<String> =
        driver.refused.iter().filter(is_shut).map(|name| format!("/dev/{name}")).collect();
    if shut.is_empty() || !m.has_dev {
        return None;
    }
    let finding = Finding::warn(short(&format!("no right to {}", shut.join(", "))))
        .expected("the right to read and write /dev/nvidiactl, /dev/nvidia-uvm and a GPU's node")
        .cost("CUDA finds no GPU")
        .fix(
            "ask the scheduler for a GPU; or join the group of the nodes, which the module's options \
             NVreg_DeviceFileGID and NVreg_DeviceFileMode set",
        )
        .source("NVIDIA driver README, \"Device Nodes\"; slurm cgroup.conf(5), ConstrainDevices");
    Some(gpus.iter().fold(finding, |f, gpu| f.lacks_of_gpu(Need::Gpu, *gpu)))
}
