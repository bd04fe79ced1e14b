//! What is compared of queue pairs that share their peers, in two recordings of one program.

use crate::dc::Dc;
use crate::play::{Nics, PLAIN, nics, read};
use crate::queue_pairs::syndromes;
use crate::xrc::Xrc;
use bellpush::nic::soft::record;
use bellpush::wire::wqe::{Opcode, SendWr};

/// Two runs part, of which the second's third message is shorter: what the first queue pair of one NIC did in each.
fn parts(which: usize, run: impl Fn(Nics, u32)) -> [String; 2] {
    let of = |third| {
        let dir = tempfile::tempdir().unwrap();
        let (nics, files) = nics(dir.path(), PLAIN);
        run(nics, third);
        read(&files[which])
    };
    assert_eq!(record::compare([of(200), of(200)]).unwrap(), None);
    let found = record::compare([of(200), of(199)]).unwrap().expect("a message is shorter");
    assert_eq!(found.qp, 0);
    found.did.map(|did| did.unwrap().0)
}

#[test]
fn a_receiving_end_of_xrc_is_compared() {
    let [one, other] = parts(1, |nics, third| {
        let mut x = Xrc::on(nics);
        let mut to = x.receiver(1);
        for bytes in [100, 300, third, 50] {
            to.post(64, 4096);
            let payload = [x.buf.data(0, bytes)];
            let cqes = x.post(&SendWr::new(Opcode::Send).payload(&payload), &to);
            assert_eq!(syndromes(&cqes), [None]);
        }
    });
    assert!(one.contains("RespSend") && one.contains("200 bytes"), "{one}");
    assert!(other.contains("RespSend") && other.contains("199 bytes"), "{other}");
}

#[test]
fn an_initiator_of_dynamic_connections_is_compared() {
    let [one, other] = parts(0, |nics, third| {
        let mut dc = Dc::on(nics);
        let (at, rkey) = (dc.to[0].buf.at(0), dc.to[0].buf.mr.rkey);
        for bytes in [100, 300, third, 50] {
            let payload = [dc.buf.data(0, bytes)];
            let wr = SendWr::new(Opcode::RdmaWrite).to(at, rkey).payload(&payload);
            assert_eq!(dc.send(0, 0, &wr), [None]);
        }
    });
    assert!(one.contains("WriteOnly") && one.contains("200 bytes"), "{one}");
    assert!(other.contains("WriteOnly") && other.contains("199 bytes"), "{other}");
}
