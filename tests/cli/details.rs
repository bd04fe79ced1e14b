//! What `bellpush doctor` says of parts of a machine: of ports.

use serde_json::Value;

use crate::diagnoses::{json, machine};
use crate::doctor::findings_of;

/// The link layer of a port is told. Of one that does not show it nothing of RoCE is looked at, and that is told too: it
/// may be one of RoCE without a GID of version 2.
#[test]
fn a_port_of_unknown_layer_is_told() {
    let layer = |nth: u8| format!("sys/class/infiniband/mlx5_{nth}/ports/1/link_layer");
    let drop = [0, 1].map(|nth| format!("drop {}", layer(nth)));
    let odd = format!("file {} = Unspecified", layer(0));
    let [first, second] = drop.each_ref().map(String::as_str);
    let told = |name: &str, more: &[&str]| {
        let dir = machine(name, more);
        let all = findings_of(dir.path()).unwrap().into_iter();
        let own: Vec<_> =
            all.filter(|f| f[0] == "rdma-port").map(|[_, s, of, what]| [s, of, what]).collect();
        let possible = json(dir.path())["paths_on_a_card"][0]["possible"].clone();
        (own, possible)
    };
    let (own, can) = told("roce-genoa", &[]);
    assert_eq!((own[0][2].as_str(), can), ("active, Ethernet", true.into()), "{own:?}");
    let (own, can) = told("ib-switches", &[]);
    assert_eq!((own[0][2].as_str(), can), ("active, InfiniBand", true.into()), "{own:?}");
    for (name, more, count, possible) in [
        // With a GID of RoCE v2 it is of use whatever it is.
        ("roce-genoa", &[first, second][..], 2, Value::Bool(true)),
        ("ib-switches", &[first, second], 2, Value::Null),
        ("ib-switches", &[first], 1, Value::Bool(true)),
        ("ib-switches", &[&odd], 1, Value::Bool(true)),
    ] {
        let (own, can) = told(name, more);
        let hidden = own.iter().filter(|f| f[0] == "unseen" && f[2].contains("roce-mtu, roce-gid"));
        assert_eq!((hidden.count(), can), (count, possible), "{name} {more:?}: {own:?}");
    }
}
