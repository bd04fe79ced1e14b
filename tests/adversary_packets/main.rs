//! As `tests/adversary`, where messages go in packets through shared memory, of which the adversary changes the order,
//! repeats some and loses acknowledgements: the verbs of device code, with the tests of `tests/endpoint`.

#[path = "../adversary/more.rs"]
mod more;
#[path = "../support/nics.rs"]
mod nics;
#[path = "../support/test_bed.rs"]
mod test_bed;

#[path = "../endpoint/auto.rs"]
mod auto;
#[path = "../endpoint/calls.rs"]
mod calls;
#[path = "../endpoint/peers.rs"]
mod peers;
#[path = "../endpoint/placement.rs"]
mod placement;
#[path = "../endpoint/verbs.rs"]
mod verbs;
#[path = "../endpoint/verbs_immediates.rs"]
mod verbs_immediates;
#[path = "../endpoint/verbs_many.rs"]
mod verbs_many;
#[path = "../endpoint/verbs_signals.rs"]
mod verbs_signals;

#[path = "../support/world.rs"]
mod world;

#[path = "../collective/all_reduce.rs"]
mod all_reduce;

mod stages;

/// Which engine the NICs have.
const ENGINE: &str = "adversary by packets";
