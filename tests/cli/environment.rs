//! `bellpush doctor` on variables of NCCL, UCX and NVSHMEM, as these read them.

use std::fs;

use serde_json::Value;

use crate::diagnoses::{folder, json, machine, on};
use crate::doctor::findings_of;

/// A machine, what it is set to, and what the check says: severity and a part of what is found.
type Case<'a> = (&'a str, &'a [&'a str], &'a str, &'a str);

fn told(check: &str, cases: &[Case<'_>]) {
    let mut failed = Vec::new();
    for (name, more, severity, part) in cases {
        let all = findings_of(machine(name, more).path()).unwrap();
        let own: Vec<_> = all.iter().filter(|f| f[0] == check).collect();
        if own.len() != 1 || own[0][1] != *severity || !own[0][3].contains(part) {
            failed.push(format!("{name} {more:?}: {severity} {part:?} expected: {own:#?}"));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

const IN_ORDER: &str = "none contradicts";
const TENTH: &str = "rdma mlx5_10 at=0000:9a:00.1 fw=28.39.1002 board=MT_0000000838";
const DOWN: &str = "port mlx5_1:1 state=DOWN";
const NO_PEERMEM: &str = "modules mlx5_core mlx5_ib ib_uverbs nvidia nvidia_uvm";

/// Nothing is said of the values of variables that no check looks at.
#[test]
fn what_is_not_looked_at_is_named() {
    let topology = "env NCCL_TOPO_FILE=/no/such/file";
    told(
        "env-nccl",
        &[
            (
                "ib-switches",
                &[topology],
                "note",
                "none of NCCL_* that is set is looked at: NCCL_TOPO_FILE",
            ),
            (
                "ib-switches",
                &["env NCCL_IB_HCA=mlx5_0", topology],
                "fine",
                "1 of 2 NCCL_* that are set are looked at, and none contradicts the machine; not looked at: NCCL_TOPO_FILE",
            ),
        ],
    );
    let beside = machine("ib-switches", &["env NCCL_IB_HCA=mlx5_99", topology]);
    let all = findings_of(beside.path()).unwrap();
    let own: Vec<_> = all.iter().filter(|f| f[0] == "env-nccl").collect();
    assert!(own.iter().any(|f| f[1] == "warning"), "{own:?}");
    assert!(own.iter().any(|f| f[3] == "not looked at: NCCL_TOPO_FILE"), "{own:?}");
    told(
        "env-ucx",
        &[("ib-switches", &["env UCX_RNDV_SCHEME=get_zcopy"], "note", "UCX_RNDV_SCHEME")],
    );
    told(
        "env-nvshmem",
        &[("ib-switches", &["env NVSHMEM_SYMMETRIC_SIZE=1T"], "note", "NVSHMEM_SYMMETRIC_SIZE")],
    );
}

#[test]
fn lists_and_levels_are_read_as_nccl_reads_them() {
    told(
        "env-nccl",
        &[
            // Blanks are parts of names.
            ("ib-switches", &["env NCCL_IB_HCA=mlx5_0, mlx5_1"], "warning", "no \" mlx5_1\""),
            ("ib-switches", &["env NCCL_IB_HCA=^mlx5_4, mlx5_1"], "warning", "no \" mlx5_1\""),
            ("ib-switches", &["env NCCL_IB_HCA=^mlx5_4"], "fine", IN_ORDER),
            ("ib-switches", &["env NCCL_IB_HCA=mlx5_0:"], "fine", IN_ORDER),
            // What is left out may be all that works.
            (
                "ib-switches",
                &["env NCCL_IB_HCA=^mlx5_0:1,mlx5_1:1"],
                "warning",
                "excludes every device",
            ),
            ("ib-switches", &["env NCCL_IB_HCA=^"], "warning", "excludes every device"),
            (
                "ib-switches",
                &["env NCCL_IB_HCA=^mlx5_0", DOWN],
                "warning",
                "excludes every active port",
            ),
            ("ib-switches", &["env NCCL_IB_HCA=^mlx5_1", DOWN], "fine", IN_ORDER),
            // Names are starts.
            ("ib-switches", &["env NCCL_IB_HCA=mlx5_1", TENTH], "warning", "so mlx5_10 as well"),
            ("ib-switches", &["env NCCL_IB_HCA=^mlx5_1:1", TENTH], "warning", "so mlx5_10 as well"),
            ("ib-switches", &["env NCCL_IB_HCA==mlx5_1", TENTH], "fine", IN_ORDER),
            ("ib-switches", &["env NCCL_IB_HCA=mlx5_1,mlx5_10", TENTH], "fine", IN_ORDER),
            ("ib-switches", &["env NCCL_IB_HCA=mlx5", TENTH], "fine", IN_ORDER),
            (
                "ib-switches",
                &["env NCCL_SOCKET_IFNAME=^eno,lo"],
                "warning",
                "excludes every interface",
            ),
            ("ib-switches", &["env NCCL_SOCKET_IFNAME=^docker,lo"], "fine", IN_ORDER),
            (
                "ib-switches",
                &["env NCCL_SOCKET_IFNAME=ib0, eno1"],
                "warning",
                "a blank that is a part",
            ),
            // Levels are capitals, and the ones of NVLink are nearer than any NIC.
            ("ib-switches", &["env NCCL_NET_GDR_LEVEL=NODE"], "warning", "no level of NCCL"),
            ("ib-switches", &["env NCCL_NET_GDR_LEVEL=pix"], "warning", "no level of NCCL"),
            ("ib-switches", &["env NCCL_NET_GDR_LEVEL=NVL"], "warning", "nearer than the NIC of 2"),
            ("ib-switches", &["env NCCL_NET_GDR_LEVEL=PXN"], "fine", IN_ORDER),
            ("roce-genoa", &["env NCCL_NET_GDR_LEVEL=2"], "warning", "nearer than the NIC of 2"),
            ("roce-genoa", &["env NCCL_NET_GDR_LEVEL=5"], "fine", IN_ORDER),
            ("ib-switches", &["env NCCL_NET=ib"], "fine", IN_ORDER),
            ("cloud-vm", &["env NCCL_NET=IB"], "warning", "there is no RDMA device"),
            // A word is 0.
            ("ib-switches", &["env NCCL_DMABUF_ENABLE=yes", NO_PEERMEM], "warning", "reads as 0"),
            (
                "roce-genoa",
                &["env NCCL_IB_HCA==mlx5_0", "env NCCL_IB_GID_INDEX=auto"],
                "warning",
                "read as 0",
            ),
            ("roce-genoa", &["env NCCL_IB_GID_INDEX=-1"], "fine", IN_ORDER),
        ],
    );
}

/// NCCL's file of the machine counts below the environment.
#[test]
fn the_file_of_nccl_counts_as_its_variables() {
    let conf = "file etc/nccl.conf = #~a~comment|NCCL_IB_DISABLE=1|PASSWORD=secret";
    told(
        "env-nccl",
        &[
            ("ib-switches", &[conf], "warning", "NCCL_IB_DISABLE=1 (/etc/nccl.conf)"),
            ("ib-switches", &[conf, "env NCCL_IB_DISABLE=0"], "fine", IN_ORDER),
        ],
    );
    let dir = machine("ib-switches", &[conf]);
    let script = on(dir.path(), &["--fix"]).1;
    assert!(script.contains("# take NCCL_IB_DISABLE out of /etc/nccl.conf"), "{script}");
    // A copy has the file's lines of NCCL, and says the same.
    let copy = folder();
    assert_eq!(on(dir.path(), &["--record", copy.path().to_str().unwrap()]).0, 0);
    let kept = fs::read_to_string(copy.path().join("etc/nccl.conf")).unwrap();
    assert_eq!(kept, "NCCL_IB_DISABLE=1\n");
    let said = |root: &std::path::Path| {
        let all = findings_of(root).unwrap();
        all.into_iter().filter(|f| f[0] == "env-nccl").collect::<Vec<_>>()
    };
    assert_eq!(said(dir.path()), said(copy.path()));
}

#[test]
fn transports_and_devices_are_read_as_ucx_reads_them() {
    told(
        "env-ucx",
        &[
            ("ib-switches", &["env UCX_TLS=^ib"], "warning", "no rc, dc or ud"),
            ("ib-switches", &["env UCX_TLS=^rc,dc,ud"], "warning", "no rc, dc or ud"),
            ("ib-switches", &["env UCX_TLS=^dc,tcp"], "fine", IN_ORDER),
            ("ib-switches", &["env UCX_TLS=^cuda"], "warning", "no cuda_copy"),
            ("ib-switches", &["env UCX_TLS=rc,gdr_copy,cuda_ipc"], "warning", "no cuda_copy"),
            ("ib-switches", &["env UCX_TLS=rc, cuda"], "warning", "no cuda_copy"),
            ("ib-switches", &["env UCX_TLS=\\rc_mlx5,cuda"], "fine", IN_ORDER),
            ("ib-switches", &["env UCX_TLS=all"], "fine", IN_ORDER),
            ("ib-switches", &["env UCX_NET_DEVICES=eno1"], "warning", "no RDMA device"),
            ("ib-switches", &["env UCX_NET_DEVICES=eno1,mlx5_0:1"], "fine", IN_ORDER),
            (
                "ib-switches",
                &["env UCX_NET_DEVICES=^mlx5_0:1,mlx5_1:1"],
                "warning",
                "excludes every device",
            ),
            ("ib-switches", &["env UCX_NET_DEVICES=^eno1"], "fine", IN_ORDER),
            (
                "ib-switches",
                &["env UCX_NET_DEVICES=mlx5_0:1, mlx5_1:1"],
                "warning",
                "no \" mlx5_1:1\"",
            ),
            ("ib-switches", &["env UCX_NET_DEVICES=mlx5_[0-1]:1"], "fine", IN_ORDER),
            ("ib-switches", &["env UCX_NET_DEVICES=mlx5_[1-2]:1"], "warning", "no mlx5_2:1"),
            ("ib-switches", &["env UCX_NET_DEVICES=mlx5_*"], "warning", "no mlx5_*"),
            ("ib-switches", &["env UCX_NET_DEVICES=all"], "fine", IN_ORDER),
        ],
    );
}

#[test]
fn lists_and_ibgda_are_read_as_nvshmem_reads_them() {
    let ibgda = "env NVSHMEM_IB_ENABLE_IBGDA=1";
    let cpu = "env NVSHMEM_IBGDA_NIC_HANDLER=cpu";
    let none = "env NVSHMEM_REMOTE_TRANSPORT=none";
    let mapped = "env NVSHMEM_HCA_PE_MAPPING=mlx5_0:1:2";
    told(
        "env-nvshmem",
        &[
            // Names are whole.
            ("ib-switches", &["env NVSHMEM_HCA_LIST=mlx5"], "warning", "no mlx5"),
            ("ib-switches", &["env NVSHMEM_HCA_LIST=mlx5_0"], "fine", IN_ORDER),
            (
                "ib-switches",
                &["env NVSHMEM_HCA_LIST=^mlx5_0,mlx5_1"],
                "warning",
                "excludes every device",
            ),
            ("ib-switches", &["env NVSHMEM_HCA_LIST=^mlx5"], "fine", IN_ORDER),
            ("ib-switches", &[mapped], "warning", "without NVSHMEM_ENABLE_NIC_PE_MAPPING=1"),
            ("ib-switches", &[mapped, "env NVSHMEM_ENABLE_NIC_PE_MAPPING=1"], "fine", IN_ORDER),
            ("ib-switches", &[none], "warning", "NVSHMEM_REMOTE_TRANSPORT=none"),
            ("ib-switches", &[none, ibgda], "fine", IN_ORDER),
            // Set and empty is on.
            (
                "no-peer-mapping",
                &["env NVSHMEM_IB_ENABLE_IBGDA="],
                "warning",
                "PeerMappingOverride",
            ),
            ("no-peer-mapping", &[ibgda, cpu], "fine", IN_ORDER),
            ("no-peer-mapping", &[ibgda, cpu, NO_PEERMEM], "warning", "gdrdrv is not loaded"),
            (
                "no-peer-mapping",
                &[ibgda, "env NVSHMEM_IBGDA_NIC_HANDLER=CPU_host_memory", NO_PEERMEM],
                "fine",
                IN_ORDER,
            ),
            (
                "ib-switches",
                &[ibgda, "env NVSHMEM_IBGDA_NIC_HANDLER=host"],
                "warning",
                "no handler",
            ),
            // udev may name devices by their place.
            ("ib-switches", &[ibgda, "env NVSHMEM_HCA_PREFIX=ibp"], "warning", "has \"ibp\" in it"),
        ],
    );
    let script = on(machine("no-peer-mapping", &[ibgda, NO_PEERMEM]).path(), &["--fix"]).1;
    assert!(
        script.contains(
            "# in the environment of the job: export NVSHMEM_IBGDA_NIC_HANDLER=cpu_host_memory"
        ),
        "{script}"
    );
}

/// GPUs that CUDA is not to see are none of the machine's; which those are hangs on CUDA's order.
#[test]
fn gpus_that_are_left_out_are_known_by_their_order() {
    let visible = |value: &str| format!("env CUDA_VISIBLE_DEVICES={value}");
    let order = "env CUDA_DEVICE_ORDER=PCI_BUS_ID";
    let uuid = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6";
    // GPU1 of v100-beside is refused; those of ib-switches are two of one model.
    for (name, of, has_order, severity, kernels) in [
        ("v100-beside", "1", true, "prevents", Some("cpu")),
        ("v100-beside", "0", true, "note", Some("gpu")),
        ("v100-beside", "0,1", true, "fine", Some("gpu")),
        ("v100-beside", "1", false, "unseen", None),
        ("v100-beside", uuid, true, "unseen", None),
        ("v100-beside", "1,7", true, "prevents", Some("cpu")),
        ("ib-switches", "1", false, "note", Some("gpu")),
        ("ib-switches", uuid, false, "note", Some("gpu")),
        ("ib-switches", "GPU-1,GPU-2", false, "fine", Some("gpu")),
        ("ib-switches", "MIG-1,MIG-2", false, "note", Some("gpu")),
        ("v100-beside", "MIG-1,MIG-2", false, "unseen", None),
        ("ib-switches", "0,1", false, "fine", Some("gpu")),
    ] {
        let more = [visible(of), order.to_owned()];
        let more: Vec<&str> =
            more.iter().map(String::as_str).take(1 + usize::from(has_order)).collect();
        let dir = machine(name, &more);
        let told = json(dir.path());
        assert_eq!(told["kernels"].as_str(), kernels, "{name} {more:?}: {told}");
        let mut all = told["findings"].as_array().unwrap().iter();
        let own = all.find(|f| f["check"] == "env-cuda").unwrap();
        assert_eq!(own["severity"], severity, "{name} {more:?}: {own}");
    }
}

/// CUDA numbers the GPUs of which a container has the nodes, from 0 on.
#[test]
fn numbers_are_those_of_the_given_gpus() {
    for (drop, of, severity) in [
        ("nvidia0", "0", "fine"),
        ("nvidia1", "0", "fine"),
        ("nvidia0", "1", "prevents"),
        ("nvidia0", "0,1", "warning"),
    ] {
        let more = [format!("drop dev/{drop}"), format!("env CUDA_VISIBLE_DEVICES={of}")];
        let dir = machine("ib-container", &[&more[0], &more[1]]);
        let told = json(dir.path());
        let mut all = told["findings"].as_array().unwrap().iter();
        let own = all.find(|f| f["check"] == "env-cuda").unwrap();
        assert_eq!(own["severity"], severity, "{more:?}: {own}");
        let kernels = if severity == "prevents" { "cpu" } else { "gpu" };
        assert_eq!(told["kernels"], kernels, "{more:?}: {told}");
    }
    // A scheduler takes the right to the nodes.
    for (of, severity) in [("0", "fine"), ("1", "prevents")] {
        let dir = machine("slurm-one", &[&format!("env CUDA_VISIBLE_DEVICES={of}")]);
        let told = json(dir.path());
        let all = told["findings"].as_array().unwrap();
        let own = all.iter().find(|f| f["check"] == "env-cuda").unwrap();
        assert_eq!(own["severity"], severity, "{of}: {own}");
        let is_it = |f: &Value| f["found"].as_str().unwrap().starts_with("no right to its node");
        assert!(all.iter().any(is_it), "{told}");
    }
}
