//! `CREATE_MKEY`: a key over a umem, over parts of regions, or one that UMRs give its meaning (`mlx5dv_create_mkey`).

use std::sync::Arc;

use bellpush_nic::{Access, Mr};
use bellpush_soft_nic::{MkeyAttr, PartsAttr};
use bellpush_wire::umr::Part;
use bellpush_wire::{Iova, Lkey, Rkey};

use super::prm::{Mailbox, mkey};
use super::{Umem, at_least, named};
use crate::commands::Command;
use crate::commands::memory::PdObj;
use crate::context::Object;
use crate::error::Refusal;

/// `MLX5_MKC_ACCESS_MODE_MTT`: a table of pages; a umem is one.
const MTT: u64 = 1;
/// `MLX5_MKC_ACCESS_MODE_KLMS`: a list of parts of regions.
const KLMS: u64 = 2;
/// `MLX5_MKC_ACCESS_MODE_KSM`: the same, of parts of one size.
const KSM: u64 = 3;
/// Logarithm of that size: from a page to what a part's length holds.
const LOG_ENTITY_SIZES: std::ops::RangeInclusive<u64> = 12..=31;
/// Most parts of a key, as of one for UMR.
const MAX_PARTS: u64 = 1 << 16;
/// `qpn` of a key that all queue pairs of the domain may use.
const ANY_QP: u64 = 0xff_ffff;

/// A key.
pub struct DevxMkey {
    /// What the NIC has.
    pub key: Key,
    _pd: Arc<PdObj>,
    _umem: Option<Arc<Umem>>,
}

/// A key of the NIC's.
pub enum Key {
    /// A region.
    Region(Mr),
    /// One that stands for parts of regions.
    Parts(Rkey),
}

/// Creates a key. Its low byte is the program's, the rest is answered.
pub fn create(c: &mut Command<'_>, cmd: &Mailbox) -> Result<(Object, u32), Refusal> {
    at_least(cmd, mkey::IN_BYTES)?;
    let mode = cmd.get(mkey::ACCESS_MODE_4_2) << 2 | cmd.get(mkey::ACCESS_MODE_1_0);
    if cmd.flag(mkey::BSF_EN) {
        return Err(Refusal::Unsupported("an mkey with signatures or encryption"));
    }
    match (mode, cmd.flag(mkey::FREE), cmd.flag(mkey::UMR_EN)) {
        (MTT | KSM, false, false) | (KLMS, true, true) => {}
        _ => {
            let what = "an mkey that is neither MTT over a umem, KSM, nor free KLMS for UMR";
            return Err(Refusal::Unsupported(what));
        }
    }
    if !cmd.flag(mkey::LR) {
        let must = "with local read";
        return Err(Refusal::Value { what: "mkey's access", value: 0, must });
    }
    if cmd.get(mkey::QPN) != ANY_QP {
        let value = cmd.get(mkey::QPN);
        return Err(Refusal::Value { what: "mkey's qpn", value, must: "0xffffff (any)" });
    }
    let number = cmd.word(mkey::PD);
    let pd = named(c.objects, "protection domain", number, |object| match object {
        Object::Pd(pd) if pd.pd.number() == number => Some(pd.clone()),
        _ => None,
    })?;
    match mode {
        KLMS => return create_free(c, cmd, pd),
        KSM => return create_of_parts(c, cmd, pd),
        _ => {}
    }
    let umem = super::umem(c.objects, cmd.word(mkey::UMEM_ID))?;
    // The pages are the umem's from its first on: addresses below them are none of its.
    let (offset, bytes) = (cmd.get(mkey::UMEM_OFFSET), cmd.get(mkey::LEN));
    if offset != 0 || cmd.flag(mkey::LENGTH64) || bytes != umem.bytes() {
        let must = "the umem's, from offset 0";
        return Err(Refusal::Value { what: "mkey's length", value: bytes, must });
    }
    let access = access(cmd)?;
    if access.local_write && !umem.writable {
        let must = "no more than the umem's";
        return Err(Refusal::Value { what: "mkey's access", value: 1, must });
    }
    let nic = &c.context.device.nic;
    let iova = Iova(cmd.get(mkey::START_ADDR));
    let low = cmd.get(mkey::MKEY_7_0) as u8;
    let mr = nic.register_with_tag(&pd.pd, umem.mem.clone(), (iova, access), low)?;
    let index = mr.lkey.0 >> 8;
    let key = Key::Region(mr);
    Ok((Object::DevxMkey(DevxMkey { key, _pd: pd, _umem: Some(umem) }), index))
}

fn access(cmd: &Mailbox) -> Result<Access, Refusal> {
    let access = Access {
        local_write: cmd.flag(mkey::LW),
        remote_write: cmd.flag(mkey::RW),
        remote_read: cmd.flag(mkey::RR),
        remote_atomic: cmd.flag(mkey::A),
        relaxed_order: cmd.flag(mkey::RELAXED_WRITE),
    };
    if !access.local_write && (access.remote_write || access.remote_atomic) {
        let must = "with local write, if a peer may write";
        return Err(Refusal::Value { what: "mkey's access", value: 0, must });
    }
    Ok(access)
}

/// A key that stands for parts of regions, all of one size but for the last. Entries behind its length are not looked
/// at; whether the others lie in regions is seen at each access.
fn create_of_parts(
    c: &mut Command<'_>,
    cmd: &Mailbox,
    pd: Arc<PdObj>,
) -> Result<(Object, u32), Refusal> {
    let entries = u64::from(cmd.word(mkey::TRANSLATIONS_OCTWORD_ACTUAL_SIZE));
    if !(1..=MAX_PARTS.min(cmd.get(mkey::TRANSLATIONS_OCTWORD_SIZE))).contains(&entries) {
        let must = "1 to 65536, and no more than translations_octword_size";
        return Err(Refusal::Value { what: "mkey's entries", value: entries, must });
    }
    at_least(cmd, mkey::IN_BYTES + entries as usize * mkey::KLM_BYTES)?;
    let log = cmd.get(mkey::LOG_ENTITY_SIZE);
    if !LOG_ENTITY_SIZES.contains(&log) {
        return Err(Refusal::Value { what: "log_entity_size", value: log, must: "12 to 31" });
    }
    let bytes = cmd.get(mkey::LEN);
    if cmd.flag(mkey::LENGTH64) || bytes == 0 || bytes > entries << log {
        let must = "1 or more, and no more than its entries'";
        return Err(Refusal::Value { what: "mkey's length", value: bytes, must });
    }
    let index = cmd.get(mkey::INPUT_MKEY_INDEX);
    if index != 0 {
        return Err(Refusal::Value { what: "input_mkey_index", value: index, must: "0" });
    }
    let part = |n: u64| {
        let at = mkey::IN_BYTES + n as usize * mkey::KLM_BYTES;
        Part {
            addr: Iova(cmd.get(mkey::KLM_ADDRESS.within(at))),
            lkey: Lkey(cmd.word(mkey::KLM_MKEY.within(at))),
            bytes: (bytes - (n << log)).min(1 << log) as u32,
            stride: 0,
        }
    };
    let attr = PartsAttr {
        iova: Iova(cmd.get(mkey::START_ADDR)),
        access: access(cmd)?,
        tag: Some(cmd.get(mkey::MKEY_7_0) as u8),
        parts: (0..bytes.div_ceil(1 << log)).map(part).collect(),
    };
    let key = c.context.device.nic.create_parts(&pd.pd, attr)?;
    let index = key.0 >> 8;
    Ok((Object::DevxMkey(DevxMkey { key: Key::Parts(key), _pd: pd, _umem: None }), index))
}

/// A key that stands for nothing until a UMR says for what.
fn create_free(
    c: &mut Command<'_>,
    cmd: &Mailbox,
    pd: Arc<PdObj>,
) -> Result<(Object, u32), Refusal> {
    let attr = MkeyAttr {
        octowords: cmd.word(mkey::TRANSLATIONS_OCTWORD_SIZE) as usize,
        remote_invalidate: cmd.flag(mkey::EN_RINVAL),
        tag: Some(cmd.get(mkey::MKEY_7_0) as u8),
    };
    let key = c.context.device.nic.create_mkey(&pd.pd, attr)?;
    let index = key.0 >> 8;
    Ok((Object::DevxMkey(DevxMkey { key: Key::Parts(key), _pd: pd, _umem: None }), index))
}
