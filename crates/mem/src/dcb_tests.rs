use std::process::Command;
use std::thread;

use super::*;

/// `struct ieee_ets`: each priority's traffic class, all else 0.
fn ets(queues: [u8; 8]) -> Vec<u8> {
    let mut bytes = vec![0; 59];
    bytes[PRIO_TC..PRIO_TC + 8].copy_from_slice(&queues);
    bytes
}

/// `struct ieee_pfc`.
fn pfc(bits: u8) -> Vec<u8> {
    let mut bytes = vec![0; 136];
    (bytes[0], bytes[1]) = (8, bits);
    bytes
}

/// An entry of a table: `struct dcb_app`.
fn app(selector: u8, protocol: u16, priority: u8) -> Vec<u8> {
    attribute(APP, &[&[selector, priority][..], &protocol.to_ne_bytes()].concat())
}

/// The system's answer with these attributes.
fn answered(command: u8, attributes: &[Vec<u8>]) -> Vec<u8> {
    message(command, &[attribute(IFNAME, b"eth0\0"), attributes.concat()].concat())
}

/// An answer of mlx5: PFC of priority 3, DSCP 26 as priority 3, 0 as 0, and an Ethertype.
fn usual() -> Vec<u8> {
    let table = [app(DSCP, 26, 3), app(1, 0x8915, 5), app(DSCP, 0, 0), app(DSCP, 26, 1)].concat();
    let ieee = [
        attribute(ETS, &ets([1, 0, 2, 3, 4, 5, 6, 7])),
        attribute(7, &[0; 64]), // of a kind that is not looked at
        attribute(PFC, &pfc(1 << 3)),
        attribute(APP_TABLE | 0x8000, &table), // with the flag of a nest
    ];
    answered(IEEE, &[attribute(IEEE_NEST, &ieee.concat()), attribute(DCBX, &[0x09])])
}

#[test]
fn an_answer_says_pfc_queues_and_dscps() {
    let dcb = answer(&usual()).unwrap();
    let dscp = BTreeMap::from([(0, 0), (26, 3)]);
    let queues = Some([1, 0, 2, 3, 4, 5, 6, 7]);
    let all = Dcb { dcbx: Some(9), pfc: Some(8), queues, dscp: Some(dscp), odd_dscps: 0 };
    assert_eq!(dcb, all);
    // What a driver does not tell is not known, an empty table is.
    let bare = answered(IEEE, &[attribute(IEEE_NEST, &attribute(APP_TABLE, &[]))]);
    let none = Dcb { dscp: Some(BTreeMap::new()), ..Dcb::default() };
    assert_eq!(answer(&bare).unwrap(), none);
}

/// An entry that is none takes nothing from the others, and is counted.
#[test]
fn an_odd_entry_is_left_out() {
    let table = |entries: &[Vec<u8>]| {
        let table = attribute(APP_TABLE, &entries.concat());
        let ieee = [attribute(PFC, &pfc(1 << 3)), table].concat();
        answer(&answered(IEEE, &[attribute(IEEE_NEST, &ieee)])).unwrap()
    };
    let (right, dscp) = (app(DSCP, 26, 3), BTreeMap::from([(26, 3)]));
    let wanted = |odd_dscps| Dcb { odd_dscps, dscp: Some(dscp.clone()), ..table(&[]) };
    // A DSCP of 7 bits, one that is another's in its lower byte, a priority of 4 bits.
    let odd =
        [app(DSCP, 64, 0), app(DSCP, 0x100 | 26, 7), app(DSCP, 26, 8), app(DSCP, 0xffff, 255)];
    for one in &odd {
        assert_eq!(table(&[one.clone(), right.clone()]), wanted(1));
        assert_eq!(table(&[right.clone(), one.clone()]), wanted(1));
    }
    assert_eq!(table(&[&odd[..], &[right]].concat()), wanted(4));
    // Entries of other selectors are not looked at.
    assert_eq!(table(&[app(1, 0x8915, 9)]), table(&[]));
    assert_eq!(table(&odd).dscp, Some(BTreeMap::new()));
}

#[test]
fn an_answer_that_is_none_is_refused() {
    let nested = |attribute: Vec<u8>| answered(IEEE, &[super::attribute(IEEE_NEST, &attribute)]);
    let mut long = usual();
    long[MESSAGE..MESSAGE + 2].copy_from_slice(&u16::MAX.to_ne_bytes());
    let mut still = usual();
    still[MESSAGE..MESSAGE + 2].copy_from_slice(&0_u16.to_ne_bytes());
    for (what, bytes) in [
        ("without the nest", answered(IEEE, &[attribute(DCBX, &[1])])),
        ("half an entry", nested(attribute(APP_TABLE, &attribute(APP, &[DSCP, 0])))),
        ("half a PFC", nested(attribute(PFC, &[8]))),
        ("half an ETS", nested(attribute(ETS, &ets([0; 8])[..PRIO_TC + 7]))),
        ("a ninth queue", nested(attribute(ETS, &ets([8; 8])))),
        ("an attribute behind the end", long),
        ("an attribute of no bytes", still),
        ("nothing", Vec::new()),
    ] {
        let told = answer(&bytes).map_err(|e| e.kind());
        assert_eq!(told, Err(ErrorKind::InvalidData), "{what}");
    }
}

/// No prefix of an answer, and no answer with a byte changed, does more than be refused.
#[test]
fn any_bytes_are_read_or_refused() {
    let usual = usual();
    for end in 0..usual.len() {
        let _ = answer(&usual[..end]);
        for byte in [0, 1, 3, 4, 0x7f, 0xff] {
            let mut changed = usual.clone();
            changed[end] = byte;
            if let Ok(Dcb { dscp: Some(dscp), queues, .. }) = answer(&changed) {
                assert!(dscp.iter().all(|(dscp, priority)| *dscp < 64 && *priority < 8));
                assert!(queues.is_none_or(|all| all.iter().all(|queue| *queue < 8)));
            }
        }
    }
}

#[test]
fn pfc_of_cee_counts_where_it_is_on() {
    let config = |priorities: u16| {
        let each = (0..priorities).map(|n| attribute(PRIORITY_0 + n, &[u8::from(n == 3)]));
        answered(CEE_PFC, &[attribute(PFC_CONFIG, &each.collect::<Vec<_>>().concat())])
    };
    let state = |on: u8| answered(CEE_PFC_STATE, &[attribute(PFC_STATE, &[on])]);
    assert_eq!(cee_pfc(&config(8), None), Some(1 << 3));
    assert_eq!(cee_pfc(&config(8), Some(&state(1))), Some(1 << 3));
    assert_eq!(cee_pfc(&config(8), Some(&state(0))), Some(0));
    assert_eq!(cee_pfc(&config(7), None), None, "a priority is missing");
    assert_eq!(cee_pfc(&[], Some(&[])), None);
}

/// What is not to the question is not taken for its answer; an error is the system's.
#[test]
fn an_answer_is_to_its_question() {
    let usual = usual();
    assert_eq!(taken(&usual, IEEE).unwrap().unwrap(), usual);
    assert!(taken(&usual, CEE_PFC).is_none(), "of another question");
    assert!(taken(&usual[..usual.len() - 1], IEEE).is_none(), "cut off");
    assert!(taken(&[], IEEE).is_none());
    let error = |code: i32| {
        let mut bytes = message(IEEE, &[0; 16]);
        bytes[4..6].copy_from_slice(&ERROR.to_ne_bytes());
        bytes[HEADER..HEADER + 4].copy_from_slice(&code.to_ne_bytes());
        taken(&bytes, IEEE).unwrap().unwrap_err()
    };
    assert_eq!(error(-libc::EOPNOTSUPP).raw_os_error(), Some(libc::EOPNOTSUPP));
    for code in [0, 1, i32::MIN, i32::MAX] {
        assert_eq!(error(code).kind(), ErrorKind::InvalidData, "{code}");
    }
}

#[test]
fn an_interface_that_is_not_there_is_an_error() {
    for name in ["nobody0", "", "a name that is much too long", "a\0b"] {
        let error = ask(name).unwrap_err();
        assert!(
            matches!(error.raw_os_error(), Some(libc::ENODEV | libc::EINVAL)),
            "{name:?}: {error}"
        );
    }
    let error = ask("lo").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP), "it has no driver: {error}");
}

/// Interfaces in a network namespace of this thread's own: their drivers know no priorities.
#[test]
fn the_system_answers_without_privilege() {
    let in_own = thread::spawn(|| {
        // SAFETY: of this thread alone, which ends with the test.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            return println!("SKIPPED: no right to make a network namespace");
        }
        for kind in ["veth", "dummy"] {
            let made = Command::new("ip").args(["link", "add", kind, "type", kind]).status();
            if !made.is_ok_and(|status| status.success()) {
                println!("SKIPPED: no `ip`, or no interfaces of type {kind}");
                continue;
            }
            let error = ask(kind).expect_err("they have none");
            assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP), "{kind}: {error}");
        }
    });
    in_own.join().unwrap();
}
