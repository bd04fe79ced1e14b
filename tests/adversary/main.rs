//! Endpoints and the verbs of device code on NICs that take every freedom that the rules give: the tests of
//! `tests/endpoint`, byte for byte the same. A finding about our own code ends the engine that makes it.

mod doorbells;
mod lines;

#[path = "../support/queue_pairs.rs"]
mod queue_pairs;
#[path = "../support/test_bed.rs"]
mod test_bed;

#[path = "../endpoint/delivery.rs"]
mod delivery;
#[path = "../endpoint/model.rs"]
mod model;
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

/// Which engine the NICs have.
const ENGINE: &str = "adversary";
