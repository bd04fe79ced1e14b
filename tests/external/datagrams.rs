//! Datagrams of UD that find a receive, and those that do not (`interop/datagrams.c`).

use crate::preloaded::{alone, compiled, succeeds};

/// `ib_send_bw -c UD -r 1` without perftest, which then waits two minutes for what was dropped.
#[test]
fn datagrams_without_a_receive_are_dropped_and_counted_and_later_ones_come() {
    let _alone = alone();
    let Some(program) = compiled("datagrams") else { return };
    for link in ["udp", "shm"] {
        succeeds(&["--link-type", link], &[program.to_str().unwrap(), "one_receive"]);
    }
}
