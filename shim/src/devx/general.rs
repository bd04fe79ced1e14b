//! `CREATE_GENERAL_OBJECT`: queue pair numbers that are set aside (`mlx5dv_reserved_qpn_alloc`), what an
//! address has of a queue pair (`mlx5dv_map_ah_to_qp`), and elements of a schedule (`mlx5dv_sched_*`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bellpush_soft_nic::{Bandwidth, ReservedQpns, SchedElement};
use bellpush_wire::Qpn;

use super::prm::{Mailbox, general};
use super::{at_least, named};
use crate::commands::Command;
use crate::commands::memory::path;
use crate::context::{Object, Objects};
use crate::error::Refusal;

/// `MLX5_OBJ_TYPE_RESERVED_QPN`.
const RESERVED_QPN: u64 = 0x2c;
/// `MLX5_OBJ_TYPE_AV_QP_MAPPING`.
const AV_QP_MAPPING: u64 = 0x3a;
/// `MLX5_OBJ_TYPE_SCHEDULING_ELEMENT`.
const SCHEDULING_ELEMENT: u64 = 0x26;
/// `general_obj_types`: a bit for each.
pub const TYPES: u64 = 1 << RESERVED_QPN | 1 << AV_QP_MAPPING | 1 << SCHEDULING_ELEMENT;
/// `MLX5_SCHED_HIERARCHY_NIC`.
const NIC: u64 = 3;
/// `MLX5_SCHED_ELEM_TYPE_TSAR` and `_QUEUE_GROUP`.
const TSAR: u64 = 0;
const QUEUE_GROUP: u64 = 4;
/// `MLX5DV_SCHED_ELEM_ATTR_FLAGS_BW_SHARE` and `_MAX_AVG_BW`.
const SHARE: u64 = 1 << 0;
const MAX: u64 = 1 << 1;
/// `log_reserved_qpn_granularity`: numbers that are set aside at a time.
pub const LOG_QPNS: u8 = 6;

/// A general object.
pub enum DevxGeneral {
    /// Queue pair numbers that no queue pair gets.
    Qpns(#[allow(dead_code)] ReservedQpns),
    /// An address whose congestion is to be controlled as a queue pair's is. There is one way here,
    /// which is everybody's.
    Mapping,
    /// An element of a schedule, by its number, and what it is.
    Element(u32, u64, Arc<SchedElement>),
}

impl DevxGeneral {
    /// Whether something goes by it.
    pub fn is_used(&self) -> bool {
        matches!(self, Self::Element(.., element) if element.is_used())
    }
}

/// Creates one. It is named by its first number, or by none.
pub fn create(c: &mut Command<'_>, cmd: &Mailbox) -> Result<(Object, u32), Refusal> {
    let (object, number) = match cmd.get(general::OBJ_TYPE) {
        RESERVED_QPN => reserve(c, cmd)?,
        AV_QP_MAPPING => (map(c, cmd)?, 0),
        SCHEDULING_ELEMENT => schedule(c, cmd)?,
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

/// The element of that type with that number; none for 0.
fn element(
    objects: &Objects,
    kind: u64,
    number: u32,
) -> Result<Option<Arc<SchedElement>>, Refusal> {
    let what = if kind == TSAR { "scheduling node" } else { "group of queues" };
    let find = |object: &Object| match object {
        Object::DevxGeneral(DevxGeneral::Element(id, is, element)) => {
            (*id == number && *is == kind).then(|| element.clone())
        }
        _ => None,
    };
    if number == 0 { Ok(None) } else { named(objects, what, number, find).map(Some) }
}

/// The group that a queue pair goes by.
pub fn group(objects: &Objects, number: u32) -> Result<Option<Arc<SchedElement>>, Refusal> {
    element(objects, QUEUE_GROUP, number)
}

/// What a command gives an element, which has `now`.
fn bandwidth(cmd: &Mailbox, now: Bandwidth) -> Result<Bandwidth, Refusal> {
    at_least(cmd, general::SCHED_ELEM_BYTES)?;
    let hierarchy = cmd.get(general::SCHEDULING_HIERARCHY);
    if hierarchy != NIC {
        let (what, must) = ("scheduling_hierarchy", "3 (the NIC's)");
        return Err(Refusal::Value { what, value: hierarchy, must });
    }
    let given = cmd.get(general::MODIFY_FIELD_SELECT);
    if given & !(SHARE | MAX) != 0 {
        return Err(Refusal::Unsupported("an attribute of a schedule but share and rate"));
    }
    let or = |bit, field, now| if given & bit != 0 { cmd.word(field) } else { now };
    Ok(Bandwidth {
        max_mbps: or(MAX, general::MAX_AVERAGE_BW, now.max_mbps),
        share: or(SHARE, general::BW_SHARE, now.share),
    })
}

fn schedule(c: &Command<'_>, cmd: &Mailbox) -> Result<(DevxGeneral, u32), Refusal> {
    static LAST: AtomicU32 = AtomicU32::new(0);
    let bandwidth = bandwidth(cmd, Bandwidth::default())?;
    let kind = cmd.get(general::ELEMENT_TYPE);
    let parent = element(c.objects, TSAR, cmd.word(general::PARENT_ELEMENT_ID))?;
    match (kind, &parent) {
        (TSAR, _) if cmd.get(general::TSAR_TYPE) != 0 => {
            return Err(Refusal::Unsupported("a scheduling node of a type but DWRR"));
        }
        (TSAR, _) | (QUEUE_GROUP, Some(_)) => {}
        (QUEUE_GROUP, None) => {
            let (what, must) = ("parent of a group of queues", "a scheduling node");
            return Err(Refusal::Value { what, value: 0, must });
        }
        _ => return Err(Refusal::Unsupported("an element of a schedule of that type")),
    }
    let made = SchedElement::new(parent.as_ref(), bandwidth)?;
    let taken = |id| {
        let has = |object: &Object| match object {
            Object::DevxGeneral(DevxGeneral::Element(other, ..)) => *other == id,
            _ => false,
        };
        id == 0 || c.objects.all().any(has)
    };
    let number = loop {
        let next = LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1) & 0xff_ffff;
        if !taken(next) {
            break next;
        }
    };
    Ok((DevxGeneral::Element(number, kind, made), number))
}

/// `MODIFY_GENERAL_OBJECT`, of an element of a schedule.
pub fn modify(c: &mut Command<'_>, handle: u32, cmd: &Mailbox) -> Result<(), Refusal> {
    let number = cmd.word(general::OBJ_ID);
    match c.objects.get(handle) {
        Some(Object::DevxGeneral(DevxGeneral::Element(id, kind, element))) => {
            if *id != number || cmd.get(general::OBJ_TYPE) != SCHEDULING_ELEMENT {
                return Err(Refusal::Number { what: "element of that handle", number });
            }
            let bandwidth = bandwidth(cmd, element.bandwidth())?;
            if cmd.get(general::ELEMENT_TYPE) != *kind {
                let (value, must) = (cmd.get(general::ELEMENT_TYPE), "the one that it has");
                return Err(Refusal::Value { what: "element's type", value, must });
            }
            element.set(bandwidth);
            Ok(())
        }
        _ => Err(Refusal::Handle { what: "element of a schedule", handle }),
    }
}
