//! Machines of the rows in `copy_rows.rs`, as their sources state them: which rows are taken, and
//! what is assumed for all, is in `copies.rs`.

use super::copies::At::{self, Root, Switch};
use super::copies::{CopyMachine, DeviceAt, SwitchAt};
use crate::topology::{GPU_BYTES, Kind, RawLink};

pub(super) const fn gpu(at: At) -> DeviceAt {
    DeviceAt { kind: Kind::Gpu, at, lanes: 16, packet_bytes: 0 }
}

/// A GPU of NVIDIA of a compute capability below 9, that copies.
pub(super) const fn before_hopper(at: At) -> DeviceAt {
    DeviceAt { packet_bytes: GPU_BYTES, ..gpu(at) }
}

pub(super) const fn other(at: At, lanes: u32) -> DeviceAt {
    DeviceAt { kind: Kind::Nic, at, lanes, packet_bytes: 0 }
}

pub(super) const fn sw(at: At, generation: u32, chip: &'static str) -> SwitchAt {
    SwitchAt { at, generation, chip }
}

/// A device on a root port of the first socket.
pub(super) const DIRECT: CopyMachine = CopyMachine {
    name: "",
    source: "",
    cpu: "",
    said: "",
    assumed: "",
    link: RawLink::new(4, 16),
    roots: &[0],
    switches: &[],
    devices: &[gpu(Root(0))],
    device_gb_per_s: f64::INFINITY,
    torch_rounds: 0,
    collapses: false,
    known_before: false,
    rules_before: 0,
};

const GEN3: RawLink = RawLink::new(3, 16);
const GEN5: RawLink = RawLink::new(5, 16);
const TWO: &[DeviceAt] = &[gpu(Root(0)), gpu(Root(1))];
const OLD: &[DeviceAt] = &[before_hopper(Root(0))];
const PER_LEAF: &[DeviceAt] = &[
    gpu(Switch(2)),
    gpu(Switch(2)),
    gpu(Switch(3)),
    gpu(Switch(3)),
    gpu(Switch(4)),
    gpu(Switch(4)),
    gpu(Switch(5)),
    gpu(Switch(5)),
];
pub(super) const TWO_PER_SWITCH: &[DeviceAt] = &[
    gpu(Switch(0)),
    gpu(Switch(0)),
    gpu(Switch(1)),
    gpu(Switch(1)),
    gpu(Switch(2)),
    gpu(Switch(2)),
    gpu(Switch(3)),
    gpu(Switch(3)),
];
const FOUR_PER_SWITCH: &[DeviceAt] = &[
    gpu(Switch(0)),
    gpu(Switch(0)),
    gpu(Switch(0)),
    gpu(Switch(0)),
    gpu(Switch(1)),
    gpu(Switch(1)),
    gpu(Switch(1)),
    gpu(Switch(1)),
    gpu(Switch(2)),
    gpu(Switch(2)),
    gpu(Switch(2)),
    gpu(Switch(2)),
    gpu(Switch(3)),
    gpu(Switch(3)),
    gpu(Switch(3)),
    gpu(Switch(3)),
];

pub(super) const WRX90: CopyMachine = CopyMachine {
    name: "Threadripper PRO 7955WX, Switchtec, two levels",
    source: "rtx6kpro, hardware/wrx90-cpayne-microchip-switches.md",
    cpu: "Threadripper PRO 7955WX",
    said: "GPU endpoints: MaxReadReq 512, MaxPayload 256; all links Gen5 x16; ReqRedir disabled",
    link: GEN5,
    roots: &[0, 0],
    switches: &[
        sw(Root(0), 5, ""),
        sw(Root(1), 5, ""),
        sw(Switch(0), 5, ""),
        sw(Switch(0), 5, ""),
        sw(Switch(1), 5, ""),
        sw(Switch(1), 5, ""),
    ],
    devices: PER_LEAF,
    ..DIRECT
};
pub(super) const FLAT: CopyMachine = CopyMachine {
    name: "Threadripper PRO 7955WX, two Switchtec",
    source: "rtx6kpro, hardware/wrx90-cpayne-2switch-flat.md",
    said: "two switches, four GPUs each, an x16 uplink each; GPU/root ports: MaxReadReq 512",
    switches: &[sw(Root(0), 5, ""), sw(Root(1), 5, "")],
    devices: FOUR_PER_SWITCH.split_at(8).0,
    ..WRX90
};
pub(super) const FLAT_GEN2: CopyMachine = CopyMachine {
    name: "Threadripper PRO 7955WX, two Switchtec, an uplink at Gen2",
    said: "Uplink 20:01.1→Gen2: NODE GPU0→4 = 7.0 GB/s",
    switches: &[sw(Root(0), 2, ""), sw(Root(1), 5, "")],
    ..FLAT
};
pub(super) const FOUR: CopyMachine = CopyMachine {
    name: "Threadripper PRO 7955WX, four Switchtec",
    source: "rtx6kpro, hardware/wrx90-cpayne-16gpu-4switch.md",
    said: "3-root: SW1 → root 00, SW2 → 40, SW3 and SW4 → e0; GPUs at 512 B MaxReadReq",
    roots: &[0, 0, 0],
    switches: &[sw(Root(0), 5, ""), sw(Root(1), 5, ""), sw(Root(2), 5, ""), sw(Root(2), 5, "")],
    devices: FOUR_PER_SWITCH,
    torch_rounds: 50,
    ..WRX90
};
pub(super) const FOUR_BEFORE: CopyMachine = CopyMachine {
    name: "Threadripper PRO 7955WX, four Switchtec, first measured",
    said: "Historical: on the 3-root cabling, kernel 6.17.0-19, driver 595.45.04: SW1 to SW2 and SW3, 11.6, to \
           SW2 and SW4 13.3, others 12.5, 12.8; collapse-report.md: 13.5, 12.6",
    ..FOUR
};
pub(super) const FOUR_GEN2: CopyMachine = CopyMachine {
    name: "Threadripper PRO 7955WX, four Switchtec, an uplink at Gen2",
    said: "forcing root port 00:01.1 to Gen2 cuts cross-switch bandwidth from 52 to 7 GB/s",
    switches: &[sw(Root(0), 2, ""), sw(Root(1), 5, ""), sw(Root(2), 5, ""), sw(Root(2), 5, "")],
    ..FOUR
};
pub(super) const GROUPS: CopyMachine = CopyMachine {
    name: "Threadripper PRO 7955WX, groups of eight",
    source: "rtx6kpro, hardware/wrx90-cpayne-8gpu-root-topology-comparison.md",
    said: "group A = SW1 + SW2 on two root complexes, B = SW3 + SW4 sharing one",
    torch_rounds: 5,
    ..FOUR
};
pub(super) const VIRTUAL_1: CopyMachine = CopyMachine {
    name: "Threadripper PRO 7955WX, virtual switches, wiring 1",
    source: "rtx6kpro, hardware/wrx90-cpayne-8gpu-2vs-per-chip.md",
    said: "chip A = SW1 + SW3, B = SW2 + SW4; V1: four root complexes, V2: two, V3: one a chip",
    roots: &[0, 0, 0, 0],
    switches: &[sw(Root(0), 5, "A"), sw(Root(1), 5, "B"), sw(Root(2), 5, "A"), sw(Root(3), 5, "B")],
    devices: TWO_PER_SWITCH,
    torch_rounds: 100,
    ..WRX90
};
pub(super) const VIRTUAL_2: CopyMachine = CopyMachine {
    name: "Threadripper PRO 7955WX, virtual switches, wiring 2",
    switches: &[sw(Root(0), 5, "A"), sw(Root(0), 5, "B"), sw(Root(3), 5, "A"), sw(Root(3), 5, "B")],
    ..VIRTUAL_1
};
pub(super) const VIRTUAL_3: CopyMachine = CopyMachine {
    name: "Threadripper PRO 7955WX, virtual switches, wiring 3",
    switches: &[sw(Root(0), 5, "A"), sw(Root(0), 5, "A"), sw(Root(3), 5, "B"), sw(Root(3), 5, "B")],
    ..VIRTUAL_1
};
pub(super) const TURIN: CopyMachine = CopyMachine {
    name: "one EPYC 9575F, four Switchtec",
    source: "rtx6kpro, hardware/asrockrack-turin-cpayne-16gpu.md",
    cpu: "EPYC 9575F",
    said: "all four switches on distinct root complexes; Gen5 x16; root ports and GPUs at 512 B",
    roots: &[0, 0, 0, 0],
    switches: &[sw(Root(0), 5, ""), sw(Root(1), 5, ""), sw(Root(2), 5, ""), sw(Root(3), 5, "")],
    ..FOUR
};
pub(super) const PUGET: CopyMachine = CopyMachine {
    name: "Threadripper PRO 7965WX, RTX 6000 Ada",
    source: "luigifcruz/stelline, hardware/puget-threadripper-pro-wrx90.md",
    cpu: "Threadripper PRO 7965WX",
    said: "lspci: Speed 16GT/s, Width x16, MaxPayload 256, MaxReadReq 512; PHB; 32000000 B: 26.8",
    assumed: "the carrier of eight SSDs is one switch",
    roots: &[0, 0],
    switches: &[sw(Root(1), 4, "")],
    devices: &[
        before_hopper(Root(0)),
        before_hopper(Root(0)),
        other(Switch(0), 4),
        other(Switch(0), 4),
        other(Switch(0), 4),
        other(Switch(0), 4),
        other(Switch(0), 4),
        other(Switch(0), 4),
        other(Switch(0), 4),
        other(Switch(0), 4),
    ],
    ..DIRECT
};
pub(super) const GENOA: CopyMachine = CopyMachine {
    name: "2 x EPYC 9374F, RTX 6000 Ada",
    source: "luigifcruz/stelline, hardware/asus-esc8000a-e12.md",
    cpu: "EPYC 9374F",
    said: "lspci: Speed 16GT/s, Width x16, MaxPayload 256, MaxReadReq 512; four root complexes",
    roots: &[0, 0, 1, 1],
    devices: &[
        before_hopper(Root(0)),
        before_hopper(Root(1)),
        before_hopper(Root(2)),
        before_hopper(Root(3)),
    ],
    ..DIRECT
};
pub(super) const I7: CopyMachine = CopyMachine {
    name: "i7-6900K, WX 8100",
    source: "ROCm/ROCm#787, before its board was changed",
    said: "LnkSta: 8GT/s, x16; MaxPayload 256, MaxReadReq 512; 13.377405, 14.310061; 25.912159",
    link: GEN3,
    devices: &[gpu(Root(0)), gpu(Root(0))],
    ..DIRECT
};
pub(super) const W2123: CopyMachine = CopyMachine {
    name: "Xeon W-2123, WX 8100",
    source: "ROCm/ROCm#787, after",
    cpu: "Xeon W-2123",
    said: "13.691481, 14.285625, 10.261399; 18.476459, 18.906259; 19:0.0 and 67:0.0",
    assumed: "the source writes",
    link: GEN3,
    roots: &[0, 0],
    devices: TWO,
    ..DIRECT
};
pub(super) const W2135: CopyMachine = CopyMachine {
    name: "Xeon W-2135, MI50",
    source: "ROCm/ROCm#4793",
    cpu: "Xeon W-2135",
    said: "X11SRA-F; MaxPayload 256, MaxReadReq 512; 13.750, 14.280; 25.911",
    assumed: "",
    ..W2123
};
pub(super) const MILAN: CopyMachine = CopyMachine {
    name: "2 x EPYC 7763, MI100",
    source: "ROCm/rccl#1370",
    said: "28.349, 28.527; 51.807; other node 24.861, 26.813; 25.018, 11.283; 24.885, 26.001",
    roots: &[0, 1],
    devices: TWO,
    ..DIRECT
};
pub(super) const ROME: CopyMachine = CopyMachine {
    name: "EPYC 7542, RX 7900 XTX",
    source: "ROCm/ROCm#2253",
    cpu: "EPYC 7542",
    said: "28.411, 29.013; 48.226",
    ..DIRECT
};
pub(super) const A10: CopyMachine = CopyMachine {
    name: "2 x Xeon 6438Y+, A10",
    source: "drkennetz/cuda_examples#1",
    said: "x16 Gen4 slot; host_to_device_memcpy_ce 25.17; membind=0: 25.128",
    roots: &[0, 1],
    devices: OLD,
    ..DIRECT
};
pub(super) const XEON_8458: CopyMachine = CopyMachine {
    name: "Xeon 8458P, 8 x RTX 5090",
    source: "tinygrad/open-gpu-kernel-modules#29",
    said: "56.30 to 56.41; 57.29 to 57.35; host_to_device_bidirectional 50.84 to 50.98",
    link: GEN5,
    ..DIRECT
};
pub(super) const A100: CopyMachine = CopyMachine {
    name: "8 x A100-SXM4",
    source: "NVIDIA/nvbandwidth#53",
    cpu: "Xeon Platinum 8358",
    said: "PCIe 4.0; PXB; H2D drops to ~11 GB/s while D2H maintains ~25 GB/s; 2 x 8358; four root \
           complexes, two GPUs below a switch each; MaxReadReq 4096 bytes of all devices",
    // Until the thread was read to its end the machine had no CPU, one GPU and MRRS 512; of the two rows the model
    // had 25.61 (+132.8 %) and 24.18 (-3.3 %).
    link: RawLink { mrrs: 4096, ..RawLink::new(4, 16) },
    roots: &[0, 0, 1, 1],
    switches: &[sw(Root(0), 4, ""), sw(Root(1), 4, ""), sw(Root(2), 4, ""), sw(Root(3), 4, "")],
    devices: &[
        before_hopper(Switch(0)),
        before_hopper(Switch(0)),
        before_hopper(Switch(1)),
        before_hopper(Switch(1)),
        before_hopper(Switch(2)),
        before_hopper(Switch(2)),
        before_hopper(Switch(3)),
        before_hopper(Switch(3)),
    ],
    ..DIRECT
};
pub(super) const A100_OTHER: CopyMachine = CopyMachine {
    name: "A100",
    source: "NVIDIA/nvbandwidth#11",
    said: "around 25-26GB/s; bidirectional around 24GB/s, only 12-13GB/s",
    assumed: "middles of the ranges",
    devices: OLD,
    ..DIRECT
};
pub(super) const RTX_4090: CopyMachine = CopyMachine {
    name: "8 x RTX 4090",
    source: "NVIDIA/nvbandwidth#15",
    said: "25.50 24.26 23.90 26.30 …; 26.77 26.47 26.25 26.63 …",
    devices: OLD,
    ..DIRECT
};
pub(super) const WRX80: CopyMachine = CopyMachine {
    name: "Threadripper PRO 3995WX, RTX 4090",
    source: "tinygrad/open-gpu-kernel-modules#6",
    cpu: "Threadripper PRO 3995WX",
    said: "wrx80e sage and threadripper 3995wx; bidirectional 49.97 to 51.12",
    assumed: "each slot has a root port",
    roots: &[0, 0],
    devices: &[before_hopper(Root(0)), before_hopper(Root(1))],
    ..DIRECT
};
pub(super) const NAPLES: CopyMachine = CopyMachine {
    name: "EPYC 7261, MI25",
    source: "ROCm/ROCmValidationSuite#427",
    cpu: "EPYC 7261",
    said: "two MI25 on the same CPU; 7.056, 7.030; bidirectional 11.901, 12.081",
    assumed: "Gen3 x16, as the card has",
    link: GEN3,
    devices: TWO,
    ..WRX80
};
pub(super) const LAPTOP: CopyMachine = CopyMachine {
    name: "Ryzen 6800HS, RX 6700S",
    source: "the post \"RX 6700s for Machine Learning using ROCm 5.2.3\", 2022",
    said: "PCIE 4.0 8x; 14.186, 14.280; 25.843",
    link: RawLink::new(4, 8),
    devices: &[DeviceAt { lanes: 8, ..gpu(Root(0)) }],
    ..DIRECT
};
pub(super) const H800: CopyMachine = CopyMachine {
    name: "8 x H800, host not named",
    source: "a public page of outputs of nvbandwidth v0.2, driver 525.105.17",
    said: "55.28 to 55.34; 55.09 to 55.15; bidirectional 52.33 to 52.96; 34.29 to 50.50",
    link: GEN5,
    ..DIRECT
};
pub(super) const XE9780: CopyMachine = CopyMachine {
    name: "PowerEdge XE9780, B300",
    source: "the page \"Power Edge XE9780 Server Performance Test\", 2026",
    said: "55.58 to 55.60; 56.92 to 57.30; bidirectional 51.04 to 51.87; 48.09 to 49.09",
    assumed: "Gen5, as its CPUs have",
    ..H800
};
pub(super) const B300: CopyMachine = CopyMachine {
    name: "8 x B300, AMD host",
    source: "\"Performance Cost of Confidential Computing on LLM Inference\", host without it",
    said: "H2D 57.8 GB/s, D2H 58.3 GB/s",
    ..XE9780
};
pub(super) const RTX_5060: CopyMachine = CopyMachine {
    name: "RTX 5060 Ti, host not named",
    source: "the page \"PCIe Benchmarks\" of risers K33UR-TL and PGW-RC-MRK-011",
    said: "should show Speed 32GT/s; bidirectional 18.00, 18.04; 26.78, 26.84",
    assumed: "x8, as the card has",
    link: RawLink::new(5, 8),
    ..LAPTOP
};
pub(super) const GTX_1080: CopyMachine = CopyMachine {
    name: "GTX 1080, host not named",
    source: "the LXD tutorial \"GPU data processing inside LXD\", CUDA 10.0",
    said: "33554432: 12845.8, 12887.7 (MB/s of 1024000 B)",
    link: GEN3,
    devices: OLD,
    ..DIRECT
};
pub(super) const K80: CopyMachine = CopyMachine {
    name: "K80, host not named",
    source: "a public page of gpu105's outputs, CUDA 8.0",
    said: "33554432: 11324.0, 11301.4 (MB/s of 1024000 B)",
    assumed: "a switch on the card",
    switches: &[sw(Root(0), 3, "")],
    devices: &[before_hopper(Switch(0))],
    ..GTX_1080
};
pub(super) const S822LC: CopyMachine = CopyMachine {
    name: "IBM S822LC, K80",
    source: "xcat2/xcat-core, docs/source/advanced/gpu/nvidia/verify_cuda_install.rst",
    said: "33554432: 7765.1, 7759.6 (MB/s of 1024000 B)",
    ..K80
};
pub(super) const U50: CopyMachine = CopyMachine {
    name: "Alveo U50, host not named",
    source: "two public pages of xbutil validate, xilinx_u50_gen3x16_xdma_201920_3",
    said: "write 11933.1, read 11966.5; 11427.0, 11863.9 (MB/s of 2^20)",
    link: GEN3,
    devices: &[other(Root(0), 16)],
    ..DIRECT
};
pub(super) const U200: CopyMachine = CopyMachine {
    name: "Alveo U200, host not named",
    source: "Xilinx/XRT#6883, and a public page of xbutil validate, xilinx_u200_xdma_201820_1",
    said: "gen3x16: 9302.8, 11909.4; 11587.2, 12148 (MB/s of 2^20)",
    ..U50
};
pub(super) const U250: CopyMachine = CopyMachine {
    name: "Alveo U250, host not named",
    source: "Xilinx/XRT#937",
    said: "xilinx_u250_xdma_201830_2: 11009, 12152 (MB/s of 2^20)",
    ..U50
};
pub(super) const AGILEX: CopyMachine = CopyMachine {
    name: "Agilex 7, P-Tile, host not named",
    source: "Intel, Multi Channel DMA IP Design Example User Guide (683517), Hardware Test Result",
    said: "Gen4 x16; Rx, 8 queues, 32768 B: 127333248.00KB in 00:05:000",
    link: RawLink::new(4, 16),
    ..U50
};
pub(super) const AN690: CopyMachine = CopyMachine {
    name: "Avalon-MM DMA, host not named",
    source: "Intel, AN 690, Peak Throughput",
    said: "Gen3 x8, 256-byte payload; 2 MB transfers: 6.4 GB/s in each direction",
    link: RawLink::new(3, 8),
    devices: &[other(Root(0), 8)],
    ..U50
};
pub(super) const VCU128: CopyMachine = CopyMachine {
    name: "SuperMicro 4124GS-TNR, VCU128",
    source: "NVIDIA developer forum 215561",
    said: "XDMA, Gen3 x16; ~ 12.5GB/s for both CPU-FPGA Read and Write",
    ..U50
};
pub(super) const BROADWELL: CopyMachine = CopyMachine {
    name: "E5-2650 v4, P40, three P4600",
    source: "NVIDIA developer forum 55564",
    cpu: "E5-2650 v4",
    said: "3.2GB/s SeqRead each; three to RAM 9.4-9.5, to the GPU 7.1, two 6.3",
    assumed: "x4 each, as the SSDs have",
    link: GEN3,
    devices: &[gpu(Root(0)), other(Root(0), 4), other(Root(0), 4), other(Root(0), 4)],
    device_gb_per_s: 3.2,
    known_before: true,
    ..DIRECT
};
pub(super) const A30: CopyMachine = CopyMachine {
    name: "A30, NIC of the other socket",
    source: "linux-rdma/perftest#241",
    said: "SYS; host to host around 23000MB/s, GPU to GPU around 11000MB/s (of 2^20), 32 MiB",
    assumed: "a NIC of 200 Gb/s; the reading side is the slower one",
    roots: &[0, 1],
    devices: &[gpu(Root(0)), other(Root(1), 16)],
    device_gb_per_s: 25.0,
    ..DIRECT
};
