//! UCX, unmodified, on software devices: `bellpush run -- ucx_perftest …`.

use crate::preloaded::{alone, pair_succeeds, there};

/// Runs one of UCX's tests over one transport, in turn by each of these.
fn over(transports: &[&str], test: &[&str]) {
    let _alone = alone();
    if !there("ucx_perftest") {
        return;
    }
    for transport in transports {
        let choice = format!("UCX_TLS={transport},self");
        let command = ["env", &choice, "UCX_NET_DEVICES=mlx5_0:1", "ucx_perftest"];
        let [_, client] = pair_succeeds(&[], &[&command[..], test].concat());
        assert!(client.contains("Final:"), "{transport}: {client}");
    }
}

#[test]
fn queues_made_by_commands_of_the_device_carry_every_operation() {
    for test in ["tag_lat", "stream_bw", "ucp_put_lat", "ucp_get", "ucp_fadd", "ucp_cswap"] {
        over(&["rc_x", "dc_x"], &["-t", test, "-n", "50", "-w", "5"]);
    }
    over(&["rc_x", "ud_x", "dc_x"], &["-t", "tag_bw", "-s", "200000", "-n", "20", "-w", "2"]);
}

#[test]
fn datagrams_wire_connections_up() {
    over(&["rc_v", "ud_v", "ud_x"], &["-t", "tag_lat", "-n", "50", "-w", "5"]);
}
