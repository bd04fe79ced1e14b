//! A third collection of copies that others measured, with its machines: which rows are taken, and
//! what is assumed for all, is in `copies.rs`. They were collected and committed after the last rule
//! of `first.rs` was written down, and before the model was asked. Who collected them knew the model,
//! so none was left out for its value: what was found and not taken stands in
//! docs/results/pcie-packets.md. GB is 10⁹ bytes.

use super::copies::At::Root;
use super::copies::CopyQuestion::{Alone, Beside};
use super::copies::{CopyMachine, CopyRow, DeviceAt, down, up};
use super::copy_machines::{DIRECT, before_hopper, gpu, other};
use super::copy_rows::row;
use crate::topology::RawLink;

const OLD: &[DeviceAt] = &[before_hopper(Root(0))];
const THIRD: CopyMachine = CopyMachine { rules_before: 4, ..DIRECT };
const GEN3: CopyMachine = CopyMachine { link: RawLink::new(3, 16), ..THIRD };

const FOUR_T4: CopyMachine = CopyMachine {
    name: "4 x T4, host not named",
    source: "sadcup/nvbandwidth, results/benchmark_h2d.txt and benchmark_d2h.txt",
    said: "nvbandwidth v0.8; Device 0 to 3: Tesla T4, 3b:00, 86:00, af:00, d8:00; 12.30 to 12.35; \
           13.14; bidirectional 11.15 to 11.67; 11.11 to 11.21",
    assumed: "Gen3 x16, as the card has",
    devices: OLD,
    ..GEN3
};
const RX_9070: CopyMachine = CopyMachine {
    name: "Ryzen 9 9950X3D, RX 9070 XT",
    source: "tpoechtrager/gpu-pcie-bench, README.md",
    said: "Windows; CL_MEM_ALLOC_HOST_PTR; averages of 100 MB, 512 MB, 1 GB, 2 GB: 48.47, 50.53, \
           50.79, 39.18; 49.15, 51.31, 51.33, 39.52",
    assumed: "Gen5 x16, as the card has (rate above 31.5)",
    known_before: true,
    link: RawLink::new(5, 16),
    devices: &[gpu(Root(0))],
    ..THIRD
};
const AZURE_H100: CopyMachine = CopyMachine {
    name: "8 x H100 of a cloud (Azure), host not named",
    source: "Azure/azurehpc-health-checks, distributed_nhc/README.md",
    said: "mynode-411: Device 0 to 7, Host to Device and Device to Host reported bandwidth is 55 GB/s; \
           integers",
    assumed: "H100, as a bus bandwidth of 477 GB/s of NCCL says; Gen5 x16, as it has",
    link: RawLink::new(5, 16),
    devices: &[gpu(Root(0))],
    ..THIRD
};
const VEGA: CopyMachine = CopyMachine {
    name: "RX Vega 64, host not named",
    source: "ROCm/tensorflow-upstream#359, farnoy, 2019-03-18",
    said: "hipBusBandwidth, MallocMode=pinned, 64 CUs; D2H_Bandwidth_pinned, 524288kB, median 14.2818; \
           the other way was not to be read",
    assumed: "Gen3 x16, as the card has",
    devices: &[gpu(Root(0))],
    ..GEN3
};
const PRO_VII: CopyMachine = CopyMachine {
    name: "Threadripper 2950X, Radeon Pro VII",
    source: "ROCm/rocm_smi_lib#110, t1nux, 2024-10-29",
    cpu: "Threadripper 2950X",
    said: "RocmBandwidthTest 2.6.0; 0c:0.0; 14.250 to it; the rest was not to be read",
    assumed: "Gen3 x16, as the CPU has",
    devices: &[gpu(Root(0))],
    ..GEN3
};
const CLOUD_T4: CopyMachine = CopyMachine {
    name: "T4 of a cloud (Alibaba), host not named",
    source: "router-gao/cuda-demo, cuda-samples/02-cuda-bandwidth.md",
    said: "ecs-user; Tesla T4; bandwidthTest, pinned, 32000000 B: 9.7, 11.1",
    assumed: "Gen3 x16, as the card has",
    devices: OLD,
    ..GEN3
};
const CLOUD_V100: CopyMachine = CopyMachine {
    name: "V100-SXM2 of a cloud (Alibaba), host not named",
    source: "router-gao/cuda-demo, cuda-samples/02-cuda-bandwidth.md",
    said: "ecs-user; Tesla V100-SXM2-16GB; bandwidthTest, pinned, 32000000 B: 9.6, 11.4",
    assumed: "Gen3 x16, as the card has",
    devices: OLD,
    ..GEN3
};
const F1: CopyMachine = CopyMachine {
    name: "VU9P of a cloud (AWS F1), Streaming Data Engine",
    source: "aws/aws-fpga, sdk/apps/virtual-ethernet/doc/SDE_HW_Guide.md (FAQ)",
    said: "PCI-E BW of 16GB/s; the maximum throughput for H2C is 12 GB/s, for C2H 12.4 GB/s",
    assumed: "Gen3 x16, as F1 has",
    devices: &[other(Root(0), 16)],
    ..GEN3
};

/// The rows.
pub const THIRD_COPY_ROWS: [CopyRow; 16] = [
    row(&FOUR_T4, "from host memory", Alone(down(0)), 12.335),
    row(&FOUR_T4, "to host memory", Alone(up(0)), 13.14),
    row(&FOUR_T4, "from host memory beside the way back", Beside(down(0), up(0)), 11.61),
    row(&FOUR_T4, "to host memory beside the way back", Beside(up(0), down(0)), 11.205),
    row(&RX_9070, "from host memory", Alone(down(0)), 49.5),
    row(&RX_9070, "to host memory", Alone(up(0)), 50.23),
    row(&AZURE_H100, "from host memory", Alone(down(0)), 55.0),
    row(&AZURE_H100, "to host memory", Alone(up(0)), 55.0),
    row(&VEGA, "to host memory", Alone(up(0)), 14.2818),
    row(&PRO_VII, "from host memory", Alone(down(0)), 14.25),
    row(&CLOUD_T4, "from host memory", Alone(down(0)), 9.7),
    row(&CLOUD_T4, "to host memory", Alone(up(0)), 11.1),
    row(&CLOUD_V100, "from host memory", Alone(down(0)), 9.6),
    row(&CLOUD_V100, "to host memory", Alone(up(0)), 11.4),
    row(&F1, "from host memory", Alone(down(0)), 12.0),
    row(&F1, "to host memory", Alone(up(0)), 12.4),
];
