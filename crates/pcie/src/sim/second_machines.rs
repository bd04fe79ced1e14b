//! Machines of the rows in `second_rows.rs`, as their sources state them: which rows are taken, and
//! what is assumed for all, is in `copies.rs`. Of this collection those sources are left out that
//! have no address, and those whose devices' places were told from the values alone.

use super::copies::At::{Root, Switch};
use super::copies::{CopyMachine, DeviceAt};
use super::copy_machines::{DIRECT, before_hopper, gpu, other, sw};
use crate::topology::RawLink;

const SECOND: CopyMachine = CopyMachine { rules_before: 2, ..DIRECT };

pub(super) const X570: CopyMachine = CopyMachine {
    name: "Ryzen 9 3900X on X570, RTX 5060 Ti over OCuLink",
    source: "joorklee/p2p-bench, p2p-bench/results/*/env/p2p_evidence.json and dmesg_gpu.txt",
    cpu: "Ryzen 9 3900X",
    said: "ASUS TUF Gaming X570-Plus; dmesg: limited by 8.0 GT/s PCIe x4 link at 0000:00:03.1 … \
           03.4; topo PHB; iommu=pt; 3.58; bidirectional 4.17 to 4.57",
    link: RawLink::new(3, 4),
    roots: &[0],
    devices: &[DeviceAt { lanes: 4, ..gpu(Root(0)) }, DeviceAt { lanes: 4, ..gpu(Root(0)) }],
    ..SECOND
};

pub(super) const CLUB3090: CopyMachine = CopyMachine {
    name: "three RTX 3090 on a desktop board, host not named",
    source: "noonghunna/club-3090, docs/PCIE_P2P.md (section 3a) and pull request 889",
    said: "GPU1 <-> GPU2: direct CPU lanes, true x8, PHB, PCIe 4.0 x8; 13.17",
    link: RawLink::new(4, 8),
    roots: &[0],
    devices: &[
        DeviceAt { lanes: 8, ..before_hopper(Root(0)) },
        DeviceAt { lanes: 8, ..before_hopper(Root(0)) },
    ],
    ..SECOND
};

pub(super) const EIGHT_H200: CopyMachine = CopyMachine {
    name: "8 x H200, host not named",
    source: "stas00/ml-engineering, network/README.md (PCIe)",
    said: "each accelerator has its own PCIe 5 x16 link; nvbandwidth 55.43 host-to-device, 55.06 \
           device-to-host; the eight within 0.10",
    link: RawLink::new(5, 16),
    roots: &[0],
    devices: &[gpu(Root(0))],
    ..SECOND
};

pub(super) const AURORA: CopyMachine = CopyMachine {
    name: "Aurora node, 2 x Xeon Max, 6 x Data Center GPU Max",
    source: "argonne-lcf/user-guides, \
           docs/aurora/node-performance-overview/node-performance-overview.md, pci.cpp",
    cpu: "Xeon CPU Max 9470",
    said: "one tile 54, 55, 76; full node (12 ranks, one a tile) 318, 257, 339; malloc_host, 1 \
           GiB, Q.memcpy; 2 x Xeon Max, 6 x Max; integers (the program divides integers, so they \
           are cut, not rounded)",
    assumed: "Gen5 x16, as the GPU has (rate above 31.5)",
    known_before: true,
    link: RawLink::new(5, 16),
    roots: &[0, 0, 0, 1, 1, 1],
    devices: &[gpu(Root(0)), gpu(Root(1)), gpu(Root(2)), gpu(Root(3)), gpu(Root(4)), gpu(Root(5))],
    ..SECOND
};

pub(super) const V100_PCIE: CopyMachine = CopyMachine {
    name: "V100-PCIE-32GB, host not named",
    source: "microsoft/superbenchmark, tests/data/cuda_memory_h2d_bw.log and \
           cuda_memory_d2h_bw.log",
    said: "Device 0: Tesla V100-PCIE-32GB; bandwidthTest, pinned; sizes from 32000000 B",
    assumed: "Gen3 x16, as the card has",
    link: RawLink::new(3, 16),
    roots: &[0],
    devices: &[before_hopper(Root(0))],
    ..SECOND
};

pub(super) const MI100: CopyMachine = CopyMachine {
    name: "MI100, host not named",
    source: "microsoft/superbenchmark, tests/data/rocm_memory_h2d_bw.log and \
           rocm_memory_d2h_bw.log",
    said: "Device 738c Mem=32.0GB #CUs=120; pinned; medians for 32768 to 524288 kB",
    assumed: "Gen4 x16, as the card has",
    link: RawLink::new(4, 16),
    roots: &[0],
    devices: &[gpu(Root(0))],
    ..SECOND
};

pub(super) const A100_NVLINK: CopyMachine = CopyMachine {
    name: "two GPUs with NVLink (A100), host not named",
    source: "microsoft/superbenchmark, tests/data/gpu_copy_bw_performance.log",
    said: "cpu_to_gpu*_by_dma 26.2332 to 26.2412; gpu*_to_cpu_by_dma 25.8516 to 26.104; \
           cpu_and_gpu*_by_dma 49.3615 to 49.4624; two NUMA nodes, both alike",
    assumed: "Gen4 x16",
    link: RawLink::new(4, 16),
    roots: &[0],
    devices: &[before_hopper(Root(0))],
    ..SECOND
};

pub(super) const DELLA: CopyMachine = CopyMachine {
    name: "Della, A100-PCIE-40GB, two sockets of 64 cores",
    source: "jdh4/della-gpu-A100, README.md",
    said: "bandwidthTest, pinned, 100000000 and 1000000000 B: 24.1, 25.8; 26.2, 25.7; GPU0 of \
           NUMA node 0, GPU1 of 1",
    assumed: "Gen4 x16, as the card has",
    link: RawLink::new(4, 16),
    roots: &[0],
    devices: &[before_hopper(Root(0))],
    ..SECOND
};

pub(super) const TIGER: CopyMachine = CopyMachine {
    name: "Tiger, P100",
    source: "jdh4/della-gpu-A100, README.md",
    said: "the same test on TIGER: 12.4, 12.4; 13.1, 13.1",
    assumed: "Gen3 x16, as the card has",
    link: RawLink::new(3, 16),
    roots: &[0],
    devices: &[before_hopper(Root(0))],
    ..SECOND
};

pub(super) const NF5468: CopyMachine = CopyMachine {
    name: "NF5468-M7, 4 x RTX 5090",
    source: "wubh576/nvbandwidth_5090, myresults/result.json, README.md, \
           myfigures/GPU_topology.png",
    said: "hostname nf5468-m7; topo: GPU0-GPU1 NODE, GPU2-GPU3 NODE, the others SYS; two NUMA \
           nodes of 12 cores; 56.37 to 56.40; 56.92 to 57.00; bidirectional 40.56 to 44.33; \
           40.89 to 44.19; all: sums 152.417, 225.508",
    assumed: "Gen5 x16, as the card has; two GPUs a socket, a root complex each",
    link: RawLink::new(5, 16),
    roots: &[0, 0, 1, 1],
    devices: &[gpu(Root(0)), gpu(Root(1)), gpu(Root(2)), gpu(Root(3))],
    ..SECOND
};

pub(super) const TINYBOX: CopyMachine = CopyMachine {
    name: "tinybox green (tiny14), 6 x RTX 4090",
    source: "tinygrad/open-gpu-kernel-modules, README.md of branch 550.54.15-p2p",
    cpu: "EPYC 7532",
    said: "simpleP2P 24.44 (GiB/s, 64 MB); bidirectional 50.09 to 51.23; buses 01, 42, 81, 82, \
           c1, c2, all of domain 0",
    assumed: "Gen4 x16, as the card has; root complexes by bus number",
    link: RawLink::new(4, 16),
    roots: &[0, 0, 0, 0],
    devices: &[
        before_hopper(Root(0)),
        before_hopper(Root(1)),
        before_hopper(Root(2)),
        before_hopper(Root(2)),
        before_hopper(Root(3)),
        before_hopper(Root(3)),
    ],
    ..SECOND
};

pub(super) const MI355X: CopyMachine = CopyMachine {
    name: "8 x MI355X on two sockets, host not named",
    source: "ROCm/ROCmValidationSuite, docs/ug1main.md (PEBB, pebb_single.conf)",
    said: "CPU 0 near GPUs 2 to 5, CPU 1 near 6 to 9 (distance 20, others 52); near 57.678, \
           55.223, 57.708, 57.708, 57.710; far 54.034, 57.708, 57.708, 57.708, 57.709; blocks of \
           1 GiB, one after another",
    assumed: "Gen5 x16, as the card has",
    link: RawLink::new(5, 16),
    roots: &[0, 1],
    devices: &[gpu(Root(0))],
    ..SECOND
};

pub(super) const U200V: CopyMachine = CopyMachine {
    name: "Alveo U200, xilinx_u200_xdma_201830_1, host not named",
    source: "Xilinx/Vitis_Accel_Examples, performance/host_global_bandwidth/README.rst",
    said: "the real log on U200; MB of 2^20 (host.cpp); buffers of 16, 256 and 512 MB",
    assumed: "Gen3 x16, as the card and its shell have",
    link: RawLink::new(3, 16),
    roots: &[0],
    devices: &[other(Root(0), 16)],
    ..SECOND
};

pub(super) const U30: CopyMachine = CopyMachine {
    name: "Alveo U30, xilinx_u30_gen3x4_base_1, host not named",
    source: "Xilinx/XRT#4439",
    said: "gen3x4; PCIE link check PASSED; write 3284.493598, read 3165.026458 (MB/s of 2^20)",
    link: RawLink::new(3, 4),
    roots: &[0],
    devices: &[other(Root(0), 4)],
    ..SECOND
};

pub(super) const GEARSHIFFT: CopyMachine = CopyMachine {
    name: "two sockets of six cores, P100-PCIE-16GB",
    source: "mpicbg-scicomp/gearshifft#82, psteinb, 2017-03-27",
    said: "GPU0 of cores 0-5, SOC to GPU1 of cores 6-11; numactl -m0 -N0: 12150.7, 12890.6; -m1 \
           -N1: 3783.4, 2539.2 (MB/s of 1024000 B, 33554432 B)",
    assumed: "Gen3 x16, as the card has",
    link: RawLink::new(3, 16),
    roots: &[0, 1],
    devices: &[before_hopper(Root(0))],
    ..SECOND
};

pub(super) const ROME8: CopyMachine = CopyMachine {
    name: "2 x EPYC 7542, 8 x RTX 4090",
    source: "the post \"RTX4090 GPUDirect P2P Unlocked!\", https://blog.chlc.cc/p/rtx4090-gpudirect-p2p-unlocked",
    cpu: "EPYC 7542",
    said: "2 x AMD EPYC 7542; 8 x RTX 4090; no PCIe switch; GPU0 to GPU3 of NUMA nodes 3, 2, 1, \
           0, GPU4 to GPU7 of 7, 6, 5, 4, all SYS; after the patch uni 25.51 to 26.01 and 20.57 \
           to 22.53; bidirectional 49.75 to 50.66 and 38.93 to 41.93",
    assumed: "Gen4 x16, as the card has; NUMA nodes 0 to 3 are the first socket",
    link: RawLink::new(4, 16),
    roots: &[0, 0, 1, 1],
    devices: &[
        before_hopper(Root(0)),
        before_hopper(Root(1)),
        before_hopper(Root(2)),
        before_hopper(Root(3)),
    ],
    ..SECOND
};

pub(super) const WRX80ADA: CopyMachine = CopyMachine {
    name: "Threadripper PRO 5995WX, 2 x RTX 6000 Ada",
    source: "dbkinghorn/Notes, 2023/NV-4090-P2P/2x4090-notes.md and \
           NVIDIAmultiGPU-RTX4090-Issues-vs-RTX6000Ada-RTX3090.md (Puget Systems, 2023)",
    cpu: "Threadripper PRO 5995WX",
    said: "ASUS Pro WS WRX80E-SAGE; HPL: PCIe gen 4 x16; buses 41 and 61, SYS; iommu=pt; \
           simpleP2P 24.47 (of 2^30), 26.31, 27.02; bidirectional 51.12, 51.10",
    assumed: "a root complex each, by bus number",
    link: RawLink::new(4, 16),
    roots: &[0, 0],
    devices: &[before_hopper(Root(0)), before_hopper(Root(1))],
    ..SECOND
};

pub(super) const W3365: CopyMachine = CopyMachine {
    name: "Xeon W-3365, 2 x RTX 6000 Ada",
    source: "dbkinghorn/Notes, 2023/NV-4090-P2P/2x4090-notes.md and \
           NVIDIAmultiGPU-RTX4090-Issues-vs-RTX6000Ada-RTX3090.md (Puget Systems, 2023)",
    cpu: "Xeon W-3365",
    said: "Supermicro X12SPA-TF; buses 51 and c3, SYS on one socket; simpleP2P 19.34 (of 2^30), \
           21.31, 21.26; bidirectional 41.44, 41.46",
    assumed: "Gen4 x16, as the card has; a root complex each, by bus number",
    link: RawLink::new(4, 16),
    roots: &[0, 0],
    devices: &[before_hopper(Root(0)), before_hopper(Root(1))],
    ..SECOND
};

pub(super) const FORCE7: CopyMachine = CopyMachine {
    name: "7gforce, ASUS X99-E WS, six GTX 1070 on x1 extenders and a GTX 1080",
    source: "rossumai/keras-multi-gpu, experiments/gpu_bandwidth/cuda_samples/results/7gforce, \
           experiments/topology/7gforce.txt, blog/docs/hardware.md",
    cpu: "Xeon E5-2630 v4",
    said: "one E5-2630 v4; the extenders are just x1; the GTX 1080 looks like x8; GPU0 to GPU2 \
           PIX, GPU3 to GPU6 PIX, PHB between; bandwidthTest, pinned, 33554432 B (MB/s of 1024000 \
           B)",
    assumed: "Gen3 throughout; an uplink of x16 per switch",
    link: RawLink::new(3, 16),
    roots: &[0],
    switches: &[sw(Root(0), 3, ""), sw(Root(0), 3, "")],
    devices: &[
        DeviceAt { lanes: 1, ..before_hopper(Switch(0)) },
        DeviceAt { lanes: 1, ..before_hopper(Switch(0)) },
        DeviceAt { lanes: 1, ..before_hopper(Switch(1)) },
        DeviceAt { lanes: 1, ..before_hopper(Switch(1)) },
        DeviceAt { lanes: 8, ..before_hopper(Switch(1)) },
    ],
    ..SECOND
};

pub(super) const FORCE7B: CopyMachine = CopyMachine {
    name: "7gforce-v2, two sockets of ten cores, GTX 1080 Ti and GTX 1070",
    source: "rossumai/keras-multi-gpu, \
           experiments/gpu_bandwidth/cuda_samples/results/7gforce-v2, \
           experiments/topology/7gforce-v2.txt",
    said: "GPU0 to GPU3 of cores 0-9,20-29, PHB; GPU4 to GPU6 of 10-19,30-39, PHB; SOC between; \
           GPU1, GPU2, GPU5, GPU6 GTX 1080 Ti, the others GTX 1070; bandwidthTest, pinned, \
           33554432 B (MB/s of 1024000 B)",
    assumed: "Gen3: x16 for the 1080 Ti, x1 for GPU0 and GPU4",
    link: RawLink::new(3, 16),
    roots: &[0, 1],
    devices: &[
        before_hopper(Root(0)),
        before_hopper(Root(0)),
        DeviceAt { lanes: 1, ..before_hopper(Root(0)) },
    ],
    ..SECOND
};

pub(super) const LLMD: CopyMachine = CopyMachine {
    name: "2 x Xeon 8480+, MI300X and ConnectX-7, a switch a stack",
    source: "tlrmchlsmth/j-llm-d, branch raj/ttft, glm-disagg-pcie/nixl-iio-investigation \
           (README.md, results/ib_read_bw, configs/ib_read_bw) and \
           glm-disagg-pcie/iio-investigation/README.md",
    cpu: "Xeon Platinum 8480+",
    said: "MI300X, PCIe Gen5 x16; ConnectX-7, 400 Gb/s InfiniBand, SR-IOV VF whose max read \
           request is 128 B; iommu=pt; each GPU shares a stack of the CPU with a NIC behind a \
           PCIe switch; ib_read_bw with GPU memory, 2 MiB, one QP, two pairs at once: 359.16 a \
           NIC on one stack, 254 across stacks, 123.73 across sockets",
    assumed: "a switch's uplink, its NIC and its GPU are Gen5 x16; the reading side is the \
           slower one",
    link: RawLink { mrrs: 128, ..RawLink::new(5, 16) },
    roots: &[1, 1, 1, 1, 0, 0],
    switches: &[
        sw(Root(0), 5, ""),
        sw(Root(1), 5, ""),
        sw(Root(2), 5, ""),
        sw(Root(3), 5, ""),
        sw(Root(4), 5, ""),
        sw(Root(5), 5, ""),
    ],
    devices: &[
        gpu(Switch(0)),
        gpu(Switch(1)),
        other(Switch(0), 16),
        other(Switch(1), 16),
        other(Switch(2), 16),
        other(Switch(3), 16),
        other(Switch(4), 16),
        other(Switch(5), 16),
    ],
    device_gb_per_s: 50.0,
    ..SECOND
};

pub(super) const NVBREADME: CopyMachine = CopyMachine {
    name: "8 GPUs with NVLink (A100), host not named",
    source: "NVIDIA/nvbandwidth, README.md (test details)",
    said: "host_to_device_memcpy_ce 25.94 to 26.19; host_to_device_bidirectional_memcpy_ce 18.37 \
           to 19.59 (the measured direction)",
    assumed: "Gen4 x16",
    link: RawLink::new(4, 16),
    roots: &[0],
    devices: &[before_hopper(Root(0))],
    ..SECOND
};

pub(super) const U250_201830: CopyMachine = CopyMachine {
    name: "Alveo U250, xilinx_u250_xdma_201830_2, host xsjmaxz50",
    source: "Xilinx/XRT#950",
    said: "PCIE link status: PASSED; write 11605.7, read 12154.6 (MB/s of 2^20)",
    assumed: "Gen3 x16, as the card and its shell have",
    link: RawLink::new(3, 16),
    roots: &[0],
    devices: &[other(Root(0), 16)],
    ..SECOND
};

pub(super) const U50_GEN3: CopyMachine = CopyMachine {
    name: "Alveo U50, xilinx_u50_gen3x16_xdma_201920_3, host xsjmaxz50",
    source: "Xilinx/XRT#3313",
    said: "gen3x16; PCIE link check PASSED; write 11665, read 11893.1 (MB/s of 2^20)",
    link: RawLink::new(3, 16),
    roots: &[0],
    devices: &[other(Root(0), 16)],
    ..SECOND
};

pub(super) const U200_GEN3: CopyMachine = CopyMachine {
    name: "Alveo U200, xilinx_u200_gen3x16_xdma_base_1, host pranjal-dell",
    source: "Xilinx/XRT#5448",
    said: "gen3x16; DMA test: write 9523.6, read 11800.7 (MB/s of 2^20)",
    link: RawLink::new(3, 16),
    roots: &[0],
    devices: &[other(Root(0), 16)],
    ..SECOND
};

pub(super) const VERSAL: CopyMachine = CopyMachine {
    name: "a Versal card at Gen3 x8, host not named",
    source: "Xilinx/XRT#7889 and #7876",
    said: "plugged into Gen 3x8 instead of Gen 4x8 (validate's warning); buffers of 16 MB, \
           MC_NOC0; write 6570.0, read 6639.1 (MB/s of 2^20)",
    link: RawLink::new(3, 8),
    roots: &[0],
    devices: &[other(Root(0), 8)],
    ..SECOND
};
