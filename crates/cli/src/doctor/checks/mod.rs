//! The checks. Each is a function from the machine to findings; a check that has nothing to look at
//! has none.

mod acs;
mod card;
mod class;
mod env;
mod gpu;
mod groups;
mod least;
mod limits;
mod nearest;
mod nodes;
mod pcie;
mod place;
mod program;
mod rdma;
mod roce;

pub use self::gpu::NOT_GIVEN;
pub use self::place::far;
pub use self::rdma::{AGAIN, LINK, NETDEV};
pub use self::roce::interfaces;
use super::finding::Check;

/// All checks, in the order of the report.
pub const CHECKS: &[Check] = &[
    Check {
        id: "gpu",
        about: "NVIDIA GPUs, their compute capability, their driver, their device nodes",
        source: "NVIDIA driver README, \"Installing the NVIDIA Driver\"; \
         nvidia-container-toolkit",
        run: gpu::present,
    },
    Check {
        id: "gpu-module",
        about: "open or closed kernel module",
        source: "NVIDIA GPU Operator, \"GPUDirect RDMA\": dma-buf needs the open kernel modules",
        run: gpu::module,
    },
    Check {
        id: "gpu-memory",
        about: "registration of GPU memory: dma-buf or nvidia_peermem",
        source: "NVIDIA, GPUDirect RDMA, Overview (Tesla and Quadro), \"Using nvidia-peermem\"; \
                 Linux 5.12, rdma-core 34 (ibv_reg_dmabuf_mr)",
        run: gpu::memory,
    },
    Check {
        id: "gpu-bar1",
        about: "size of BAR 1, through which NICs reach GPU memory",
        source: "NVIDIA, GPUDirect RDMA, \"PCI BAR sizes\", \"Displaying GPU BAR space\"; \
                 Mellanox/nv_peer_memory#101",
        run: gpu::bar1,
    },
    Check {
        id: "peer-mapping",
        about: "PeerMappingOverride: doorbells and windows of a NIC in a GPU's address space",
        source: "NVSHMEM installation guide, IBGDA; NVIDIA/open-gpu-kernel-modules, osmemdesc.c \
                 (discussion 1053); NVIDIA/nvshmem#23",
        run: gpu::peer_mapping,
    },
    Check {
        id: "gdrcopy",
        about: "gdrdrv, by which a CPU maps GPU memory",
        source: "NVIDIA/gdrcopy, README",
        run: gpu::gdrcopy,
    },
    Check {
        id: "rdma-device",
        about: "RDMA devices, of which bellpush drives those of mlx5",
        source: "Linux, Documentation/ABI/stable/sysfs-class-infiniband",
        run: rdma::devices,
    },
    Check {
        id: "rdma-nodes",
        about: "device nodes of RDMA devices, and the rights to them",
        source: "rdma-core, Documentation/udev.md; Linux, Documentation/infiniband/user_verbs.rst",
        run: rdma::nodes,
    },
    Check {
        id: "rdma-port",
        about: "state and link layer of each port",
        source: "InfiniBand specification, volume 1, 14.2.5.6 (PortInfo); sysfs-class-infiniband \
                 (state, link_layer)",
        run: rdma::ports,
    },
    Check {
        id: "rdma-firmware",
        about: "firmware, the same on all cards of one board",
        source: "NVIDIA firmware release notes; sysfs-class-infiniband (fw_ver, board_id)",
        run: rdma::firmware,
    },
    Check {
        id: "rdma-window",
        about: "device memory (MEMIC), the place of a push's window",
        source: "mlx5 PRM, device memory capabilities; ibv_alloc_dm(3)",
        run: rdma::window,
    },
    Check {
        id: "rdma-rate",
        about: "rate of each port, beside the NIC's PCIe link",
        source: "InfiniBand specification, volume 1, 14.2.5.6 (LinkWidthActive); PCIe base \
                 specification 4.2, 7.5.3.6",
        run: rdma::rate,
    },
    Check {
        id: "rdma-counters",
        about: "errors and retransmissions since the counters were cleared",
        source: "NVIDIA, \"Understanding mlx5 Linux Counters\"; InfiniBand specification, \
         volume 1, \
                 16.1.3.5",
        run: rdma::counters,
    },
    Check {
        id: "socket-direct",
        about: "cards with a PCIe link to each of two sockets",
        source: "NVIDIA, ConnectX-7 user manual, \"Socket Direct\"; Linux, \
                 drivers/net/ethernet/mellanox/mlx5/core/lib/sd.c",
        run: card::socket_direct,
    },
    Check {
        id: "bond",
        about: "bonds of interfaces of mlx5: whether RoCE goes by both",
        source: "Linux, drivers/net/ethernet/mellanox/mlx5/core/lag/lag.c \
                 (mlx5_lag_check_prereq, mlx5_handle_changeupper_event); NVIDIA, MLNX_OFED manual, \
                 \"RoCE LAG\"",
        run: card::bonds,
    },
    Check {
        id: "iommu",
        about: "translation of device addresses",
        source: "NVIDIA, GPUDirect RDMA, \"Supported Systems\" (IOMMU); \
                 NVIDIA/open-gpu-kernel-modules#1324; Linux, kernel-parameters.txt",
        run: place::iommu,
    },
    Check {
        id: "iommu-group",
        about: "IOMMU groups: what a virtual machine is given together with a GPU or a NIC",
        source: "Linux, drivers/iommu/iommu.c (pci_device_group), Documentation/driver-api/vfio.rst; \
                 PCIe base specification 7.7.11.3",
        run: groups::groups,
    },
    Check {
        id: "acs",
        about: "ACS of the switch ports and root ports between a GPU and a NIC",
        source: "PCIe base specification 6.12, 7.7.11; NCCL, Troubleshooting, \"PCI Access \
         Control \
                 Services\"",
        run: acs::acs,
    },
    Check {
        id: "platform",
        about: "peer traffic through root complexes, by the CPU",
        source: "docs/pcie-model.md, profiles of root complexes",
        run: place::platform,
    },
    Check {
        id: "write-collapse",
        about: "posted writes of one switch to several root ports",
        source: "local-inference-lab/rtx6kpro, hardware/collapse-report.md",
        run: place::collapse,
    },
    Check {
        id: "nic-of-gpu",
        about: "the nearest NIC with an RDMA device, of each GPU",
        source: "NVIDIA, GPUDirect RDMA, \"Supported Systems\"; nvidia-smi topo -m",
        run: nearest::nic_of_gpu,
    },
    Check {
        id: "numa",
        about: "NUMA nodes of GPUs and NICs",
        source: "Linux, Documentation/ABI/testing/sysfs-bus-pci (numa_node); ACPI 6.5, 6.2.15",
        run: place::numa,
    },
    Check {
        id: "pcie-link",
        about: "width and speed of links, beside what both ends have",
        source: "PCIe base specification 7.5.3.6, 7.5.3.8",
        run: pcie::links,
    },
    Check {
        id: "pcie-errors",
        about: "errors of links and requests that the kernel has counted (AER)",
        source: "Linux, Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats; PCIe base \
                 specification 6.2, 7.8.4",
        run: card::errors,
    },
    Check {
        id: "pcie-mps",
        about: "maximum payload size, beside what the way supports",
        source: "PCIe base specification 7.5.3.3, 7.5.3.4; Linux, kernel-parameters.txt \
                 (pci=pcie_bus_safe)",
        run: pcie::mps,
    },
    Check {
        id: "pcie-mrrs",
        about: "maximum read request size of NICs",
        source: "PCIe base specification 7.5.3.4; NVIDIA, \"Understanding PCIe Configuration for \
                 Maximum Performance\"",
        run: pcie::mrrs,
    },
    Check {
        id: "pcie-relaxed",
        about: "relaxed ordering of NICs",
        source: "PCIe base specification 2.4, 7.5.3.4; Linux, pcie_relaxed_ordering_enabled()",
        run: pcie::relaxed,
    },
    Check {
        id: "locked-memory",
        about: "limit of locked memory",
        source: "ibv_reg_mr(3); getrlimit(2), RLIMIT_MEMLOCK; NCCL, Troubleshooting",
        run: limits::locked,
    },
    Check {
        id: "hugepages",
        about: "huge pages",
        source: "Linux, Documentation/admin-guide/mm/hugetlbpage.rst, transhuge.rst",
        run: limits::hugepages,
    },
    Check {
        id: "cgroup",
        about: "limits of the control group",
        source: "Linux, Documentation/admin-guide/cgroup-v2.rst (memory, pids, rdma)",
        run: limits::cgroup,
    },
    Check {
        id: "shm",
        about: "size of /dev/shm",
        source: "NCCL, Troubleshooting, \"Shared memory\"; tmpfs(5)",
        run: limits::shm,
    },
    Check {
        id: "container",
        about: "whether this is a container or a virtual machine",
        source: "nvidia-container-toolkit; docker-run(1)",
        run: limits::container,
    },
    Check {
        id: "roce-mtu",
        about: "MTU of RoCE: that of the network interface bounds active_mtu",
        source: "Linux, include/rdma/ib_addr.h, iboe_get_mtu(); InfiniBand annex A17 (RoCEv2)",
        run: roce::mtu,
    },
    Check {
        id: "roce-gid",
        about: "GIDs of RoCE v2 with an IP address",
        source: "InfiniBand annex A17 (RoCEv2); Linux, sysfs-class-infiniband (gid_attrs)",
        run: roce::gids,
    },
    Check {
        id: "roce-flow",
        about: "PFC, ECN and trust of RoCE's interfaces",
        source: "IEEE 802.1Qbb; RFC 3168; Zhu et al., SIGCOMM 2015 (DCQCN); MLNX_OFED manual, \
                 \"Quality of Service\"",
        run: roce::flow,
    },
    Check {
        id: "roce-class",
        about: "the traffic class of RoCE's packets: whether its priority has PFC",
        source: "IEEE 802.1Qaz (application priority), RFC 2474; Linux, \
                 drivers/net/ethernet/mellanox/mlx5/core/en_dcbnl.c (dscp2prio), \
                 configfs-rdma_cm (default_roce_tos); MLNX_OFED manual, \"Quality of Service\"",
        run: class::class,
    },
    Check {
        id: "env-nccl",
        about: "NCCL_* that contradict the machine",
        source: "NCCL user guide, Environment Variables",
        run: env::nccl,
    },
    Check {
        id: "env-ucx",
        about: "UCX_* that contradict the machine",
        source: "UCX documentation, \"Frequently asked questions\"; ucx_info -cf",
        run: env::ucx,
    },
    Check {
        id: "env-nvshmem",
        about: "NVSHMEM_* that contradict the machine",
        source: "NVSHMEM documentation, Environment Variables",
        run: env::nvshmem,
    },
    Check {
        id: "env-cuda",
        about: "CUDA_VISIBLE_DEVICES",
        source: "CUDA C++ programming guide, \"CUDA Environment Variables\"",
        run: env::cuda,
    },
    Check {
        id: "program",
        about: "this program's features, and the libraries that it opens",
        source: "docs/hardware.md, \"What it needs\"",
        run: program::program,
    },
];
