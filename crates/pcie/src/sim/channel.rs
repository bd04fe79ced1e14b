//! A channel: one direction of a link, and the credits that its far end advertises.

/// Picoseconds.
pub type Ps = u64;
/// Flow-control class of a TLP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Class {
    /// Memory writes.
    Posted = 0,
    /// Memory read requests.
    NonPosted = 1,
    /// Completions with data.
    Completion = 2,
}

/// Credits that a receiver advertises: headers, and data in units of 16 B, for each class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Credits {
    /// Header credits.
    pub headers: [u32; 3],
    /// Data credits.
    pub data: [u32; 3],
}

impl Credits {
    /// Credits that no sender ever waits for.
    pub const INFINITE: Self = Self { headers: [u32::MAX; 3], data: [u32::MAX; 3] };

    /// The same credits with unlimited completions, as an endpoint must advertise (PCIe base
    /// specification 2.6.1).
    pub const fn of_endpoint(mut self) -> Self {
        self.headers[Class::Completion as usize] = u32::MAX;
        self.data[Class::Completion as usize] = u32::MAX;
        self
    }

    /// Buffers for `tlps` TLPs of `bytes` in every class.
    pub const fn buffers(tlps: u32, bytes: u32) -> Self {
        let units = tlps * bytes.div_ceil(16);
        Self { headers: [tlps; 3], data: [units; 3] }
    }
}

/// One direction of a link.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ChannelSpec {
    /// Bandwidth for TLPs, GB/s.
    pub gb_per_s: f64,
    /// Time from the last byte on the wire to the far end, and of a credit on its way back.
    pub latency_ps: Ps,
    /// Time inside the far end until the TLP can leave it. Meanwhile it holds its credits.
    pub inside_ps: Ps,
    /// Bytes beside the data of a TLP, by class.
    pub overhead_bytes: [u32; 3],
    /// Data travel in whole units of this size: DWs on PCIe, flits on NVLink, sectors inside a GPU.
    pub unit_bytes: u32,
    /// Least time between the starts of two TLPs, by class.
    pub tlp_ps: [Ps; 3],
    /// Credits of the far end.
    pub credits: Credits,
    /// Size to which the far end cuts peer-to-peer TLPs before it forwards them; 0: it does not.
    pub cut_bytes: u32,
    /// Largest TLP payload.
    pub mps_bytes: u32,
    /// Bandwidth limit of peer-to-peer TLPs by class, GB/s; 0: none.
    pub peer_gb_per_s: [f64; 3],
    /// The same of those that have crossed sockets.
    pub far_gb_per_s: [f64; 3],
    /// Whether it joins two sockets.
    pub crosses_sockets: bool,
    /// Completions that wait for this channel join the preceding completion of the same read, up to
    /// MPS. PCIe base specification 2.3.1.1 leaves this to the completer.
    pub joins: bool,
    /// Bytes of the DLLP (Ack or UpdateFC) that the far end returns for each TLP.
    pub dllp_bytes: u32,
    /// Each source has a queue of its own, and they take turns, a TLP a turn: the engines of a device
    /// at its link. So no read request waits for what another engine has to write. Intel's Scalable
    /// Scatter-Gather DMA has it so (user guide 823097, 3.5 DMA Arbiter), as has AMD's XDMA between
    /// its channels on the card's side (PG195, C2H Channel). Corundum has a FIFO each for read
    /// requests, writes and completions, but reads go first (`fpga/lib/pcie/rtl/pcie_us_if_rq.v`,
    /// `pcie_ptile_if_tx.v`).
    pub by_source: bool,
}

impl ChannelSpec {
    /// A path inside a device: no overhead beside the data, no credits to wait for.
    pub fn internal(gb_per_s: f64, latency_ps: Ps) -> Self {
        Self {
            gb_per_s,
            latency_ps,
            inside_ps: 0,
            overhead_bytes: [0; 3],
            unit_bytes: 1,
            tlp_ps: [0; 3],
            credits: Credits::INFINITE,
            cut_bytes: 0,
            mps_bytes: 4096,
            peer_gb_per_s: [0.0; 3],
            far_gb_per_s: [0.0; 3],
            crosses_sockets: false,
            joins: false,
            dllp_bytes: 0,
            by_source: false,
        }
    }
}

/// Counters of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Carried {
    /// TLPs.
    pub tlps: u64,
    /// Data bytes.
    pub data_bytes: u64,
    /// Bytes on the wire.
    pub wire_bytes: u64,
    /// Time during which a TLP was on the wire.
    pub busy_ps: u64,
}
