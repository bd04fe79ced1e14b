//! TLP arithmetic: the cost of a transfer on one link, without queueing.
//!
//! The module follows the PCI Express Base Specification 5.0, sections 2.2 (headers), 2.3.1.1 (read
//! completion boundary), 2.6.1.2 and 3.6.2.1 (UpdateFC and Ack latency guidelines), 4.2
//! (encodings), and 6.0 section 4.2.3 for FLIT mode. The effective-bandwidth model is that of
//! pcie-bench (Neugebauer et al., *Understanding PCIe performance for end host networking*, SIGCOMM
//! 2018), written anew.
//!
//! Guarantees: every split is legal (no TLP above MPS or MRRS, none across a 4 KiB boundary, each
//! completion ends at a multiple of RCB or at the request's end) and conserves bytes.
//! boundary, completions end at a multiple of RCB or at the request's end) and conserves bytes.

use thiserror::Error;

/// A memory request does not cross a multiple of this address (PCIe base specification 2.2.7).
pub const PAGE_BYTES: u64 = 4096;
/// Bytes of framing token, sequence number and LCRC of one TLP, outside FLIT mode.
const FRAMING_BYTES: u32 = 8;
/// Bytes of an Ack or UpdateFC DLLP on the link, over all its lanes: framing, six bytes, no more in
/// either encoding.
pub const DLLP_BYTES: u32 = 8;
/// SKP ordered sets: 4 symbols in every 1538.
const SKP_FRACTION: f64 = 4.0 / 1538.0;

/// A configuration that the specification does not allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum TlpError {
    /// Maximum payload size.
    #[error("MPS of {0} B: must be a power of two from 128 to 4096")]
    Mps(u32),
    /// Maximum read request size.
    #[error("MRRS of {0} B: must be a power of two from 128 to 4096")]
    Mrrs(u32),
    /// Read completion boundary.
    #[error("RCB of {0} B: must be 64 or 128")]
    Rcb(u32),
    /// Link generation.
    #[error("PCIe generation {0}: must be 1 to 6")]
    Gen(u32),
    /// Link width.
    #[error("{0} lanes: must be 1, 2, 4, 8, 12, 16 or 32")]
    Lanes(u32),
    /// A transfer of nothing.
    #[error("0 B: a transfer has at least 1 byte")]
    Empty,
    /// A transfer beyond the end of its address space.
    #[error("{bytes} B at {offset}: must end at or below {end}, {why}")]
    Range {
        /// First byte.
        offset: u64,
        /// Length.
        bytes: u64,
        /// The first address that is none, or is not counted.
        end: u64,
        /// What ends there.
        why: &'static str,
    },
}

fn power_of_two_in_range(bytes: u32) -> bool {
    bytes.is_power_of_two() && (128..=4096).contains(&bytes)
}

/// Maximum payload size: the most data bytes in one TLP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mps(u32);

impl Mps {
    /// Checks the size.
    pub fn new(bytes: u32) -> Result<Self, TlpError> {
        if power_of_two_in_range(bytes) { Ok(Self(bytes)) } else { Err(TlpError::Mps(bytes)) }
    }

    /// Size in bytes.
    pub const fn bytes(self) -> u32 {
        self.0
    }
}

/// Maximum read request size: the most bytes that one MRd asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mrrs(u32);

impl Mrrs {
    /// Checks the size.
    pub fn new(bytes: u32) -> Result<Self, TlpError> {
        if power_of_two_in_range(bytes) { Ok(Self(bytes)) } else { Err(TlpError::Mrrs(bytes)) }
    }

    /// Size in bytes.
    pub const fn bytes(self) -> u32 {
        self.0
    }
}

/// Read completion boundary: 64 or 128 at a root complex, 128 at every other completer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rcb(u32);

impl Rcb {
    /// Checks the size.
    pub fn new(bytes: u32) -> Result<Self, TlpError> {
        if bytes == 64 || bytes == 128 { Ok(Self(bytes)) } else { Err(TlpError::Rcb(bytes)) }
    }

    /// Size in bytes.
    pub const fn bytes(self) -> u32 {
        self.0
    }
}

/// Link generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Gen {
    /// 2.5 GT/s, 8b/10b.
    G1,
    /// 5 GT/s, 8b/10b.
    G2,
    /// 8 GT/s, 128b/130b.
    G3,
    /// 16 GT/s, 128b/130b.
    G4,
    /// 32 GT/s, 128b/130b.
    G5,
    /// 64 GT/s, PAM4 in FLIT mode.
    G6,
}

impl Gen {
    /// The generation of a number.
    pub fn new(number: u32) -> Result<Self, TlpError> {
        Ok(match number {
            1 => Self::G1,
            2 => Self::G2,
            3 => Self::G3,
            4 => Self::G4,
            5 => Self::G5,
            6 => Self::G6,
            other => return Err(TlpError::Gen(other)),
        })
    }

    /// The number of the generation.
    pub const fn number(self) -> u32 {
        self as u32 + 1
    }

    /// Signalling rate per lane, GT/s.
    pub const fn gt_per_s(self) -> f64 {
        match self {
            Self::G1 => 2.5,
            Self::G2 => 5.0,
            Self::G3 => 8.0,
            Self::G4 => 16.0,
            Self::G5 => 32.0,
            Self::G6 => 64.0,
        }
    }

    /// Whether TLPs travel in 256-byte FLITs.
    pub const fn flit_mode(self) -> bool {
        matches!(self, Self::G6)
    }

    /// Fraction of the line rate that carries TLP bytes. A 256 B FLIT holds 236 B of TLPs, 6 B of
    /// DLP (Acks and credits therefore cost nothing more), 8 B of CRC and 6 B of FEC.
    pub const fn encoding(self) -> f64 {
        match self {
            Self::G1 | Self::G2 => 8.0 / 10.0,
            Self::G3 | Self::G4 | Self::G5 => 128.0 / 130.0,
            Self::G6 => 236.0 / 256.0,
        }
    }
}

/// Width and generation of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LinkSpeed {
    generation: Gen,
    lanes: u32,
}

impl LinkSpeed {
    /// Checks the width.
    pub fn new(generation: Gen, lanes: u32) -> Result<Self, TlpError> {
        if matches!(lanes, 1 | 2 | 4 | 8 | 12 | 16 | 32) {
            Ok(Self { generation, lanes })
        } else {
            Err(TlpError::Lanes(lanes))
        }
    }

    /// Generation.
    pub const fn generation(self) -> Gen {
        self.generation
    }

    /// Number of lanes.
    pub const fn lanes(self) -> u32 {
        self.lanes
    }

    /// Bandwidth for TLPs after the encoding, Gb/s each way.
    pub fn raw_gbps(self) -> f64 {
        self.generation.gt_per_s() * f64::from(self.lanes) * self.generation.encoding()
    }

    /// The specification's Ack latency limit, equal to its UpdateFC guideline, in symbol times:
    /// (MPS + 28) × AckFactor ÷ width + InternalDelay, rounded down. `None` in FLIT mode, whose DLP
    /// bytes carry both.
    pub fn ack_limit_symbols(self, mps: Mps) -> Option<u32> {
        let delay = match self.generation {
            Gen::G1 => 19.0,
            Gen::G2 => 70.0,
            // The tables for 8.0 GT/s hold for the higher rates too.
            Gen::G3 | Gen::G4 | Gen::G5 => 115.0,
            Gen::G6 => return None,
        };
        let factor = match (mps.bytes() <= 256, self.lanes) {
            (true, 1..=4) => 1.4,
            (true, 8) => 2.5,
            (true, _) => 3.0,
            (false, 1..=8) => 1.0,
            (false, _) => 2.0,
        };
        let symbols = f64::from(mps.bytes() + 28) * factor / f64::from(self.lanes) + delay;
        Some(symbols as u32)
    }

    /// Fraction of the bandwidth that Acks and UpdateFCs (each at its latency limit) and SKP
    /// ordered sets take, as in pcie-bench's model, which takes a symbol time for one byte: a link of
    /// N lanes moves N bytes in it, so that the DLLPs of this tax are N times too large. `None`
    /// where no limit is published; no tax then applies.
    pub fn pcie_bench_tax(self, mps: Mps) -> Option<f64> {
        let limit = f64::from(self.ack_limit_symbols(mps)?);
        Some(2.0 * f64::from(DLLP_BYTES) / limit + SKP_FRACTION)
    }
}

/// Width of a memory request's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Addressing {
    /// 3-DW header, below 4 GiB.
    Bits32,
    /// 4-DW header.
    Bits64,
}

/// Bytes of a TLP beside its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Overhead {
    /// Memory write.
    pub mwr_bytes: u32,
    /// Memory read request, which carries no data.
    pub mrd_bytes: u32,
    /// Completion with data.
    pub cpld_bytes: u32,
}

impl Overhead {
    /// Overheads of `generation`. In FLIT mode a TLP has no framing token, sequence number or LCRC
    /// of its own: only header and ECRC remain. The model does not count orthogonal header content
    /// (4 B), which FLIT mode adds where byte enables or a PASID are needed.
    pub const fn new(generation: Gen, addressing: Addressing, ecrc: bool) -> Self {
        let framing = if generation.flit_mode() { 0 } else { FRAMING_BYTES };
        let ecrc = if ecrc { 4 } else { 0 };
        let request = match addressing {
            Addressing::Bits32 => 12,
            Addressing::Bits64 => 16,
        };
        Self {
            mwr_bytes: framing + request + ecrc,
            mrd_bytes: framing + request + ecrc,
            cpld_bytes: framing + 12 + ecrc,
        }
    }
}

/// One piece of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// First byte.
    pub addr: u64,
    /// Length.
    pub bytes: u32,
}

/// Iterator over the pieces of a transfer; it does not allocate.
#[derive(Debug, Clone)]
pub struct Pieces {
    addr: u64,
    left_bytes: u64,
    limit: u64,
    /// Every piece but the last ends at a multiple of this.
    boundary: u64,
}

impl Iterator for Pieces {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        if self.left_bytes == 0 {
            return None;
        }
        let to_page = PAGE_BYTES - self.addr % PAGE_BYTES;
        let mut bytes = self.limit.min(to_page).min(self.left_bytes);
        if bytes < self.left_bytes {
            bytes -= (self.addr + bytes) % self.boundary;
        }
        let piece = Piece { addr: self.addr, bytes: bytes as u32 };
        self.addr += bytes;
        self.left_bytes -= bytes;
        Some(piece)
    }
}

/// Memory writes of a transfer: as long as MPS allows, none across a 4 KiB boundary.
pub fn split_write(addr: u64, bytes: u64, mps: Mps) -> Pieces {
    Pieces { addr, left_bytes: bytes, limit: u64::from(mps.bytes()), boundary: 1 }
}

/// Read requests of a transfer: as long as MRRS allows, none across a 4 KiB boundary.
pub fn split_read(addr: u64, bytes: u64, mrrs: Mrrs) -> Pieces {
    Pieces { addr, left_bytes: bytes, limit: u64::from(mrrs.bytes()), boundary: 1 }
}

/// Completions of one read request by a completer that merges up to MPS. The first ends at a
/// multiple of RCB or at the request's end; the middle ones are multiples of RCB.
pub fn split_completion_mps(addr: u64, bytes: u64, mps: Mps, rcb: Rcb) -> Pieces {
    let (limit, boundary) = (u64::from(mps.bytes()), u64::from(rcb.bytes()));
    Pieces { addr, left_bytes: bytes, limit, boundary }
}

/// Completions of one read request by a completer that cuts at every multiple of RCB.
pub fn split_completion_rcb(addr: u64, bytes: u64, rcb: Rcb) -> RcbPieces {
    RcbPieces { addr, left_bytes: bytes, rcb: u64::from(rcb.bytes()) }
}

/// Iterator over completions cut at every multiple of RCB.
#[derive(Debug, Clone)]
pub struct RcbPieces {
    addr: u64,
    left_bytes: u64,
    rcb: u64,
}

impl Iterator for RcbPieces {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        if self.left_bytes == 0 {
            return None;
        }
        let bytes = (self.rcb - self.addr % self.rcb).min(self.left_bytes);
        let piece = Piece { addr: self.addr, bytes: bytes as u32 };
        self.addr += bytes;
        self.left_bytes -= bytes;
        Some(piece)
    }
}

/// The parts of a device's configuration on which the arithmetic depends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Link.
    pub link: LinkSpeed,
    /// Maximum payload size.
    pub mps: Mps,
    /// Maximum read request size.
    pub mrrs: Mrrs,
    /// Read completion boundary of the completer.
    pub rcb: Rcb,
    /// Address width.
    pub addressing: Addressing,
    /// Whether TLPs carry an end-to-end CRC.
    pub ecrc: bool,
    /// Whether data count in whole DWs, as on the wire. They do not in pcie-bench's model.
    pub pad_dw: bool,
}

/// Wire bytes of one operation in each direction, from the device's view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WireBytes {
    /// Bytes from device to completer.
    pub up: u64,
    /// Bytes from completer to device.
    pub down: u64,
    /// TLPs in both directions.
    pub tlps: u64,
    /// Those of them from completer to device.
    pub tlps_down: u64,
}

impl WireBytes {
    /// The bytes of each direction with a DLLP of so many bytes for each TLP of the other, up and
    /// down.
    fn with_dllps(self, bytes: u64) -> (u64, u64) {
        (self.up + bytes * self.tlps_down, self.down + bytes * (self.tlps - self.tlps_down))
    }
}

/// What the data link layer takes of a link, beside what each TLP has of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tax {
    /// Nothing.
    None,
    /// A DLLP (Ack or UpdateFC) for each TLP, on the other direction of the link; none in FLIT mode,
    /// whose FLITs have bytes for both. The simulation takes the same.
    Dllps,
    /// [`LinkSpeed::pcie_bench_tax`], of both directions.
    PcieBench,
}

/// Effective bandwidths for one transfer size, Gb/s of data.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Effective {
    /// Writes alone.
    pub write: f64,
    /// Reads alone, with completions merged up to MPS.
    pub read: f64,
    /// Reads alone, with completions cut at RCB.
    pub read_rcb: f64,
    /// Equal numbers of reads and writes, all of this size.
    pub both: f64,
}

impl Config {
    /// Gen3 x8 with MPS 256, MRRS 512, RCB 64: the configuration of pcie-bench's model table.
    pub fn pcie_bench() -> Self {
        Self {
            link: LinkSpeed { generation: Gen::G3, lanes: 8 },
            mps: Mps(256),
            mrrs: Mrrs(512),
            rcb: Rcb(64),
            addressing: Addressing::Bits64,
            ecrc: false,
            pad_dw: false,
        }
    }

    /// TLP overheads of this configuration.
    pub fn overhead(&self) -> Overhead {
        Overhead::new(self.link.generation, self.addressing, self.ecrc)
    }

    fn data_bytes(&self, piece: Piece) -> u64 {
        if self.pad_dw {
            let end = piece.addr + u64::from(piece.bytes);
            end.next_multiple_of(4) - (piece.addr & !3)
        } else {
            u64::from(piece.bytes)
        }
    }

    fn sum(&self, pieces: impl Iterator<Item = Piece>, overhead_bytes: u32) -> (u64, u64) {
        pieces.fold((0, 0), |(bytes, tlps), p| {
            (bytes + self.data_bytes(p) + u64::from(overhead_bytes), tlps + 1)
        })
    }

    /// Checks that a transfer has bytes and lies in the address space. With 64-bit addressing the
    /// space ends at 2⁶⁰ (1 EiB), so that 64 bits can count the wire bytes.
    ///
    /// # Errors
    /// [`TlpError::Empty`] and [`TlpError::Range`].
    pub fn check(&self, offset: u64, bytes: u64) -> Result<(), TlpError> {
        let (end, why) = match self.addressing {
            Addressing::Bits32 => (1 << 32, "where 32-bit addressing does"),
            // Headers and DLLPs are bytes too, and their sum has 64 bits.
            Addressing::Bits64 => (1 << 60, "so that 64 bits count the bytes on the wire"),
        };
        if bytes == 0 {
            return Err(TlpError::Empty);
        }
        if offset.checked_add(bytes).is_none_or(|last| last > end) {
            return Err(TlpError::Range { offset, bytes, end, why });
        }
        Ok(())
    }

    /// Sums a cost over a transfer page by page. No TLP crosses a page, so all whole pages cost the
    /// same.
    fn by_page(&self, addr: u64, bytes: u64, cost: impl Fn(u64, u64) -> WireBytes) -> WireBytes {
        let head = (addr.next_multiple_of(PAGE_BYTES) - addr).min(bytes);
        let (pages, tail) = ((bytes - head) / PAGE_BYTES, (bytes - head) % PAGE_BYTES);
        let parts = [
            (1, cost(addr, head)),
            (pages, cost(0, if pages > 0 { PAGE_BYTES } else { 0 })),
            (1, cost(0, tail)),
        ];
        parts.into_iter().fold(WireBytes::default(), |sum, (n, part)| WireBytes {
            up: sum.up + n * part.up,
            down: sum.down + n * part.down,
            tlps: sum.tlps + n * part.tlps,
            tlps_down: sum.tlps_down + n * part.tlps_down,
        })
    }

    /// Wire bytes of a write of `bytes` at `addr`, which [`Config::check`] accepts.
    pub fn write_wire(&self, addr: u64, bytes: u64) -> WireBytes {
        self.by_page(addr, bytes, |addr, bytes| {
            let pieces = split_write(addr, bytes, self.mps);
            let (up, tlps) = self.sum(pieces, self.overhead().mwr_bytes);
            WireBytes { up, down: 0, tlps, tlps_down: 0 }
        })
    }

    /// Wire bytes of a read of `bytes` at `addr`, which [`Config::check`] accepts. `cut_at_rcb`:
    /// the completer cuts at every multiple of RCB.
    pub fn read_wire(&self, addr: u64, bytes: u64, cut_at_rcb: bool) -> WireBytes {
        self.by_page(addr, bytes, |addr, bytes| self.read_pieces(addr, bytes, cut_at_rcb))
    }

    fn read_pieces(&self, addr: u64, bytes: u64, cut_at_rcb: bool) -> WireBytes {
        let overhead = self.overhead();
        let mut wire = WireBytes::default();
        for request in split_read(addr, bytes, self.mrrs) {
            let (start, len) = (request.addr, u64::from(request.bytes));
            let (down, tlps) = if cut_at_rcb {
                self.sum(split_completion_rcb(start, len, self.rcb), overhead.cpld_bytes)
            } else {
                let pieces = split_completion_mps(start, len, self.mps, self.rcb);
                self.sum(pieces, overhead.cpld_bytes)
            };
            wire.up += u64::from(overhead.mrd_bytes);
            wire.down += down;
            wire.tlps += tlps + 1;
            wire.tlps_down += tlps;
        }
        wire
    }

    /// Link bandwidth for TLPs and the DLLPs that are counted with them. `None` where the tax is
    /// unknown.
    pub fn tlp_gbps(&self, tax: Tax) -> Option<f64> {
        let raw = self.link.raw_gbps();
        match tax {
            Tax::PcieBench => Some(raw * (1.0 - self.link.pcie_bench_tax(self.mps)?)),
            Tax::None | Tax::Dllps => Some(raw),
        }
    }

    /// Effective bandwidths of back-to-back operations of `bytes` at `offset`. `None` where
    /// [`Config::tlp_gbps`] is `None` or [`Config::check`] fails.
    pub fn effective(&self, offset: u64, bytes: u64, tax: Tax) -> Option<Effective> {
        self.check(offset, bytes).ok()?;
        let gbps = self.tlp_gbps(tax)?;
        let has_dllps = tax == Tax::Dllps && !self.link.generation.flit_mode();
        let dllp_bytes = if has_dllps { u64::from(DLLP_BYTES) } else { 0 };
        let of = |wire: WireBytes| wire.with_dllps(dllp_bytes);
        let rate = |wire_bytes: u64| gbps * bytes as f64 / wire_bytes as f64;
        let write = self.write_wire(offset, bytes);
        let read = self.read_wire(offset, bytes, false);
        let read_rcb = self.read_wire(offset, bytes, true);
        Some(Effective {
            write: rate(of(write).0.max(of(write).1)),
            read: rate(of(read).0.max(of(read).1)),
            read_rcb: rate(of(read_rcb).0.max(of(read_rcb).1)),
            both: rate((of(write).0 + of(read).0).max(of(write).1 + of(read).1)),
        })
    }
}

#[cfg(test)]
#[path = "tlp_tests.rs"]
mod tests;
