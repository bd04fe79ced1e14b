use super::*;

#[test]
fn an_engine_that_never_stepped_has_no_age() {
    let script: Script =
        "[[fault]]\non = \"device\"\naction = \"fatal\"\nafter = \"1ms\"\n".parse().unwrap();
    let faults = ScriptedFaults::new(&script, 0, None);
    assert_eq!(faults.age_ns(), 0);
    faults.begin_step(5_000_000);
    assert!(!faults.ends_device(), "time counts from the first step");
    faults.begin_step(6_000_000);
    assert!(faults.ends_device());
    faults.begin_step(7_000_000);
    assert!(!faults.ends_device(), "once");
}

#[test]
fn receives_whose_cqe_was_dropped_are_counted_by_queue_pair() {
    let script: Script =
        "[[fault]]\non = \"cqe\"\naction = \"drop\"\nnth = 2\nevery = 1\ntimes = 5\n"
            .parse()
            .unwrap();
    let faults = ScriptedFaults::new(&script, 0, None);
    let sent = |qpn| Cqe::requester(Qpn(qpn), 0, 0, 8);
    let came = |qpn| Cqe { opcode: CqeOpcode::RespWrImm, imm: 7, ..sent(qpn) };
    let failed = |qpn| Cqe { opcode: CqeOpcode::RespErr, ..sent(qpn) };
    let lost = || [3, 4].map(|qpn| faults.lost_receives(Qpn(qpn)));
    assert_eq!(faults.on_cqe(1, &came(3)), None);
    assert_eq!(lost(), [0, 0], "the first was not struck");
    for (cqe, by_then) in [
        (came(3), [1, 0]),
        (sent(3), [1, 0]),
        (failed(4), [1, 0]),
        (came(4), [1, 1]),
        (came(3), [2, 1]),
    ] {
        assert_eq!(faults.on_cqe(1, &cqe), Some(CqeAct::Drop));
        assert_eq!(lost(), by_then, "{cqe:?}");
    }
    assert_eq!((faults.on_cqe(1, &came(3)), lost()), (None, [2, 1]), "no more than it says");
}

#[test]
fn a_receive_without_room_for_its_cqe_is_not_counted_as_dropped() {
    let script: Script =
        "[[fault]]\non = \"cqe\"\naction = \"overrun\"\nnth = 1\n".parse().unwrap();
    let faults = ScriptedFaults::new(&script, 0, None);
    let came = Cqe { opcode: CqeOpcode::RespWrImm, ..Cqe::requester(Qpn(3), 0, 0, 8) };
    assert_eq!(faults.on_cqe(1, &came), Some(CqeAct::Overrun));
    assert_eq!(faults.lost_receives(Qpn(3)), 0);
}
