//! `CREATE_GENERAL_OBJECT`: queue pair numbers that are set aside (`mlx5dv_reserved_qpn_alloc`), and
//! what an address has of a queue pair (`mlx5dv_map_ah_to_qp`).

use bellpush_soft_nic::ReservedQpns;
use bellpush_wire::Qpn;

use super::at_least;
use super::prm::{Mailbox, general};
use crate::commands::Command;
use crate::commands::memory::path;
use crate::context::Object;
use crate::error::Refusal;

/// `MLX5_OBJ_TYPE_RESERVED_QPN`.
const RESERVED_QPN: u64 = 0x2c;
/// `MLX5_OBJ_TYPE_AV_QP_MAPPING`.
const AV_QP_MAPPING: u64 = 0x3a;
/// `general_obj_types`: a bit for each.
pub const TYPES: u64 = 1 << RESERVED_QPN | 1 << AV_QP_MAPPING;
/// `log_reserved_qpn_granularity`: numbers that are set aside at a time.
pub const LOG_QPNS: u8 = 6;

/// A general object.
pub enum DevxGeneral {
    /// Queue pair numbers that no queue pair gets.
    Qpns(#[allow(dead_code)] ReservedQpns),
    /// An address whose congestion is to be controlled as a queue pair's is. There is one way here,
    /// which is everybody's.
    Mapping,
}

/// Creates one. It is named by its first number, or by none.
pub fn create(c: &mut Command<'_>, cmd: &Mailbox) -> Result<(Object, u32), Refusal> {
    let (object, number) = match cmd.get(general::OBJ_TYPE) {
        RESERVED_QPN => reserve(c, cmd)?,
        AV_QP_MAPPING => (map(c, cmd)?, 0),
        _ => return Err(Refusal::Unsupported("a general object of that type")),
    };
    Ok((Object::DevxGeneral(object), number))
}

fn reserve(c: &Command<'_>, cmd: &Mailbox) -> Result<(DevxGeneral, u32), Refusal> {
    at_least(cmd, general::RESERVED_QPN_BYTES)?;
    let log = cmd.word(general::LOG_OBJ_RANGE) as u8;
    if log < LOG_QPNS {
        let (what, must) = ("log_obj_range", "at least log_reserved_qpn_granularity");
        return Err(Refusal::Value { what, value: log.into(), must });
    }
    let range = c.context.device.nic.reserve_qpns(log)?;
    let first = range.first().0;
    Ok((DevxGeneral::Qpns(range), first))
}

fn map(c: &Command<'_>, cmd: &Mailbox) -> Result<DevxGeneral, Refusal> {
    at_least(cmd, general::AV_QP_MAPPING_BYTES)?;
    let number = cmd.word(general::QPN);
    if !c.context.device.nic.has_qp(Qpn(number)) {
        return Err(Refusal::Number { what: "queue pair", number });
    }
    path(
        cmd.gid(general::RGID_OR_RIP),
        (0, 0, 0),
        (1, cmd.word(general::SRC_ADDR_INDEX) as u8, 1),
    )?;
    Ok(DevxGeneral::Mapping)
}
