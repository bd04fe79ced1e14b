//! UMR work requests, which change a memory key (mlx5 PRM, "UMR WQE"; the same structures as
//! libmlx5's `mlx5_wqe_umr_ctrl_seg`, `mlx5_wqe_mkey_context_seg`, `mlx5_wqe_umr_klm_seg` and
//! `mlx5_wqe_umr_repeat_block_seg`).
//!
//! A UMR WQE consists of a control segment, whose immediate is the key; a UMR control segment,
//! which selects the fields to change; a memory key context with their values; and, if the
//! translation changes, its entries: a list of ranges, or a repeated block.

use bytemuck::{Pod, Zeroable};

use super::be::{Be16, Be32, Be64};
use super::seg::{CtrlSeg, DS_BYTES, DataSeg, Flags, MAX_DS, Opcode, WQEBB_BYTES};
use super::wqe::WqeError;
use super::{Iova, Lkey, Qpn};

/// Offset of the translation: bytes of the control segments and of the memory key context.
pub const UMR_HEADER_BYTES: usize = 16 + size_of::<UmrCtrlSeg>() + size_of::<MkeySeg>();
/// Queue pair number of a key that any queue pair of the protection domain may use.
pub const ANY_QPN: Qpn = Qpn(Qpn::MAX);

/// Flag: the translation is inline in the WQE.
pub const UMR_INLINE: u8 = 1 << 7;
/// Flag: the key must be free.
pub const UMR_CHECK_FREE: u8 = 1 << 5;
/// Flag: `translation_offset` is the entries' place in the key's translation.
pub const UMR_TRANSLATION_OFFSET: u8 = 1 << 4;
/// Flag: the key must belong to this queue pair or to any.
pub const UMR_CHECK_QPN: u8 = 1 << 3;
const UMR_KNOWN_FLAGS: u8 = UMR_INLINE | UMR_CHECK_FREE | UMR_TRANSLATION_OFFSET | UMR_CHECK_QPN;

/// Bits of [`UmrCtrlSeg::mkey_mask`].
pub mod mask {
    /// Length.
    pub const LEN: u64 = 1 << 0;
    /// Address of the first byte.
    pub const START_ADDR: u64 = 1 << 6;
    /// Low byte of the key.
    pub const MKEY: u64 = 1 << 13;
    /// Queue pair.
    pub const QPN: u64 = 1 << 14;
    /// Local write.
    pub const LOCAL_WRITE: u64 = 1 << 18;
    /// Remote read.
    pub const REMOTE_READ: u64 = 1 << 19;
    /// Remote write.
    pub const REMOTE_WRITE: u64 = 1 << 20;
    /// Atomics.
    pub const ATOMIC: u64 = 1 << 21;
    /// Whether the key is free.
    pub const FREE: u64 = 1 << 29;
    /// All rights.
    pub const RIGHTS: u64 = LOCAL_WRITE | REMOTE_READ | REMOTE_WRITE | ATOMIC;
    /// Fields that a UMR may change; signatures (9 and 12) are not supported.
    pub const KNOWN: u64 = LEN | START_ADDR | MKEY | QPN | RIGHTS | FREE;
}

/// [`MkeySeg::free`]: the key is free.
pub const MKEY_FREE: u8 = 1 << 6;
/// [`MkeySeg::access_flags`]: atomics.
pub const MKEY_ATOMIC: u8 = 1 << 6;
/// [`MkeySeg::access_flags`]: remote write.
pub const MKEY_REMOTE_WRITE: u8 = 1 << 5;
/// [`MkeySeg::access_flags`]: remote read.
pub const MKEY_REMOTE_READ: u8 = 1 << 4;
/// [`MkeySeg::access_flags`]: local write.
pub const MKEY_LOCAL_WRITE: u8 = 1 << 3;

/// UMR control segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct UmrCtrlSeg {
    /// [`UMR_INLINE`] and the other flags.
    pub flags: u8,
    /// Zero.
    pub rsvd0: [u8; 3],
    /// Length of the translation in units of 16 bytes.
    pub klm_octowords: Be16,
    /// Place of the entries in the key's translation.
    pub translation_offset: Be16,
    /// Fields to change: bits of [`mask`].
    pub mkey_mask: Be64,
    /// Zero.
    pub rsvd1: [u8; 32],
}

/// Memory key context segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct MkeySeg {
    /// [`MKEY_FREE`].
    pub free: u8,
    /// Zero.
    pub reserved1: u8,
    /// Rights: `MKEY_*`.
    pub access_flags: u8,
    /// Zero.
    pub sf: u8,
    /// Queue pair 31:8, low byte of the key 7:0.
    pub qpn_mkey: Be32,
    /// Zero.
    pub reserved2: Be32,
    /// Protection domain; a UMR cannot change it.
    pub flags_pd: Be32,
    /// Address of the first byte.
    pub start_addr: Be64,
    /// Length in bytes.
    pub len: Be64,
    /// Signatures; not supported.
    pub bsf_octword_size: Be32,
    /// Zero.
    pub reserved3: [Be32; 4],
    /// Ignored: the UMR control segment gives the number of entries.
    pub translations_octword_size: Be32,
    /// Zero.
    pub reserved4: [u8; 3],
    /// Page size of keys that translate by pages; not supported.
    pub log_page_size: u8,
    /// Zero.
    pub reserved: Be32,
}

/// First 16-byte unit of a repeated block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct RepeatBlockSeg {
    /// Bytes of one repetition.
    pub byte_count: Be32,
    /// [`REPEAT`]; a list has a key in its place.
    pub op: Be32,
    /// Repetitions.
    pub repeat_count: Be32,
    /// Zero.
    pub reserved: Be16,
    /// Entries that follow.
    pub num_ent: Be16,
}

/// Value of [`RepeatBlockSeg::op`]; no memory key has it.
pub const REPEAT: u32 = 0x400;

/// An entry of a repeated block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct RepeatEntrySeg {
    /// Bytes from one repetition to the next.
    pub stride: Be16,
    /// Bytes of one repetition.
    pub byte_count: Be16,
    /// Key of the region.
    pub memkey: Be32,
    /// Address of the first repetition.
    pub va: Be64,
}

const _: () = assert!(
    size_of::<UmrCtrlSeg>() == 48
        && size_of::<MkeySeg>() == 64
        && size_of::<RepeatBlockSeg>() == DS_BYTES
        && size_of::<RepeatEntrySeg>() == DS_BYTES
);

/// A strided range of a region: one entry of a key's translation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Part {
    /// Address in the region.
    pub addr: Iova,
    /// Key of the region.
    pub lkey: Lkey,
    /// Bytes of one repetition; not 0.
    pub bytes: u32,
    /// Bytes from one repetition to the next.
    pub stride: u32,
}

/// Translation of a key: its parts in order, the whole sequence `repeat` times.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Translation {
    /// Repetitions of the sequence; 1 for a list.
    pub repeat: u32,
    /// The entries of the sequence.
    pub parts: Vec<Part>,
}

impl Translation {
    /// Bytes of one repetition of the sequence.
    pub fn row_bytes(&self) -> u64 {
        self.parts.iter().map(|part| u64::from(part.bytes)).sum()
    }

    /// Bytes of all repetitions.
    pub fn bytes(&self) -> u64 {
        // At most 2^6 parts of 2^31 bytes, or of 2^16 bytes 2^32 times.
        self.row_bytes() * u64::from(self.repeat)
    }

    /// Length in a key's translation, in units of 16 bytes.
    pub fn octowords(&self) -> usize {
        self.parts.len() + usize::from(self.repeat != 1)
    }

    fn parse(bytes: &[u8]) -> Result<Self, WqeError> {
        let bad = |unit: usize| WqeError::Segment(UMR_HEADER_BYTES + unit * DS_BYTES);
        let units = bytes.chunks_exact(DS_BYTES);
        let first: RepeatBlockSeg = match units.clone().next() {
            Some(unit) => bytemuck::pod_read_unaligned(unit),
            None => return Ok(Self::default()),
        };
        if first.op.get() != REPEAT {
            return Self::parse_list(units).map_err(bad);
        }
        let count = usize::from(first.num_ent.get());
        if count == 0 || count >= units.len() || first.repeat_count.get() == 0 {
            return Err(bad(0));
        }
        let parts = units.skip(1).take(count).enumerate().map(|(i, unit)| {
            let entry: RepeatEntrySeg = bytemuck::pod_read_unaligned(unit);
            let bytes = u32::from(entry.byte_count.get());
            let (addr, lkey) = (Iova(entry.va.get()), Lkey(entry.memkey.get()));
            let part = Part { addr, lkey, bytes, stride: entry.stride.get().into() };
            if bytes == 0 { Err(bad(1 + i)) } else { Ok(part) }
        });
        let all =
            Self { repeat: first.repeat_count.get(), parts: parts.collect::<Result<_, _>>()? };
        if all.row_bytes() != u64::from(first.byte_count.get()) {
            return Err(bad(0));
        }
        Ok(all)
    }

    /// Parses a list of ranges that zeros fill up. The error is the index of an invalid unit.
    fn parse_list<'a>(units: impl Iterator<Item = &'a [u8]>) -> Result<Self, usize> {
        let (mut parts, mut ended) = (Vec::new(), false);
        for (i, unit) in units.enumerate() {
            let klm: DataSeg = bytemuck::pod_read_unaligned(unit);
            let bytes = klm.byte_count.get();
            if bytes == 0 {
                ended = true;
                continue;
            }
            if ended || bytes > super::seg::MAX_MESSAGE_BYTES {
                return Err(i);
            }
            let (addr, lkey) = (Iova(klm.addr.get()), Lkey(klm.lkey.get()));
            parts.push(Part { addr, lkey, bytes, stride: 0 });
        }
        Ok(Self { repeat: 1, parts })
    }

    fn emit(&self, into: &mut [u8]) {
        let mut units = into.chunks_exact_mut(DS_BYTES);
        let mut put = |bytes: &[u8]| {
            if let Some(unit) = units.next() {
                unit.copy_from_slice(bytes);
            }
        };
        let strided = self.repeat != 1;
        if strided {
            put(bytemuck::bytes_of(&RepeatBlockSeg {
                byte_count: (self.row_bytes() as u32).into(),
                op: REPEAT.into(),
                repeat_count: self.repeat.into(),
                num_ent: (self.parts.len() as u16).into(),
                ..RepeatBlockSeg::zeroed()
            }));
        }
        for part in &self.parts {
            match strided {
                true => put(bytemuck::bytes_of(&RepeatEntrySeg {
                    stride: (part.stride as u16).into(),
                    byte_count: (part.bytes as u16).into(),
                    memkey: part.lkey.0.into(),
                    va: part.addr.0.into(),
                })),
                false => put(bytemuck::bytes_of(&DataSeg {
                    byte_count: part.bytes.into(),
                    lkey: part.lkey.0.into(),
                    addr: part.addr.0.into(),
                })),
            }
        }
    }
}

/// The changes of a UMR. A field that is `None` does not change.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Umr {
    /// The key must be free.
    pub check_free: bool,
    /// The key must belong to this queue pair or to any.
    pub check_qpn: bool,
    /// Low byte of the key.
    pub tag: Option<u8>,
    /// Queue pair that may use the key, or [`ANY_QPN`].
    pub qpn: Option<Qpn>,
    /// Whether the key is free: invalid until it is bound again.
    pub free: Option<bool>,
    /// Address of the first byte.
    pub start: Option<Iova>,
    /// Length in bytes.
    pub bytes: Option<u64>,
    /// Rights that change (bits of [`mask::RIGHTS`]), and those of them that are granted.
    pub rights: (u64, u64),
    /// The memory that the key stands for.
    pub translation: Option<Translation>,
}

/// The bit of [`mask`] and the bit of the access flags of each right.
const RIGHTS: [(u64, u8); 4] = [
    (mask::LOCAL_WRITE, MKEY_LOCAL_WRITE),
    (mask::REMOTE_READ, MKEY_REMOTE_READ),
    (mask::REMOTE_WRITE, MKEY_REMOTE_WRITE),
    (mask::ATOMIC, MKEY_ATOMIC),
];

impl Umr {
    /// Invalidates a key, as libmlx5 posts `IBV_WR_LOCAL_INV`.
    pub fn invalidate() -> Self {
        Self {
            check_qpn: true,
            tag: Some(0),
            qpn: Some(ANY_QPN),
            free: Some(true),
            ..Self::default()
        }
    }

    /// Parses the segments that follow the control segment of a whole WQE.
    ///
    /// # Errors
    /// [`WqeError::Ds`] and [`WqeError::Segment`].
    pub fn parse(wqe: &[u8]) -> Result<Self, WqeError> {
        let short = WqeError::Ds(wqe.len() / DS_BYTES);
        let (header, rest) = wqe.split_at_checked(UMR_HEADER_BYTES).ok_or(short)?;
        let ctrl: UmrCtrlSeg = bytemuck::pod_read_unaligned(&header[16..64]);
        let mkey: MkeySeg = bytemuck::pod_read_unaligned(&header[64..128]);
        let (mask, flags) = (ctrl.mkey_mask.get(), ctrl.flags);
        let units = usize::from(ctrl.klm_octowords.get());
        let odd = flags & !UMR_KNOWN_FLAGS != 0
            || flags & UMR_INLINE == 0
            || mask & !mask::KNOWN != 0
            || ctrl.translation_offset.get() != 0;
        if odd {
            return Err(WqeError::Segment(16));
        }
        let translation = match units {
            0 => None,
            _ => {
                let bytes = rest.get(..units * DS_BYTES).ok_or(WqeError::Segment(16))?;
                Some(Translation::parse(bytes)?)
            }
        };
        let given = |bit: u64| mask & bit != 0;
        let access = |so_far: u64, (bit, flag): (u64, u8)| {
            so_far | if mkey.access_flags & flag != 0 { bit & mask } else { 0 }
        };
        let qpn_mkey = mkey.qpn_mkey.get();
        Ok(Self {
            check_free: flags & UMR_CHECK_FREE != 0,
            check_qpn: flags & UMR_CHECK_QPN != 0,
            tag: given(mask::MKEY).then_some(qpn_mkey as u8),
            qpn: given(mask::QPN).then_some(Qpn(qpn_mkey >> 8)),
            free: given(mask::FREE).then_some(mkey.free & MKEY_FREE != 0),
            start: given(mask::START_ADDR).then_some(Iova(mkey.start_addr.get())),
            bytes: given(mask::LEN).then_some(mkey.len.get()),
            rights: (mask & mask::RIGHTS, RIGHTS.into_iter().fold(0, access)),
            translation,
        })
    }

    /// Bytes of the whole WQE.
    pub fn wqe_bytes(&self) -> usize {
        let units = self.translation.as_ref().map_or(0, Translation::octowords);
        UMR_HEADER_BYTES + (units * DS_BYTES).next_multiple_of(WQEBB_BYTES)
    }

    /// Writes a WQE of [`Umr::wqe_bytes`] bytes that makes a queue pair change the key.
    ///
    /// # Errors
    /// [`WqeError::Ds`] for a translation that is too long; [`WqeError::Short`] for a buffer that
    /// is too short.
    pub fn emit(
        &self,
        key: u32,
        flags: Flags,
        (index, qpn): (u16, Qpn),
        into: &mut [u8],
    ) -> Result<(), WqeError> {
        let all = self.wqe_bytes();
        let (ds, have) = (all / DS_BYTES, into.len());
        if ds > MAX_DS {
            return Err(WqeError::Ds(ds));
        }
        let wqe = into.get_mut(..all).ok_or(WqeError::Short { have, need: all })?;
        wqe.fill(0);
        let ctrl = CtrlSeg {
            opmod_idx_opcode: (u32::from(index) << 8 | Opcode::Umr as u32).into(),
            qpn_ds: (qpn.0 << 8 | ds as u32).into(),
            fm_ce_se: flags.bits(),
            imm: key.into(),
            ..CtrlSeg::zeroed()
        };
        wqe[..16].copy_from_slice(bytemuck::bytes_of(&ctrl));
        self.emit_segments(wqe);
        Ok(())
    }

    fn emit_segments(&self, wqe: &mut [u8]) {
        let all = self.wqe_bytes();
        let bit = |set: bool, bit: u8| if set { bit } else { 0 };
        let masked = |set: bool, bit: u64| if set { bit } else { 0 };
        let ctrl = UmrCtrlSeg {
            flags: UMR_INLINE
                | bit(self.check_free, UMR_CHECK_FREE)
                | bit(self.check_qpn, UMR_CHECK_QPN),
            klm_octowords: (((all - UMR_HEADER_BYTES) / DS_BYTES) as u16).into(),
            mkey_mask: (masked(self.tag.is_some(), mask::MKEY)
                | masked(self.qpn.is_some(), mask::QPN)
                | masked(self.free.is_some(), mask::FREE)
                | masked(self.start.is_some(), mask::START_ADDR)
                | masked(self.bytes.is_some(), mask::LEN)
                | self.rights.0)
                .into(),
            ..UmrCtrlSeg::zeroed()
        };
        let flag = |so_far: u8, (bit, flag): (u64, u8)| {
            so_far | if self.rights.1 & bit != 0 { flag } else { 0 }
        };
        let (qpn, tag) = (self.qpn.unwrap_or(ANY_QPN).0, self.tag.unwrap_or(0));
        let mkey = MkeySeg {
            free: if self.free == Some(true) { MKEY_FREE } else { 0 },
            access_flags: RIGHTS.into_iter().fold(0, flag),
            qpn_mkey: (qpn << 8 | u32::from(tag)).into(),
            start_addr: self.start.map_or(0, |addr| addr.0).into(),
            len: self.bytes.unwrap_or(0).into(),
            ..MkeySeg::zeroed()
        };
        wqe[16..64].copy_from_slice(bytemuck::bytes_of(&ctrl));
        wqe[64..128].copy_from_slice(bytemuck::bytes_of(&mkey));
        if let Some(translation) = &self.translation {
            translation.emit(&mut wqe[UMR_HEADER_BYTES..all]);
        }
    }
}

#[cfg(test)]
#[path = "umr_tests.rs"]
mod tests;
