//! Endpoints and the verbs of device code on NICs that take every freedom that the rules give: the tests of
//! `tests/endpoint`, byte for byte the same. A finding about our own code ends the engine that makes it.

mod doorbells;
mod gated;
mod lines;
mod more;
mod wrong;

#[path = "../support/nics.rs"]
mod nics;
#[path = "../support/queue_pairs.rs"]
mod queue_pairs;
#[path = "../support/test_bed.rs"]
mod test_bed;

#[path = "../endpoint/auto.rs"]
mod auto;
#[path = "../endpoint/calls.rs"]
mod calls;
#[path = "../endpoint/delivery.rs"]
mod delivery;
#[path = "../endpoint/model.rs"]
mod model;
#[path = "../endpoint/peers.rs"]
mod peers;
#[path = "../endpoint/placement.rs"]
mod placement;
#[path = "../endpoint/reset.rs"]
mod reset;
#[path = "../endpoint/verbs.rs"]
mod verbs;
#[path = "../endpoint/verbs_blocks.rs"]
mod verbs_blocks;
#[path = "../endpoint/verbs_bounds.rs"]
mod verbs_bounds;
#[path = "../endpoint/verbs_faults.rs"]
mod verbs_faults;
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

/// Which engine the NICs have.
const ENGINE: &str = "adversary";
