//! DEVX: commands of the device that a program words itself (mlx5 PRM, "Command Reference"), as
//! libmlx5's `mlx5dv_devx_*` hand them on. `docs/devx.md` lists which there are, with the fields
//! that count.
//!
//! A command that is understood and refused is answered as firmware answers: `EREMOTEIO`, with
//! the status and a syndrome in the answer's mailbox. The syndrome is the errno of the reason,
//! which `--verbose` prints in words.
//!
//! Objects that are made here lie in the same table as those of verbs, and each names the other's
//! by its number: a queue pair may complete to a CQ of `ibv_create_cq`, and its PD is one of
//! `ibv_alloc_pd`.

mod caps;
mod cq;
mod events;
mod general;
mod mkey;
mod moves;
mod prm;
mod qp;
mod rmp;
mod umem;

use std::sync::Arc;

use crate::abi::ids::attr;
use crate::commands::{Command, Undo, word};
use crate::context::{Object, Objects};
use crate::error::Refusal;
use bellpush_nic::NicError;
use prm::{Mailbox, header, op};

pub use cq::DevxCq;
pub use events::{Subscriptions, create_channel, subscribe};
pub use general::DevxGeneral;
pub use mkey::{DevxMkey, Key};
pub use qp::DevxQp;
pub use rmp::DevxRmp;
pub use umem::{Umem, deregister as umem_dereg, register as umem_reg};

/// Longest mailbox: as the kernel's, what an attribute's length can say. A key over parts has 16 bytes for each.
const MAX_MAILBOX: usize = u16::MAX as usize;
/// The one event queue: all completions come from one engine.
const EQN: u32 = 0;

/// `MLX5_CMD_STAT_*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Status {
    BadOp = 2,
    BadParam = 3,
    BadRes = 5,
    BusyRes = 6,
    NoResources = 0xf,
    BadInputLength = 0x50,
}

fn status(refusal: &Refusal) -> Status {
    match refusal {
        Refusal::Command(_) | Refusal::Unsupported(_) => Status::BadOp,
        Refusal::Handle { .. } | Refusal::Number { .. } => Status::BadRes,
        Refusal::Busy(_) => Status::BusyRes,
        Refusal::Room(_) | Refusal::Nic(NicError::Full { .. }) => Status::NoResources,
        Refusal::Mailbox { .. } => Status::BadInputLength,
        _ => Status::BadParam,
    }
}

fn input(c: &Command<'_>, id: u16) -> Result<Mailbox, Refusal> {
    let mailbox = Mailbox::of(c.request.bytes(id, MAX_MAILBOX)?);
    at_least(&mailbox, header::OUT_BYTES)?;
    Ok(mailbox)
}

/// Refuses a mailbox that is shorter than its struct.
fn at_least(mailbox: &Mailbox, need: usize) -> Result<(), Refusal> {
    match mailbox.len() {
        have if have < need => Err(Refusal::Mailbox { have, need }),
        _ => Ok(()),
    }
}

/// Puts what a command came to into its answer's mailbox.
fn answer(
    c: &mut Command<'_>,
    id: u16,
    carried_out: Result<Mailbox, Refusal>,
) -> Result<(), Refusal> {
    match carried_out {
        Ok(out) => {
            c.request.put(id, out.bytes());
            Ok(())
        }
        Err(why) => {
            let mut out = Mailbox::zeroed(header::OUT_BYTES);
            out.set(header::STATUS, status(&why) as u64);
            out.set(header::SYNDROME, why.errno() as u64);
            c.request.put(id, out.bytes());
            Err(Refusal::Firmware(Box::new(why)))
        }
    }
}

/// An answer that names an object.
fn number(value: u32) -> Mailbox {
    let mut out = Mailbox::zeroed(header::OUT_BYTES);
    out.set(header::NUMBER, value.into());
    out
}

/// `MLX5_IB_METHOD_DEVX_OTHER`: what needs no object.
pub fn other(c: &mut Command<'_>) -> Result<(), Refusal> {
    let cmd = input(c, attr::DEVX_OTHER_CMD_IN)?;
    let carried_out = match cmd.get(header::OPCODE) as u16 {
        op::QUERY_HCA_CAP => caps::query(c, &cmd),
        op::QUERY_ROCE_ADDRESS => caps::query_roce_address(c, &cmd),
        // One port, which is bonded with no other: all zeros.
        op::QUERY_LAG => Ok(Mailbox::zeroed(header::OUT_BYTES)),
        code => Err(Refusal::Command(code.into())),
    };
    answer(c, attr::DEVX_OTHER_CMD_OUT, carried_out)
}

/// `MLX5_IB_METHOD_DEVX_OBJ_CREATE`.
pub fn create(c: &mut Command<'_>) -> Result<(), Refusal> {
    let cmd = input(c, attr::DEVX_OBJ_CREATE_CMD_IN)?;
    let made = match cmd.get(header::OPCODE) as u16 {
        op::CREATE_CQ => cq::create(c, &cmd),
        op::CREATE_QP => qp::create(c, &cmd),
        op::CREATE_MKEY => mkey::create(c, &cmd),
        op::CREATE_DCT => qp::create_target(c, &cmd),
        op::CREATE_RMP => rmp::create(c, &cmd),
        op::CREATE_XRQ => rmp::create_matching(c, &cmd),
        op::CREATE_GENERAL_OBJECT => general::create(c, &cmd),
        code => Err(Refusal::Command(code.into())),
    };
    let out = made.map(|(object, named)| {
        let handle = c.objects.add(object);
        c.undo = Some(Undo::Object(handle));
        c.request.put_handle(attr::DEVX_OBJ_CREATE_HANDLE, handle.into());
        number(named)
    });
    answer(c, attr::DEVX_OBJ_CREATE_CMD_OUT, out)
}

/// `MLX5_IB_METHOD_DEVX_OBJ_MODIFY`, of a queue pair made here or by verbs, or of an element of a schedule.
pub fn modify(c: &mut Command<'_>) -> Result<(), Refusal> {
    let cmd = input(c, attr::DEVX_OBJ_MODIFY_CMD_IN)?;
    let handle = c.request.handle(attr::DEVX_OBJ_HANDLE)?;
    let done = match cmd.get(header::OPCODE) as u16 {
        op::MODIFY_GENERAL_OBJECT => general::modify(c, handle, &cmd),
        _ => qp::modify(c, handle, &cmd),
    };
    let done = done.map(|()| Mailbox::zeroed(header::OUT_BYTES));
    answer(c, attr::DEVX_OBJ_MODIFY_CMD_OUT, done)
}

/// `MLX5_IB_METHOD_DEVX_OBJ_QUERY`, likewise.
pub fn query(c: &mut Command<'_>) -> Result<(), Refusal> {
    let cmd = input(c, attr::DEVX_OBJ_QUERY_CMD_IN)?;
    let handle = c.request.handle(attr::DEVX_OBJ_HANDLE)?;
    let told = match cmd.get(header::OPCODE) as u16 {
        op::QUERY_QP => qp::query(c, handle, &cmd),
        code => Err(Refusal::Command(code.into())),
    };
    answer(c, attr::DEVX_OBJ_QUERY_CMD_OUT, told)
}

/// `MLX5_IB_METHOD_DEVX_OBJ_DESTROY`.
pub fn destroy(c: &mut Command<'_>) -> Result<(), Refusal> {
    let handle = c.request.handle(attr::DEVX_OBJ_HANDLE)?;
    match c.objects.get(handle) {
        Some(
            Object::DevxCq(_)
            | Object::DevxQp(_)
            | Object::DevxMkey(_)
            | Object::DevxRmp(_)
            | Object::DevxGeneral(_),
        ) => c.context.destroy(c.objects, handle),
        _ => Err(Refusal::Handle { what: "DEVX object", handle }),
    }
}

/// `MLX5_IB_METHOD_DEVX_QUERY_EQN`.
pub fn query_eqn(c: &mut Command<'_>) -> Result<(), Refusal> {
    let vector = c.request.number(attr::DEVX_QUERY_EQN_USER_VEC)?;
    if vector != 0 {
        return Err(Refusal::Value { what: "completion vector", value: vector, must: "0" });
    }
    c.request.put(attr::DEVX_QUERY_EQN_DEV_EQN, &word(EQN));
    Ok(())
}

/// `MLX5_IB_METHOD_DEVX_QUERY_UAR`: UARs are known to the device by the same index.
pub fn query_uar(c: &mut Command<'_>) -> Result<(), Refusal> {
    let index = c.request.word(attr::DEVX_QUERY_UAR_USER_IDX)?;
    if !c.objects.uars.contains_key(&index) {
        return Err(Refusal::Handle { what: "UAR page", handle: index });
    }
    c.request.put(attr::DEVX_QUERY_UAR_DEV_IDX, &word(index));
    Ok(())
}

/// The umem that a command names by its number, which is its handle.
fn umem(objects: &Objects, id: u32) -> Result<Arc<Umem>, Refusal> {
    match objects.get(id) {
        Some(Object::Umem(umem)) => Ok(umem.clone()),
        _ => Err(Refusal::Number { what: "umem", number: id }),
    }
}

/// Finds an object by the number that the device gave it.
fn named<T>(
    objects: &Objects,
    what: &'static str,
    number: u32,
    find: impl Fn(&Object) -> Option<T>,
) -> Result<T, Refusal> {
    objects.all().find_map(find).ok_or(Refusal::Number { what, number })
}
