//! The device itself: what it can do, its port, its UAR pages, its asynchronous events.

use std::ffi::CString;
use std::net::IpAddr;
use std::os::fd::IntoRawFd;
use std::sync::Arc;

use bellpush_mem::PAGE_BYTES;
use bytemuck::{Zeroable, bytes_of};

use super::{Command, Undo, cq, long, odp, word};
use crate::abi::ids::{UHW_IN, UHW_OUT, attr};
use crate::abi::mlx5::{self, AllocUcontextReq, AllocUcontextResp};
use crate::abi::verbs::{
    AsyncEventDesc, ExQueryDeviceResp, GidEntry, QueryDeviceResp, QueryPortRespEx,
};
use crate::clock;
use crate::context::{Object, map, punch, uar_page};
use crate::device::Device;
use crate::error::Refusal;
use crate::events::{EventPipe, Reporter};
use crate::files::Kind;
use crate::layout;
use bellpush_soft_nic::MAX_TAGS;

/// Completion vectors: all completions come from one engine.
const COMP_VECTORS: u32 = 1;
/// Longest WQE of a send queue, in bytes.
pub const MAX_SQ_DESC: u16 = 1024;
/// Longest WQE of a receive queue, in bytes: 32 scatter entries.
pub const MAX_RQ_DESC: u16 = 512;
/// Largest rings, in basic blocks and in WQEs.
pub const MAX_WQES: u32 = 1 << 15;
/// Largest completion queue but for the one entry that libmlx5 adds.
const MAX_CQE: u32 = (1 << 22) - 1;
/// Most scatter or gather entries: of a send WQE, what fits behind control, address and remote
/// address segments.
const MAX_SGE: u32 = 30;
/// READs and atomics outstanding.
pub const MAX_RD_ATOMIC: u32 = 16;
/// The largest number of any kind of object, where only memory limits it.
const MANY: u32 = 1 << 16;
/// `IB_UVERBS_DEVICE_*`: MEM_WINDOW_TYPE_2B, XRC, MEM_WINDOW, RC_RNR_NAK_GEN, SYS_IMAGE_GUID,
/// PORT_ACTIVE_EVENT and CURR_QP_STATE_MOD are what the NIC does.
const CAPS: u32 = 1 << 24 | 1 << 20 | 1 << 17 | 1 << 12 | 1 << 11 | 1 << 10 | 1 << 7;
/// Largest device memory of one allocation: what libmlx5's mapping commands can name in a row.
pub const MAX_DM_BYTES: u64 = 1 << 20;
/// Room in the GID table; its first entry is the address, the rest is empty.
const GIDS: u32 = 16;
/// Longest message.
pub const MAX_MESSAGE: u32 = 1 << 30;

/// Streams of an initiator, and those of them that may be in error before it is (log2). A stream is named by 16 bits,
/// and all go through one queue, however many there are.
pub const DCI_STREAMS: [u8; 2] = [8, 6];

fn ucontext() -> AllocUcontextResp {
    AllocUcontextResp {
        qp_tab_size: 1 << 16,
        // Doorbells are single stores to one register: there is no BlueFlame.
        bf_reg_size: 0,
        // UARs are objects.
        tot_bfregs: 0,
        cache_line_size: 64,
        max_sq_desc_sz: MAX_SQ_DESC,
        max_rq_desc_sz: MAX_RQ_DESC,
        max_send_wqebb: MAX_WQES,
        max_recv_wr: MAX_WQES,
        max_srq_recv_wr: MAX_WQES,
        num_ports: 1,
        flow_action_flags: 0,
        comp_mask: mlx5::UCONTEXT_SQD2RTS,
        response_length: size_of::<AllocUcontextResp>() as u32,
        // CQEs carry the user's index of a queue pair.
        cqe_version: 1,
        cmds_supp_uhw: mlx5::CMDS_SUPP_UHW,
        eth_min_inline: mlx5::INLINE_MODE_NONE,
        clock_info_versions: mlx5::CLOCK_INFO_VERSIONS,
        hca_core_clock_offset: 0,
        log_uar_size: 12,
        num_uars_per_page: 1,
        num_dyn_bfregs: 0,
        dump_fill_mkey: 0,
    }
}

/// `GET_CONTEXT`.
pub fn get_context(c: &mut Command<'_>) -> Result<(), Refusal> {
    if c.objects.is_open {
        let (what, must) = ("context", "opened once for each descriptor");
        return Err(Refusal::Value { what, value: 1, must });
    }
    // Versions before the second end behind the second word.
    let request: AllocUcontextReq = c.request.input_from(UHW_IN, 8)?;
    if request.lib_caps & mlx5::LIB_CAP_DYN_UAR == 0 || request.max_cqe_version < 1 {
        return Err(Refusal::Unsupported("a libmlx5 without dynamic UARs and CQE version 1"));
    }
    c.objects.is_open = true;
    describe(c, UHW_OUT);
    Ok(())
}

/// `struct ib_uverbs_tm_caps`: bytes of a rendezvous' message, entries of a list, services (RC: 1), operations on
/// their way, scatter entries.
const TM_CAPS: [u32; 6] = [64, MAX_TAGS, 1, MAX_WQES, 1, 0];

/// `QUERY_CONTEXT`: what a context that is imported by its descriptor says.
pub fn query_context(c: &mut Command<'_>) -> Result<(), Refusal> {
    if !c.objects.is_open {
        return Err(Refusal::Unsupported("importing a device without a context"));
    }
    describe(c, attr::QUERY_CONTEXT_RESP_UCTX);
    Ok(())
}

fn describe(c: &mut Command<'_>, driver: u16) {
    // IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS: optional access flags are ignored.
    c.request.put(attr::GET_CONTEXT_CORE_SUPPORT, &long(1));
    c.request.put(attr::GET_CONTEXT_NUM_COMP_VECTORS, &word(COMP_VECTORS));
    c.request.put(driver, bytes_of(&ucontext()));
}

/// The firmware's version as libmlx5 takes it apart: 16, 16 and 16 bits.
fn fw_ver() -> u64 {
    let mut parts =
        layout::FIRMWARE.split('.').map(|part| part.parse::<u64>().unwrap_or(0) & 0xffff);
    let mut next = || parts.next().unwrap_or(0);
    next() << 32 | next() << 16 | next()
}

fn limits(device: &Device) -> QueryDeviceResp {
    let guid = layout::guid(device.index);
    QueryDeviceResp {
        fw_ver: fw_ver(),
        node_guid: guid,
        sys_image_guid: guid,
        max_mr_size: u64::MAX,
        page_size_cap: !(PAGE_BYTES as u64 - 1),
        // The OUI of Mellanox, as mlx5's firmware answers; not the PCI vendor.
        vendor_id: 0x02c9,
        vendor_part_id: 0x1021,
        hw_ver: 0,
        max_qp: MANY,
        max_qp_wr: MAX_WQES,
        device_cap_flags: CAPS,
        max_sge: MAX_SGE,
        max_sge_rd: MAX_SGE,
        max_cq: 1 << 24,
        max_cqe: MAX_CQE,
        max_mr: 1 << 24,
        max_pd: 1 << 24,
        max_qp_rd_atom: MAX_RD_ATOMIC,
        max_res_rd_atom: MAX_RD_ATOMIC * MANY,
        max_qp_init_rd_atom: MAX_RD_ATOMIC,
        // IB_ATOMIC_HCA.
        atomic_cap: 1,
        max_mw: 1 << 24,
        max_ah: i32::MAX as u32,
        max_srq: 1 << 24,
        max_srq_wr: MAX_WQES - 1,
        max_srq_sge: u32::from(MAX_RQ_DESC) / 16 - 1,
        max_pkeys: 1,
        local_ca_ack_delay: 16,
        phys_port_cnt: 1,
        ..QueryDeviceResp::zeroed()
    }
}

/// `IB_USER_VERBS_CMD_QUERY_DEVICE`.
pub fn query_device(c: &mut Command<'_>) -> Result<(), Refusal> {
    c.answer(bytes_of(&limits(&c.context.device)));
    Ok(())
}

/// `IB_USER_VERBS_EX_CMD_QUERY_DEVICE`.
pub fn query_device_ex(c: &mut Command<'_>) -> Result<(), Refusal> {
    let response = ExQueryDeviceResp {
        base: limits(&c.context.device),
        response_length: size_of::<ExQueryDeviceResp>() as u32,
        odp_general_caps: odp::GENERAL_CAPS,
        odp_transport_caps: [odp::RC_CAPS, odp::UC_CAPS, odp::UD_CAPS],
        xrc_odp_caps: odp::XRC_CAPS,
        timestamp_mask: u64::MAX,
        hca_core_clock: clock::KHZ,
        device_cap_flags_ex: CAPS.into(),
        tm_caps: TM_CAPS,
        max_cq_moderation_count: u16::MAX,
        max_cq_moderation_period: cq::MAX_PERIOD_US,
        max_dm_size: c.process.options.dm_bytes.min(MAX_DM_BYTES),
        ..ExQueryDeviceResp::zeroed()
    };
    c.answer(bytes_of(&response));
    let response_length = size_of::<mlx5::QueryDeviceResp>() as u32;
    let flags = mlx5::QUERY_DEV_CQE_128B_PAD;
    let none = mlx5::QueryDeviceResp::zeroed();
    let dci_streams_caps = DCI_STREAMS;
    let driver = mlx5::QueryDeviceResp { response_length, flags, dci_streams_caps, ..none };
    c.request.put(UHW_OUT, bytes_of(&driver));
    Ok(())
}

fn the_port(value: u64) -> Result<(), Refusal> {
    if value == 1 { Ok(()) } else { Err(Refusal::Value { what: "port", value, must: "1" }) }
}

/// `enum ibv_mtu`.
pub fn mtu_code(bytes: usize) -> u8 {
    (bytes.max(256).ilog2() - 7) as u8
}

/// `QUERY_PORT`.
pub fn query_port(c: &mut Command<'_>) -> Result<(), Refusal> {
    the_port(c.request.number(attr::QUERY_PORT_PORT_NUM)?)?;
    // PortState and PortPhysicalState (InfiniBand vol. 1, PortInfo): Active and LinkUp, or Down and Disabled.
    let (state, phys_state) = if c.context.device.listeners.is_port_up() { (4, 5) } else { (1, 3) };
    let response = QueryPortRespEx {
        port_cap_flags: layout::PORT_CAPS,
        max_msg_sz: MAX_MESSAGE,
        gid_tbl_len: GIDS,
        pkey_tbl_len: 1,
        state,
        max_mtu: mtu_code(4096),
        active_mtu: mtu_code(c.context.device.mtu.bytes()),
        max_vl_num: 1,
        active_width: 2,  // 4X
        active_speed: 32, // EDR: what the port is rated at says nothing of software
        phys_state,
        link_layer: 2, // Ethernet
        flags: 1,      // GRH_REQUIRED
        ..QueryPortRespEx::zeroed()
    };
    c.request.put(attr::QUERY_PORT_RESP, bytes_of(&response));
    Ok(())
}

/// `MLX5_IB_METHOD_QUERY_PORT`: what the port has of a switch's ports, which is nothing.
pub fn query_switch_port(c: &mut Command<'_>) -> Result<(), Refusal> {
    the_port(c.request.number(attr::QUERY_SWITCH_PORT_NUM)?)?;
    c.request.put(attr::QUERY_SWITCH_PORT_RESP, &[]);
    Ok(())
}

fn gid_entry(device: &Device) -> GidEntry {
    GidEntry {
        gid: layout::gid(device.address),
        gid_index: 0,
        port_num: 1,
        gid_type: 2, // RoCE v2
        netdev_ifindex: ifindex(device.address),
    }
}

/// Index of the interface that has the address; 0 for none.
fn ifindex(address: IpAddr) -> u32 {
    let name = CString::new(layout::interface(Some(address))).unwrap_or_default();
    // SAFETY: the name is a C string.
    unsafe { libc::if_nametoindex(name.as_ptr()) }
}

/// `QUERY_GID_TABLE`.
pub fn query_gid_table(c: &mut Command<'_>) -> Result<(), Refusal> {
    let size = c.request.number(attr::GID_TABLE_ENTRY_SIZE)?;
    if c.request.number_or(attr::GID_TABLE_FLAGS, 0)? != 0 {
        return Err(Refusal::Unsupported("a flag of the GID table"));
    }
    let room = c.request.room(attr::GID_TABLE_RESP_ENTRIES)? as u64;
    if size == 0 || room < size {
        let must = "at least one entry's";
        return Err(Refusal::Value { what: "room for the GID table", value: room, must });
    }
    let entry = gid_entry(&c.context.device);
    let bytes = bytes_of(&entry);
    c.request.put(attr::GID_TABLE_RESP_ENTRIES, &bytes[..bytes.len().min(size as usize)]);
    c.request.put(attr::GID_TABLE_RESP_NUM_ENTRIES, &long(1));
    Ok(())
}

/// `QUERY_GID_ENTRY`.
pub fn query_gid_entry(c: &mut Command<'_>) -> Result<(), Refusal> {
    the_port(c.request.number(attr::GID_ENTRY_PORT)?)?;
    if c.request.number_or(attr::GID_ENTRY_FLAGS, 0)? != 0 {
        return Err(Refusal::Unsupported("a flag of a GID entry"));
    }
    let index = c.request.number(attr::GID_ENTRY_GID_INDEX)?;
    if index != 0 {
        return Err(Refusal::NoGid(index));
    }
    let entry = gid_entry(&c.context.device);
    c.request.put(attr::GID_ENTRY_RESP_ENTRY, bytes_of(&entry));
    Ok(())
}

/// `ASYNC_EVENT_ALLOC`.
pub fn async_events(c: &mut Command<'_>) -> Result<(), Refusal> {
    let (pipe, reader) = EventPipe::new(size_of::<AsyncEventDesc>())?;
    let pipe = Arc::new(pipe);
    let reader = std::fs::File::from(reader);
    c.process.files.add(&reader, Kind::Events(pipe.clone()))?;
    // What is created through this context tells the first descriptor; libibverbs has one.
    if c.objects.async_events.is_none() {
        const PORT: u64 = 1;
        let port = Reporter::new(pipe.clone(), PORT);
        c.context.device.listeners.add_port(&port);
        c.objects.port_events = Some(port);
        c.objects.async_events = Some(pipe);
    }
    let fd = reader.into_raw_fd();
    c.undo = Some(Undo::Descriptor(fd));
    c.request.put_handle(attr::ASYNC_EVENT_FD_HANDLE, fd as u64);
    Ok(())
}

/// `MLX5_IB_METHOD_UAR_OBJ_ALLOC`.
pub fn alloc_uar(c: &mut Command<'_>) -> Result<(), Refusal> {
    let kind = c.request.number(attr::UAR_ALLOC_TYPE)?;
    if kind > 1 {
        return Err(Refusal::Value { what: "type of UAR", value: kind, must: "0 or 1" });
    }
    let index = c.objects.free_uar()?;
    // What the last holder of the page rang is not for the next.
    punch(c.fd, uar_page(index), 1);
    let page = map(c.fd, uar_page(index), PAGE_BYTES)?;
    c.objects.uars.insert(index, page);
    let handle = c.objects.add(Object::Uar(index));
    c.created(attr::UAR_ALLOC_HANDLE, handle);
    c.request.put(attr::UAR_ALLOC_MMAP_OFFSET, &long(uar_page(index) * PAGE_BYTES as u64));
    c.request.put(attr::UAR_ALLOC_MMAP_LENGTH, &word(PAGE_BYTES as u32));
    c.request.put(attr::UAR_ALLOC_PAGE_ID, &word(index));
    Ok(())
}

/// `MLX5_IB_METHOD_UAR_OBJ_DESTROY`.
pub fn destroy_uar(c: &mut Command<'_>) -> Result<(), Refusal> {
    let handle = c.request.handle(attr::UAR_DESTROY_HANDLE)?;
    c.objects.uar(handle)?;
    c.context.destroy(c.objects, handle)
}
