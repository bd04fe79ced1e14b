//! Each check passes what the kernels post, and finds what is planted there.

use std::time::Duration;

use bellpush::gpu::{Dims, Executor, Gpu, HostOptions, Module};

use super::*;
use crate::launch::launch;
use crate::post::cases::{Place, all};
use crate::post::queues::Queues;

/// A row as the host executor has posted it.
struct Run {
    case: Case,
    size: Size,
    local_iova: u64,
    found: Found,
}

impl Run {
    fn of(name: &str, place: Place) -> Self {
        let case = all().find(|case| case.name == name && case.place == place);
        Self::of_case(*case.unwrap_or_else(|| panic!("no row {name}")))
    }

    fn of_case(case: Case) -> Self {
        let gpu = Gpu::open(Executor::Host(HostOptions::default())).unwrap();
        let (stream, kernels) = (gpu.stream().unwrap(), gpu.load(&Module::builtin()).unwrap());
        let size = case.size(None);
        let queues = Queues::new(&gpu, None, &case, size).unwrap();
        let limit = Duration::from_secs(20);
        let args = queues.reset(limit, 0).unwrap();
        let kernel = kernels.kernel(case.kernel).unwrap();
        launch(&stream, &kernel, Dims::new(size.blocks, size.threads), &args).unwrap();
        stream.synchronize(limit).unwrap();
        Self { case, size, local_iova: queues.local_iova(), found: queues.found().unwrap() }
    }

    fn check(&self) -> Result<(), Wrong> {
        check(&self.case, self.size, self.local_iova, &self.found)
    }

    /// What the check says once the results are changed.
    fn with(&self, change: impl FnOnce(&mut Found)) -> Result<(), Wrong> {
        let mut found = self.found.clone();
        change(&mut found);
        check(&self.case, self.size, self.local_iova, &found)
    }
}

#[test]
fn what_is_missing_or_too_much_in_a_queue_is_found() {
    for (name, place) in [
        ("exclusive thread", Place::Ggh),
        ("exclusive thread", Place::Hhh),
        ("exclusive put_signal thread", Place::Ggh),
        ("shared by a block each, endpoint copied", Place::Ggh),
    ] {
        let run = Run::of(name, place);
        assert_eq!(run.check(), Ok(()), "{name}");
        let wanted = run.size.wqes;
        let last = (wanted as usize - 1) * WQEBB_BYTES;
        let erased = run.with(|f| f.sq[last..][..WQEBB_BYTES].fill(0));
        assert_eq!(erased, Err(Wrong::Count { qp: 0, found: wanted - 1, wanted }), "{name}");
        let more = run.with(|f| f.sq.copy_within(last..last + WQEBB_BYTES, last + WQEBB_BYTES));
        assert_eq!(more, Err(Wrong::Count { qp: 0, found: wanted + 1, wanted }), "{name}");
    }
}

#[test]
fn a_wqe_that_differs_in_any_field_is_found() {
    for name in [
        "exclusive thread",
        "exclusive put_inline 8 B thread",
        "exclusive batch of 32 warp",
        "exclusive put_signal set thread",
        "exclusive signal add alone thread",
        "exclusive signal set alone thread",
        "exclusive put_value 8 B thread",
        "exclusive put_imm thread",
        "exclusive signal imm alone thread",
        "exclusive get thread",
        "exclusive fetch_add thread",
        "exclusive compare_swap thread",
        "exclusive put_strided of 32 thread",
        "exclusive put_vector of 32 warp",
        "exclusive push thread",
    ] {
        let run = Run::of(name, Place::Ggh);
        assert_eq!(run.check(), Ok(()), "{name}");
        let wrong = Err(Wrong::Content { qp: 0, at: 1 });
        for byte in (0..WQEBB_BYTES).filter(|byte| *byte != FLAGS_AT) {
            let found = run.with(|f| f.sq[WQEBB_BYTES + byte] ^= 1);
            assert_eq!(found, wrong, "{name}, byte {byte}");
        }
        assert_eq!(run.with(|f| f.sq[WQEBB_BYTES + FLAGS_AT] ^= 8), Ok(()), "asks for no CQE");
    }
    // The second queue pair's too.
    let run = Run::of("exclusive, a thread an SM, endpoint copied", Place::Ggh);
    let second = run.size.ring as usize * WQEBB_BYTES;
    assert_eq!(run.with(|f| f.sq[second + 40] ^= 1), Err(Wrong::Content { qp: 1, at: 0 }));
}

/// Each byte of a slot, and each one behind its message.
#[test]
fn a_slot_that_differs_from_what_is_pushed_is_found() {
    for (name, place) in [
        ("exclusive push thread", Place::Ggh),
        ("exclusive push thread", Place::Hhh),
        ("exclusive push put_batch of 32 warp", Place::Hhh),
        ("shared push thread", Place::Ggh),
    ] {
        let run = Run::of(name, place);
        assert_eq!(run.check(), Ok(()), "{name}");
        for byte in 0..SLOT_BYTES {
            let found = run.with(|f| f.window[SLOT_BYTES + byte] ^= 1);
            assert_eq!(found, Err(Wrong::Content { qp: 0, at: 1 }), "{name}, byte {byte}");
        }
        let at = run.size.wqes;
        let behind = run.with(|f| f.window[at as usize * SLOT_BYTES] = 1);
        assert_eq!(behind, Err(Wrong::Content { qp: 0, at }), "{name}: one more slot");
    }
}

/// Where nothing is posted, nothing may be there.
#[test]
fn what_a_row_that_posts_nothing_leaves_is_found() {
    let run = Run::of("test_signal thread", Place::Ggh);
    assert_eq!(run.check(), Ok(()));
    let posted = run.with(|f| f.sq[70] = 1);
    assert_eq!(posted, Err(Wrong::Count { qp: 0, found: 1, wanted: 0 }));
    let bell = run.with(|f| f.doorbells[0] = Doorbell { qpn: Qpn(FIRST_QPN), next: 1 }.emit(0));
    assert_eq!(bell, Err(Wrong::Bell { qp: 0, found: 1, on: FIRST_QPN, wanted: 0 }));
    let pending = run.with(|f| f.results[0].status = 5);
    assert!(matches!(pending, Err(Wrong::Call(_))), "{pending:?}");
}

#[test]
fn wqes_out_of_order_are_found_where_their_order_is_known() {
    let message = |bytes: &mut [u8], at: usize, message: u8| {
        bytes[at * WQEBB_BYTES + 22..][..2]
            .copy_from_slice(&(u16::from(message) * 64).to_be_bytes());
        bytes[at * WQEBB_BYTES + 62] ^= message ^ at as u8; // its source's address, roughly
    };
    let run = Run::of("exclusive thread", Place::Ggh);
    assert_eq!(run.with(|f| message(&mut f.sq, 1, 2)), Err(Wrong::Content { qp: 0, at: 1 }));
    // Shared: any order, but each message as often as its callers have it.
    let run = Run::of("shared by a warp", Place::Ggh);
    let (zero, one) = (0..WQEBB_BYTES, WQEBB_BYTES..2 * WQEBB_BYTES);
    let body = 16..WQEBB_BYTES; // behind index and number
    let swapped = run.with(|f| {
        let (first, rest) = f.sq.split_at_mut(one.start);
        first[zero.clone()][body.clone()].swap_with_slice(&mut rest[body.clone()]);
    });
    assert_eq!(swapped, Ok(()));
    let lost = remote_of(&run.found.sq[one.clone()]).unwrap() / MESSAGE_BYTES;
    let twice = run.with(|f| f.sq.copy_within(16..WQEBB_BYTES, one.start + 16));
    assert!(matches!(twice, Err(Wrong::Message { .. })), "{twice:?}, {lost} is not there");
}

#[test]
fn a_stale_record_and_a_stale_doorbell_are_found() {
    for (name, place) in
        [("exclusive thread strict", Place::Hhh), ("shared by all threads", Place::Ggh)]
    {
        let run = Run::of(name, place);
        assert_eq!(run.check(), Ok(()), "{name}");
        let wanted = run.size.wqes as u16;
        let stale = bellpush::wire::doorbell::dbr_word(wanted - 1);
        let record = run.with(|f| f.records[0] = stale);
        assert_eq!(record, Err(Wrong::Record { qp: 0, found: wanted - 1, wanted }), "{name}");
        let emit = |qpn, next| Doorbell { qpn: Qpn(qpn), next }.emit(0);
        let bell = run.with(|f| f.doorbells[0] = emit(FIRST_QPN, wanted - 1));
        let wrong = Wrong::Bell { qp: 0, found: wanted - 1, on: FIRST_QPN, wanted };
        assert_eq!(bell, Err(wrong), "{name}");
        let another = run.with(|f| f.doorbells[0] = emit(FIRST_QPN + 1, wanted));
        assert!(matches!(another, Err(Wrong::Bell { on, .. }) if on == FIRST_QPN + 1), "{name}");
    }
}

#[test]
fn a_slot_with_a_wrong_sequence_or_payload_is_found() {
    for name in ["exclusive in-band 8 B warp", "shared in-band 8 B by all threads"] {
        let run = Run::of(name, Place::Window);
        assert_eq!(run.check(), Ok(()), "{name}");
        let at = SLOT_BYTES + 2 * 16 + 12; // slot 1, line 2
        let found = run.with(|f| f.window[at] = 1);
        assert_eq!(found, Err(Wrong::Sequence { qp: 0, slot: 1, line: 2, found: 1 }), "{name}");
        let payload = run.with(|f| f.window[SLOT_BYTES + 3 * 16] ^= 0x10);
        assert_eq!(payload, Err(Wrong::Content { qp: 0, at: 1 }), "{name}");
        let behind = run.with(|f| f.window[SLOT_BYTES + 4 * 16] = 1);
        assert_eq!(behind, Err(Wrong::Content { qp: 0, at: 1 }), "{name}");
        let wanted = run.size.wqes;
        let erased = run.with(|f| f.window[..SLOT_BYTES].fill(0));
        assert_eq!(erased, Err(Wrong::Count { qp: 0, found: wanted - 1, wanted }), "{name}");
    }
}

#[test]
fn a_slot_with_another_signal_is_found() {
    // The last line of each: of an addition its key and address, of a word that is set its payload.
    for (name, slot, line) in [
        ("exclusive in-band put_signal 8 B thread", 1, 5),
        ("shared in-band put_signal 8 B thread", 1, 5),
        ("exclusive in-band signal add alone thread", 0, 5),
        ("shared in-band signal add alone thread", 0, 5),
        ("exclusive in-band signal set alone thread", 0, 3),
    ] {
        let run = Run::of(name, Place::Window);
        assert_eq!(run.check(), Ok(()), "{name}");
        let lines = slot * SLOT_BYTES..slot * SLOT_BYTES + (line + 1) * 16;
        let end = if line == 5 { 64 } else { STREAM_BYTES };
        let in_stream = |at: usize| at % SLOT_BYTES / 16 * 12 + at % 16 < end;
        let is_data = |at: usize| at % 16 < 12 && at % SLOT_BYTES != FLAGS_AT && in_stream(at);
        for at in lines.filter(|at| is_data(*at)) {
            let found = run.with(|f| f.window[at] ^= 1);
            assert_eq!(found, Err(Wrong::Content { qp: 0, at: slot as u32 }), "{name}: {at}");
        }
        let behind = run.with(|f| f.window[slot * SLOT_BYTES + (line + 1) * 16] = 1);
        assert_eq!(behind, Err(Wrong::Content { qp: 0, at: slot as u32 }), "{name}");
    }
}

#[test]
fn statuses_are_looked_at() {
    let run = Run::of("exclusive, a thread an SM, endpoint by reference", Place::Hhh);
    assert_eq!(run.check(), Ok(()));
    assert_eq!(run.with(|f| f.results[1].status = 4), Err(Wrong::Call(Code::Invalid)));
    assert_eq!(run.with(|f| f.status.code = 2), Err(Wrong::Ended(Code::CqeError)));
    // A kernel of another path is refused by the verb, and that is seen.
    let case = Case { kernel: "bp_post_inband_thread", ..run.case };
    assert_eq!(Run::of_case(case).check(), Err(Wrong::Call(Code::Invalid)));
}
