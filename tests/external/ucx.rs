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
fn datagrams_wire_connections_up() {
    over(&["rc_v", "ud_v"], &["-t", "tag_lat", "-n", "50", "-w", "5"]);
}
