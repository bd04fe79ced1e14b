//! What people know a command by: the function of libibverbs or libmlx5 that sends it.

use crate::abi::ids::{attr, command, method, object};
use crate::request::Request;

/// `IB_USER_VERBS_CMD_*`, in their order.
const WRITTEN: [&str; 41] = [
    "ibv_open_device",
    "ibv_query_device",
    "ibv_query_port",
    "ibv_alloc_pd",
    "ibv_dealloc_pd",
    "ibv_create_ah",
    "a change of an address handle",
    "a query of an address handle",
    "ibv_destroy_ah",
    "ibv_reg_mr",
    "a shared memory region",
    "ibv_rereg_mr",
    "a query of a memory region",
    "ibv_dereg_mr",
    "ibv_alloc_mw",
    "ibv_bind_mw",
    "ibv_dealloc_mw",
    "ibv_create_comp_channel",
    "ibv_create_cq",
    "ibv_resize_cq",
    "ibv_destroy_cq",
    "ibv_poll_cq",
    "a look at a CQ",
    "ibv_req_notify_cq",
    "ibv_create_qp",
    "ibv_query_qp",
    "ibv_modify_qp",
    "ibv_destroy_qp",
    "ibv_post_send",
    "ibv_post_recv",
    "ibv_attach_mcast",
    "ibv_detach_mcast",
    "ibv_create_srq",
    "ibv_modify_srq",
    "ibv_query_srq",
    "ibv_destroy_srq",
    "ibv_post_srq_recv",
    "ibv_open_xrcd",
    "ibv_close_xrcd",
    "ibv_create_srq_ex",
    "ibv_open_qp",
];
/// `IB_USER_VERBS_EX_CMD_*` from `IB_USER_VERBS_CMD_THRESHOLD` on.
const EXTENDED: [&str; 8] = [
    "ibv_create_flow",
    "ibv_destroy_flow",
    "ibv_create_wq",
    "ibv_modify_wq",
    "ibv_destroy_wq",
    "ibv_create_rwq_ind_table",
    "ibv_destroy_rwq_ind_table",
    "ibv_modify_cq",
];
const THRESHOLD: u32 = 50;

/// `RDMA_USER_CM_CMD_*`, in their order.
const OF_RDMA_CM: [&str; 23] = [
    "rdma_create_id",
    "rdma_destroy_id",
    "rdma_bind_addr",
    "rdma_resolve_addr",
    "rdma_resolve_route",
    "a query of an rdma_cm_id's route",
    "rdma_connect",
    "rdma_listen",
    "rdma_accept",
    "rdma_reject",
    "rdma_disconnect",
    "rdma_init_qp_attr",
    "rdma_get_cm_event",
    "a query of an rdma_cm_id's options",
    "rdma_set_option",
    "rdma_notify",
    "rdma_join_multicast",
    "rdma_leave_multicast",
    "rdma_migrate_id",
    "a query of an rdma_cm_id",
    "rdma_bind_addr",
    "rdma_resolve_addr",
    "rdma_join_multicast",
];

/// Commands of the device that libraries send, by their numbers.
const OF_DEVICE: [(u16, &str); 40] = [
    (0x100, "QUERY_HCA_CAP"),
    (0x101, "QUERY_ADAPTER"),
    (0x200, "CREATE_MKEY"),
    (0x301, "CREATE_EQ"),
    (0x400, "CREATE_CQ"),
    (0x403, "MODIFY_CQ"),
    (0x500, "CREATE_QP"),
    (0x502, "RST2INIT_QP"),
    (0x503, "INIT2RTR_QP"),
    (0x504, "RTR2RTS_QP"),
    (0x505, "RTS2RTS_QP"),
    (0x506, "SQERR2RTS_QP"),
    (0x507, "2ERR_QP"),
    (0x50a, "2RST_QP"),
    (0x50b, "QUERY_QP"),
    (0x50e, "INIT2INIT_QP"),
    (0x600, "CREATE_PSV"),
    (0x700, "CREATE_SRQ"),
    (0x705, "CREATE_XRC_SRQ"),
    (0x710, "CREATE_DCT"),
    (0x713, "QUERY_DCT"),
    (0x717, "CREATE_XRQ"),
    (0x754, "QUERY_NIC_VPORT_CONTEXT"),
    (0x760, "QUERY_ROCE_ADDRESS"),
    (0x771, "ALLOC_Q_COUNTER"),
    (0x800, "ALLOC_PD"),
    (0x805, "ACCESS_REG"),
    (0x80e, "ALLOC_XRCD"),
    (0x816, "ALLOC_TRANSPORT_DOMAIN"),
    (0x842, "QUERY_LAG"),
    (0x900, "CREATE_TIR"),
    (0x904, "CREATE_SQ"),
    (0x908, "CREATE_RQ"),
    (0x90c, "CREATE_RMP"),
    (0x912, "CREATE_TIS"),
    (0x916, "CREATE_RQT"),
    (0x930, "CREATE_FLOW_TABLE"),
    (0x933, "CREATE_FLOW_GROUP"),
    (0x936, "SET_FLOW_TABLE_ENTRY"),
    (0xa00, "CREATE_GENERAL_OBJECT"),
];

/// The function that sends a command, with the command of the device that it hands on.
pub fn of(request: &Request) -> String {
    let (object, method) = (request.object, request.method);
    if (object, method) == (object::DEVICE, method::INVOKE_WRITE) {
        return match request.word(attr::WRITE_CMD) {
            Ok(number) => written(number),
            Err(_) => "a command without a number".into(),
        };
    }
    let mailbox = match (object, method) {
        (object::DEVX, method::DEVX_OTHER) => Some(attr::DEVX_OTHER_CMD_IN),
        (object::DEVX_OBJ, method::DEVX_OBJ_CREATE) => Some(attr::DEVX_OBJ_CREATE_CMD_IN),
        (object::DEVX_OBJ, method::DEVX_OBJ_MODIFY) => Some(attr::DEVX_OBJ_MODIFY_CMD_IN),
        (object::DEVX_OBJ, method::DEVX_OBJ_QUERY) => Some(attr::DEVX_OBJ_QUERY_CMD_IN),
        _ => None,
    };
    let name = function(object, method);
    match mailbox.and_then(|id| request.bytes(id, 1 << 16).ok()) {
        Some(bytes) if bytes.len() >= 2 => {
            format!("{name}, {}", of_device(u16::from_be_bytes([bytes[0], bytes[1]])))
        }
        _ => name,
    }
}

fn written(number: u32) -> String {
    let plain = number & !command::EXTENDED;
    let name = match plain.checked_sub(THRESHOLD) {
        Some(above) => EXTENDED.get(above as usize),
        None => WRITTEN.get(plain as usize),
    };
    name.map_or_else(|| format!("the unknown command {number:#x}"), |name| (*name).into())
}

/// The function of librdmacm's that sends a command.
pub fn of_rdma_cm(command: u32) -> &'static str {
    OF_RDMA_CM.get(command as usize).copied().unwrap_or("an unknown command of librdmacm's")
}

fn of_device(code: u16) -> String {
    let known = OF_DEVICE.iter().find(|(other, _)| *other == code);
    known.map_or_else(|| format!("command {code:#x}"), |(_, name)| (*name).into())
}

fn function(object: u16, method: u16) -> String {
    // Mostly, 0 makes an object (of mlx5: 0x1000) and 1 ends one.
    let made = method & 0xfff == 0;
    let either = |makes: &'static str, ends: &'static str| if made { makes } else { ends };
    match (object, method) {
        (object::DEVICE, method::QUERY_PORT) => "ibv_query_port",
        (object::DEVICE, method::GET_CONTEXT) => "ibv_open_device",
        (object::DEVICE, method::QUERY_CONTEXT) => "ibv_import_device",
        (object::DEVICE, method::QUERY_GID_TABLE) => "ibv_query_gid_table",
        (object::DEVICE, method::QUERY_GID_ENTRY) => "ibv_query_gid_ex",
        (object::DEVICE, method::QUERY_SWITCH_PORT) => "mlx5dv_query_port",
        (object::PD, method::PD_QUERY) => "ibv_import_pd",
        (object::PD, _) => "ibv_dealloc_pd",
        (object::CQ, _) => either("ibv_create_cq", "ibv_destroy_cq"),
        (object::QP, _) => either("ibv_create_qp", "ibv_destroy_qp"),
        (object::SRQ, _) => either("ibv_create_srq", "ibv_destroy_srq"),
        (object::AH, _) => "ibv_destroy_ah",
        (object::MR, method::DM_MR_REG) => "ibv_reg_dm_mr",
        (object::MR, method::ADVISE_MR) => "ibv_advise_mr",
        (object::MR, method::QUERY_MR) => "ibv_import_mr",
        (object::MR, 4) => "ibv_reg_dmabuf_mr",
        (object::MR, _) => "ibv_dereg_mr",
        (object::MW, _) => "ibv_dealloc_mw",
        (9, 0x1000) => "mlx5dv_create_flow",
        (9, _) => "ibv_destroy_flow",
        (object::XRCD, _) => "ibv_close_xrcd",
        (11, _) => "ibv_destroy_rwq_ind_table",
        (12, _) => either("ibv_create_wq", "ibv_destroy_wq"),
        (13, 0) => "ibv_create_flow_action_esp",
        (13, 0x1000) => "mlx5dv_create_flow_action_modify_header",
        (13, _) => "a flow action",
        (object::DM, method::DM_QUERY) => "ibv_import_dm",
        (object::DM, _) => either("ibv_alloc_dm", "ibv_free_dm"),
        (15, 0) => "ibv_create_counters",
        (15, _) => "ibv_read_counters or ibv_destroy_counters",
        (object::ASYNC_EVENT, _) => "ibv_open_device's asynchronous events",
        (object::DEVX, method::DEVX_OTHER) => "mlx5dv_devx_general_cmd",
        (object::DEVX, method::DEVX_QUERY_UAR) => "mlx5dv_devx_alloc_uar",
        (object::DEVX, method::DEVX_QUERY_EQN) => "mlx5dv_devx_query_eqn",
        (object::DEVX, method::DEVX_SUBSCRIBE) => "mlx5dv_devx_subscribe_devx_event",
        (object::DEVX_OBJ, method::DEVX_OBJ_CREATE) => "mlx5dv_devx_obj_create",
        (object::DEVX_OBJ, method::DEVX_OBJ_DESTROY) => "mlx5dv_devx_obj_destroy",
        (object::DEVX_OBJ, method::DEVX_OBJ_MODIFY) => "mlx5dv_devx_obj_modify",
        (object::DEVX_OBJ, method::DEVX_OBJ_QUERY) => "mlx5dv_devx_obj_query",
        (object::DEVX_OBJ, _) => "mlx5dv_devx_obj_query_async",
        (object::DEVX_UMEM, _) => either("mlx5dv_devx_umem_reg", "mlx5dv_devx_umem_dereg"),
        (0x1003, _) => either("mlx5dv_create_flow_matcher", "mlx5dv_destroy_flow_matcher"),
        (0x1004, _) => "mlx5dv_devx_create_cmd_comp",
        (object::DEVX_EVENTS, _) => "mlx5dv_devx_create_event_channel",
        (0x1006, _) => either("mlx5dv_alloc_var", "mlx5dv_free_var"),
        (0x1007, _) => either("mlx5dv_pp_alloc", "mlx5dv_pp_free"),
        (object::UAR, _) => either("mlx5dv_devx_alloc_uar", "mlx5dv_devx_free_uar"),
        (0x1009, _) => either("mlx5dv_create_steering_anchor", "mlx5dv_destroy_steering_anchor"),
        _ => {
            let number = format!("object {object:#x}, method {method:#x}");
            return format!("a call of a library that is newer than this device ({number})");
        }
    }
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rdma_cm::command as rdma_cm;

    #[test]
    fn commands_are_known_by_the_functions_that_send_them() {
        assert_eq!(written(command::OPEN_XRCD), "ibv_open_xrcd");
        assert_eq!(written(command::EX_MODIFY_CQ), "ibv_modify_cq");
        assert_eq!(written(command::QUERY_SRQ), "ibv_query_srq");
        assert_eq!(written(command::EX_QUERY_DEVICE), "ibv_query_device");
        assert_eq!(written(77), "the unknown command 0x4d");
        assert_eq!(function(object::CQ, method::CREATE), "ibv_create_cq");
        assert_eq!(of_rdma_cm(rdma_cm::MIGRATE_ID), "rdma_migrate_id");
        assert_eq!(of_rdma_cm(rdma_cm::JOIN_MCAST), "rdma_join_multicast");
        assert_eq!(of_rdma_cm(23), "an unknown command of librdmacm's");
        assert_eq!(function(object::UAR, method::UAR_DESTROY), "mlx5dv_devx_free_uar");
        assert_eq!(function(object::DM, method::DM_FREE), "ibv_free_dm");
        let newer = "a call of a library that is newer than this device (object 0x63, method 0x3)";
        assert_eq!(function(99, 3), newer);
        assert_eq!(of_device(0x842), "QUERY_LAG");
    }
}
