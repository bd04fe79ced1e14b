//! WQEs, CQEs and records of real NICs and drivers.

use super::*;

#[test]
fn opcodes_are_those_of_linux() {
    for (code, name) in [
        (0x20, "SET_PSV"),
        (0x21, "GET_PSV"),
        (0x22, "CHECK_PSV"),
        (0x23, "DUMP"),
        (0x26, "RGET_PSV"),
        (0x27, "RCHECK_PSV"),
    ] {
        let all = wqe(
            &format!("000000{code:02x}0056780100000008{}", "00".repeat(52)),
            &Options::default(),
        );
        assert_eq!(wrong(&all), "", "{name}");
        assert!(all[0].summary.starts_with(&format!("{name}, ")), "{}", all[0].summary);
    }
    // 0x1e is a CQE's opcode, 0x24 nobody's.
    for code in [0x1e, 0x24] {
        let all = wqe(
            &format!("000000{code:02x}0056780100000008{}", "00".repeat(52)),
            &Options::default(),
        );
        assert!(wrong(&all).contains("is not known"), "{code:#x}");
    }
}

#[test]
fn a_signature_error_is_explained() {
    let mut entry = [0; 64];
    (entry[0x20], entry[0x25], entry[0x2f], entry[63]) = (0x20, 7, 64, 0xc1);
    let all = items(Kind::Cqe, &entry, &Options::default());
    assert_eq!(wrong(&all), "");
    assert_eq!(all[0].summary, "SIG_ERR, guard tag, mkey 0x70000, at byte 64 of the transfer");
    let ring = Options { index: Some(0), queue_log: Some(4), ..Options::default() };
    assert!(wrong(&items(Kind::Cqe, &entry, &ring)).contains("owner is 1"));
    entry[63] = 0xb0;
    assert!(wrong(&items(Kind::Cqe, &entry, &ring)).contains("CQE opcode 0xb is not known"));
}
