use super::*;

fn error(text: &str) -> String {
    text.parse::<Script>().unwrap_err().to_string()
}

fn fault(lines: &str) -> String {
    format!("[[fault]]\n{lines}\n")
}

#[test]
fn every_key_is_read() {
    let text = r#"
        seed = 9
        [[fault]]
        on = "wqe"
        action = "fail"
        device = 1
        address = "127.0.0.9"
        qp = 2
        opcode = "atomic"
        syndrome = "remote-access-error"
        nth = 5
        every = 3
        times = 7
        share = "25%"
        after = "1ms"
        for = "2s"
        [[fault]]
        on = "cqe"
        action = "overrun"
        qpn = 0x105
        cq = 4
        completion = "receive"
        [[fault]]
        on = "packet"
        action = "delay"
        delay = "10us"
        direction = "sent"
        packet = "rnr-nak"
        peer = "::1"
        nth = 2
        [[fault]]
        on = "port"
        action = "down"
        after = "1s"
        for = "1s"
        [[fault]]
        on = "qp"
        action = "error"
        after = "3ms"
        [[fault]]
        on = "device"
        action = "fatal"
        after = "4ms"
    "#;
    let script: Script = text.parse().unwrap();
    let all = When { nth: 1, every: 1, times: None, share: 1.0, after_ns: 0, until_ns: u64::MAX };
    let rule = |what, when| Rule { device: None, address: None, what, when };
    let act = WqeAct::Fail(Syndrome::RemoteAccess);
    let first = Rule {
        device: Some(1),
        address: Some("127.0.0.9".parse().unwrap()),
        what: What::Wqe { qp: Which::Nth(2), opcode: Some(Work::Atomic), act },
        when: When {
            nth: 5,
            every: 3,
            times: Some(7),
            share: 0.25,
            after_ns: 1_000_000,
            until_ns: 2_001_000_000,
        },
    };
    let cqe = What::Cqe {
        cq: Some(4),
        qp: Which::Number(0x105),
        kind: Some(Completion::Receive),
        act: CqeAct::Overrun,
    };
    let packet = What::Packet {
        sent: true,
        qp: Which::Any,
        kind: Some(PacketKind::RnrNak),
        peer: Some("::1".parse().unwrap()),
        act: PacketAct::Delay(10_000),
    };
    let once = |after_ns| When { times: Some(1), after_ns, ..all };
    let rules = vec![
        first,
        rule(cqe, all),
        rule(packet, When { nth: 2, every: u64::MAX, ..all }),
        rule(What::Port, When { after_ns: 1_000_000_000, until_ns: 2_000_000_000, ..all }),
        rule(What::Qp(Which::Any), once(3_000_000)),
        rule(What::Device, once(4_000_000)),
    ];
    assert_eq!(script, Script { seed: 9, rules });
    assert!(!script.corrupts());
    assert_eq!([1, 2].map(|devices| script.names_beyond(devices)), [true, false]);
    let corrupt = fault("on = \"packet\"\naction = \"corrupt\"\ndirection = \"sent\"");
    assert!(corrupt.parse::<Script>().unwrap().corrupts());
}

#[test]
fn what_makes_no_sense_says_why_and_where() {
    assert!(error("seed = -1").starts_with("line 1: "), "{}", error("seed = -1"));
    assert!(error("[[fault]]\nwhere = 1").contains("unknown field `where`"));
    assert!(error(&" ".repeat(40_000)).starts_with("a fault script has at most 32768 bytes"));
    assert!(
        error("seed = 1\n[fault]\n").starts_with("line 2: invalid type: map"),
        "{}",
        error("seed = 1\n[fault]\n")
    );
    let lacks = format!("{}{}", fault("on = \"port\"\naction = \"down\""), fault("on = \"wqe\""));
    assert!(
        error(&lacks).starts_with(
            "fault 2: no fault has on = \"wqe\" and action = \"\"; there are wqe: fail,"
        ),
        "{}",
        error(&lacks)
    );
    for (lines, what) in [
        ("on = \"wqe\"\naction = \"fail\"", "a WQE fails with a syndrome"),
        (
            "on = \"wqe\"\naction = \"fail\"\nsyndrome = \"remote-error\"",
            "no syndrome is named \"remote-error\"; there are local-length-error, ",
        ),
        (
            "on = \"wqe\"\naction = \"qp-error\"\nsyndrome = \"remote-access-error\"",
            "on = \"wqe\", action = \"qp-error\" has no use for syndrome",
        ),
        (
            "on = \"wqe\"\naction = \"qp-error\"\nopcode = \"put\"",
            "\"put\" is none of send, write, write-imm, read, atomic, local",
        ),
        ("on = \"wqe\"\naction = \"qp-error\"\nqp = 0", "qp counts from 1,"),
        ("on = \"wqe\"\naction = \"qp-error\"\nqpn = 0x1000000", "qpn has 24 bits"),
        ("on = \"wqe\"\naction = \"qp-error\"\nqp = 1\nqpn = 1", "qp and qpn both name"),
        ("on = \"cqe\"\naction = \"drop\"\ncq = 0", "cq counts from 1,"),
        ("on = \"cqe\"\naction = \"drop\"\nnth = 0", "nth and every count from 1"),
        ("on = \"cqe\"\naction = \"drop\"\ntimes = 0", "times = 0 is never"),
        ("on = \"cqe\"\naction = \"drop\"\nshare = \"2\"", "share = \"2\" is not a percentage"),
        ("on = \"packet\"\naction = \"drop\"", "direction is \"sent\" or \"received\""),
        (
            "on = \"packet\"\naction = \"drop\"\ndirection = \"sent\"\nqp = 1",
            "a packet that is sent names its destination alone: qpn, not qp",
        ),
        (
            "on = \"packet\"\naction = \"delay\"\ndirection = \"sent\"\ndelay = \"1h\"",
            "delay = \"1h\" is not a time such as",
        ),
        (
            "on = \"port\"\naction = \"down\"\nafter = \"7200s\"",
            "after = \"7200s\" is not a time such as 500ns, 10us, 2.5ms or 1s, up to 3600s",
        ),
        (
            "on = \"device\"\naction = \"fatal\"",
            "on = \"device\" needs after; for one at a WQE take on = \"wqe\", action = \"device-fatal\"",
        ),
        ("action = \"fatal\"", "it lacks on"),
        ("on = \"cqe\"\naction = \"drop\"\nshare = \"0%\"", "share = 0% is never"),
        ("on = \"cqe\"\naction = \"drop\"\nfor = \"0s\"", "for = 0 is never"),
        ("on = \"device\"\naction = \"fatal\"\nafter = \"1s\"\nnth = 2", "has no use for nth"),
        ("on = \"port\"\naction = \"down\"\nqp = 1", "has no use for qp"),
    ] {
        let error = error(&fault(lines));
        assert!(error.starts_with("fault 1: ") && error.contains(what), "{lines}: {error}");
    }
}

#[test]
fn addresses_may_stand_as_gids_show_them() {
    let script = |before: &str| {
        let named = format!("address = \"{before}127.0.0.2\"\npeer = \"{before}127.0.0.3\"");
        let lines = format!("on = \"packet\"\naction = \"drop\"\ndirection = \"sent\"\n{named}");
        fault(&lines).parse::<Script>().unwrap()
    };
    assert_eq!(script("::ffff:"), script(""));
}

#[test]
fn every_syndrome_but_a_flush_has_a_name() {
    let named = |syndrome| SYNDROMES.iter().any(|&(_, known)| known == syndrome);
    let unnamed: Vec<_> = Syndrome::ALL.into_iter().filter(|&s| !named(s)).collect();
    assert_eq!(unnamed, [Syndrome::WrFlush]);
}
