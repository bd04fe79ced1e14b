//! The commands: which object's method, and which command of those that once went by `write`, is
//! carried out by what.

pub mod cq;
pub mod dct;
pub mod device;
pub mod dm;
pub mod memory;
pub mod odp;
pub mod qp;
pub mod srq;
pub mod xrcd;

use std::os::fd::RawFd;

use crate::abi::ids::{UHW_IN, UHW_OUT, attr, command, method, object};
use crate::context::{Context, Objects};
use crate::devx;
use crate::error::Refusal;
use crate::process::Process;
use crate::request::Request;

/// A command on its way.
pub struct Command<'a> {
    /// The process.
    pub process: &'static Process,
    /// The open device.
    pub context: &'a Context,
    /// Its objects.
    pub objects: &'a mut Objects,
    /// What was asked, and what is answered.
    pub request: Request,
    /// The program's descriptor of the device.
    pub fd: RawFd,
    /// What is to be taken back when the answer cannot be given.
    pub undo: Option<Undo>,
}

/// What a command has made.
pub enum Undo {
    /// An object.
    Object(u32),
    /// A descriptor.
    Descriptor(RawFd),
}

type Handler = fn(&mut Command<'_>) -> Result<(), Refusal>;

/// Finds what a command is, checks that all of its attributes are known, and carries it out.
pub fn dispatch(command: &mut Command<'_>) -> Result<(), Refusal> {
    let (object, method) = (command.request.object, command.request.method);
    let (known, handler) = find(object, method).ok_or(Refusal::Method { object, method })?;
    command.request.only(known)?;
    let opens = object == object::DEVICE;
    if !command.objects.is_open && !opens {
        return Err(Refusal::Unsupported("an object of a device without a context"));
    }
    handler(command)
}

const DESTROY: &[u16] = &[attr::DESTROY_HANDLE];
const DESTROY_ANSWERED: &[u16] = &[attr::DESTROY_HANDLE, attr::DESTROY_RESP];

#[rustfmt::skip]
fn find(object: u16, method: u16) -> Option<(&'static [u16], Handler)> {
    use attr::*;
    Some(match (object, method) {
        (object::DEVICE, method::INVOKE_WRITE) => (
            &[CORE_IN, CORE_OUT, WRITE_CMD, UHW_IN, UHW_OUT], invoke_write),
        (object::DEVICE, method::GET_CONTEXT) => (
            &[GET_CONTEXT_NUM_COMP_VECTORS, GET_CONTEXT_CORE_SUPPORT, UHW_IN, UHW_OUT],
            device::get_context),
        (object::DEVICE, method::QUERY_CONTEXT) => (
            &[GET_CONTEXT_NUM_COMP_VECTORS, GET_CONTEXT_CORE_SUPPORT, QUERY_CONTEXT_RESP_UCTX],
            device::query_context),
        (object::DEVICE, method::QUERY_PORT) => (
            &[QUERY_PORT_PORT_NUM, QUERY_PORT_RESP], device::query_port),
        (object::DEVICE, method::QUERY_SWITCH_PORT) => (
            &[QUERY_SWITCH_PORT_NUM, QUERY_SWITCH_PORT_RESP], device::query_switch_port),
        (object::DEVICE, method::QUERY_GID_TABLE) => (
            &[GID_TABLE_ENTRY_SIZE, GID_TABLE_FLAGS, GID_TABLE_RESP_ENTRIES,
              GID_TABLE_RESP_NUM_ENTRIES], device::query_gid_table),
        (object::DEVICE, method::QUERY_GID_ENTRY) => (
            &[GID_ENTRY_PORT, GID_ENTRY_GID_INDEX, GID_ENTRY_FLAGS, GID_ENTRY_RESP_ENTRY],
            device::query_gid_entry),
        (object::ASYNC_EVENT, method::ASYNC_EVENT_ALLOC) => (
            &[ASYNC_EVENT_FD_HANDLE], device::async_events),
        (object::UAR, method::UAR_ALLOC) => (
            &[UAR_ALLOC_HANDLE, UAR_ALLOC_TYPE, UAR_ALLOC_MMAP_OFFSET, UAR_ALLOC_MMAP_LENGTH,
              UAR_ALLOC_PAGE_ID], device::alloc_uar),
        (object::UAR, method::UAR_DESTROY) => (&[UAR_DESTROY_HANDLE], device::destroy_uar),
        (object::PD, method::PD_DESTROY) => (DESTROY, memory::destroy_pd),
        (object::PD, method::PD_QUERY) => (
            &[PD_QUERY_HANDLE, PD_QUERY_RESP_PDN], memory::query_pd),
        (object::AH, method::AH_DESTROY) => (DESTROY, memory::destroy_ah),
        (object::MW, method::MW_DESTROY) => (DESTROY, memory::destroy_mw),
        (object::XRCD, method::XRCD_DESTROY) => (DESTROY, xrcd::close),
        (object::MR, method::MR_DESTROY) => (DESTROY, memory::destroy_mr),
        (object::MR, method::QUERY_MR) => (
            &[QUERY_MR_HANDLE, QUERY_MR_RESP_LKEY, QUERY_MR_RESP_RKEY, QUERY_MR_RESP_LENGTH,
              QUERY_MR_RESP_IOVA], memory::query_mr),
        (object::MR, method::ADVISE_MR) => (
            &[ADVISE_MR_PD_HANDLE, ADVISE_MR_ADVICE, ADVISE_MR_FLAGS, ADVISE_MR_SGE_LIST],
            odp::advise),
        (object::MR, method::DM_MR_REG) => (
            &[REG_DM_MR_HANDLE, REG_DM_MR_OFFSET, REG_DM_MR_LENGTH, REG_DM_MR_PD_HANDLE,
              REG_DM_MR_ACCESS_FLAGS, REG_DM_MR_DM_HANDLE, REG_DM_MR_RESP_LKEY,
              REG_DM_MR_RESP_RKEY], dm::register),
        (object::DM, method::DM_ALLOC) => (
            &[ALLOC_DM_HANDLE, ALLOC_DM_LENGTH, ALLOC_DM_ALIGNMENT, ALLOC_DM_RESP_START_OFFSET,
              ALLOC_DM_RESP_PAGE_INDEX, ALLOC_DM_REQ_TYPE], dm::alloc),
        (object::DM, method::DM_FREE) => (DESTROY, dm::free),
        (object::DM, method::DM_QUERY) => (
            &[QUERY_DM_REQ_HANDLE, QUERY_DM_RESP_START_OFFSET, QUERY_DM_RESP_PAGE_INDEX,
              QUERY_DM_RESP_LENGTH], dm::query),
        (object::CQ, method::CREATE) => (
            &[CREATE_CQ_HANDLE, CREATE_CQ_CQE, CREATE_CQ_USER_HANDLE, CREATE_CQ_COMP_CHANNEL,
              CREATE_CQ_COMP_VECTOR, CREATE_CQ_FLAGS, CREATE_CQ_RESP_CQE, CREATE_CQ_EVENT_FD,
              UHW_IN, UHW_OUT], cq::create),
        (object::CQ, method::DESTROY) => (DESTROY_ANSWERED, cq::destroy),
        (object::QP, method::CREATE) => (
            &[CREATE_QP_HANDLE, CREATE_QP_XRCD_HANDLE, CREATE_QP_PD_HANDLE, CREATE_QP_SRQ_HANDLE,
              CREATE_QP_SEND_CQ_HANDLE, CREATE_QP_RECV_CQ_HANDLE, CREATE_QP_USER_HANDLE,
              CREATE_QP_CAP, CREATE_QP_TYPE, CREATE_QP_FLAGS, CREATE_QP_EVENT_FD,
              CREATE_QP_RESP_CAP, CREATE_QP_RESP_QP_NUM, UHW_IN, UHW_OUT], qp::create),
        (object::QP, method::DESTROY) => (DESTROY_ANSWERED, qp::destroy),
        (object::SRQ, method::CREATE) => (
            &[CREATE_SRQ_HANDLE, CREATE_SRQ_PD_HANDLE, CREATE_SRQ_XRCD_HANDLE,
              CREATE_SRQ_CQ_HANDLE, CREATE_SRQ_USER_HANDLE, CREATE_SRQ_MAX_WR, CREATE_SRQ_MAX_SGE, CREATE_SRQ_LIMIT, CREATE_SRQ_MAX_NUM_TAGS, CREATE_SRQ_TYPE, CREATE_SRQ_EVENT_FD,
              CREATE_SRQ_RESP_MAX_WR, CREATE_SRQ_RESP_MAX_SGE, CREATE_SRQ_RESP_SRQ_NUM, UHW_IN,
              UHW_OUT], srq::create),
        (object::SRQ, method::DESTROY) => (DESTROY_ANSWERED, srq::destroy),
        (object::DEVX, method::DEVX_OTHER) => (
            &[DEVX_OTHER_CMD_IN, DEVX_OTHER_CMD_OUT], devx::other),
        (object::DEVX, method::DEVX_QUERY_UAR) => (
            &[DEVX_QUERY_UAR_USER_IDX, DEVX_QUERY_UAR_DEV_IDX], devx::query_uar),
        (object::DEVX, method::DEVX_QUERY_EQN) => (
            &[DEVX_QUERY_EQN_USER_VEC, DEVX_QUERY_EQN_DEV_EQN], devx::query_eqn),
        (object::DEVX, method::DEVX_SUBSCRIBE) => (
            &[DEVX_SUBSCRIBE_FD_HANDLE, DEVX_SUBSCRIBE_OBJ_HANDLE, DEVX_SUBSCRIBE_TYPES,
              DEVX_SUBSCRIBE_FD_NUM, DEVX_SUBSCRIBE_COOKIE], devx::subscribe),
        (object::DEVX_EVENTS, method::DEVX_EVENTS_ALLOC) => (
            &[DEVX_EVENT_FD_HANDLE, DEVX_EVENT_FD_FLAGS], devx::create_channel),
        (object::DEVX_OBJ, method::DEVX_OBJ_CREATE) => (
            &[DEVX_OBJ_CREATE_HANDLE, DEVX_OBJ_CREATE_CMD_IN, DEVX_OBJ_CREATE_CMD_OUT],
            devx::create),
        (object::DEVX_OBJ, method::DEVX_OBJ_DESTROY) => (&[DEVX_OBJ_HANDLE], devx::destroy),
        (object::DEVX_OBJ, method::DEVX_OBJ_MODIFY) => (
            &[DEVX_OBJ_HANDLE, DEVX_OBJ_MODIFY_CMD_IN, DEVX_OBJ_MODIFY_CMD_OUT], devx::modify),
        (object::DEVX_OBJ, method::DEVX_OBJ_QUERY) => (
            &[DEVX_OBJ_HANDLE, DEVX_OBJ_QUERY_CMD_IN, DEVX_OBJ_QUERY_CMD_OUT], devx::query),
        (object::DEVX_UMEM, method::DEVX_UMEM_REG) => (
            &[DEVX_UMEM_REG_HANDLE, DEVX_UMEM_REG_ADDR, DEVX_UMEM_REG_LEN, DEVX_UMEM_REG_ACCESS,
              DEVX_UMEM_REG_OUT_ID, DEVX_UMEM_REG_PGSZ_BITMAP, DEVX_UMEM_REG_DMABUF_FD],
            devx::umem_reg),
        (object::DEVX_UMEM, method::DEVX_UMEM_DEREG) => (
            &[DEVX_UMEM_DEREG_HANDLE], devx::umem_dereg),
        _ => return None,
    })
}

/// A command that once went by `write`.
fn invoke_write(c: &mut Command<'_>) -> Result<(), Refusal> {
    let number = c.request.word(attr::WRITE_CMD)?;
    if !c.request.has(attr::CORE_IN) {
        // libibverbs sends such a thing to learn whether the framework is there.
        return Err(Refusal::NoCore);
    }
    let handler: Handler = match number {
        command::QUERY_DEVICE => device::query_device,
        command::EX_QUERY_DEVICE => device::query_device_ex,
        command::ALLOC_PD => memory::alloc_pd,
        command::CREATE_AH => memory::create_ah,
        command::REG_MR => memory::reg_mr,
        command::REREG_MR => memory::rereg_mr,
        command::ALLOC_MW => memory::alloc_mw,
        command::RESIZE_CQ => cq::resize,
        command::EX_MODIFY_CQ => cq::modify,
        command::CREATE_COMP_CHANNEL => cq::create_channel,
        command::QUERY_QP => qp::query,
        command::MODIFY_QP | command::EX_MODIFY_QP => qp::modify,
        command::MODIFY_SRQ => srq::modify,
        command::QUERY_SRQ => srq::query,
        command::OPEN_XRCD => xrcd::open,
        _ => return Err(Refusal::Command(number)),
    };
    if !c.objects.is_open {
        return Err(Refusal::Unsupported("a command to a device without a context"));
    }
    handler(c)
}

impl Command<'_> {
    /// Answers with a new object.
    pub fn created(&mut self, id: u16, handle: u32) {
        self.undo = Some(Undo::Object(handle));
        self.request.put_handle(id, handle.into());
    }

    /// Answers a command that once went by `write` with a struct.
    fn answer(&mut self, bytes: &[u8]) {
        self.request.put(attr::CORE_OUT, bytes);
    }
}

/// A number of 32 bits as bytes.
pub fn word(value: u32) -> [u8; 4] {
    value.to_ne_bytes()
}

/// A number of 64 bits as bytes.
fn long(value: u64) -> [u8; 8] {
    value.to_ne_bytes()
}
