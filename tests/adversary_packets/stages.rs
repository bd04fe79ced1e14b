//! All-reduce sends from a stage, and writes there again when the receivers of what it held have answered. That says that
//! they have it, and not that it will not be sent again (`kernels/collective/collective.cuh`): a NIC that reads it again
//! for a packet whose acknowledgement was lost sends other bytes, which the receiver drops with the duplicate.

use std::sync::Arc;

use crate::nics::relaxed;
use crate::world::check::Kind;
use crate::world::{World, path, small};
use bellpush::collective::{Algorithm, Dtype, Op};
use bellpush::nic::soft::link::ShmNet;
use bellpush::nic::soft::{AdversaryKind, SoftConfig, SoftNic};

/// Results are right all the same, and nothing but the stage is told of.
#[test]
fn what_is_sent_again_from_a_stage_changes_no_result() {
    for (seed, algorithm) in (1..).zip([Algorithm::Ring, Algorithm::TwoShot, Algorithm::Ll]) {
        let adversary = Some(format!("{seed},payload,writes,acks").parse().unwrap());
        let link = ShmNet::anonymous(false).unwrap().attach_free().unwrap();
        let config = SoftConfig { adversary, ..SoftConfig::default() };
        let nic: Arc<SoftNic> = SoftNic::open_on(config, Box::new(link)).unwrap();
        let options = small(algorithm).path(path("pull/kernel"));
        let world = World::on(vec![relaxed(nic.clone()); 3], &options);
        for count in [700, 2055, 1031].into_iter().cycle().take(12) {
            world.reduce(Dtype::F32, Op::Sum, count, Kind::Random, false);
        }
        for finding in nic.findings() {
            assert_eq!(finding.kind, AdversaryKind::Payload, "{finding}");
            assert!(finding.seen.starts_with("payload changed"), "{finding}");
        }
        println!("{algorithm}: {:?}", nic.finding_counts());
    }
}
