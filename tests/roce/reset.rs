//! Queue pairs that are reset and connected again while packets of the connection before are on their way.

use crate::queue_pairs::{Pair, attr, connect, pattern, syndromes};
use bellpush::nic::{Change, Mtu, QueuePair};
use bellpush::wire::wqe::{Opcode, SendWr};

const MS: u64 = 1_000_000;
/// How long a packet is on its way.
const DELAY: u64 = MS;

fn write(p: &mut Pair, at: u64, bytes: &[u8]) {
    p.a.buf.put(at as usize, bytes);
    let payload = [p.a.buf.data(at, bytes.len() as u32)];
    let wr = SendWr::new(Opcode::RdmaWrite).to(p.b.buf.at(at), p.b.buf.mr.rkey).payload(&payload);
    p.a.host.send(&wr).unwrap();
}

/// WRITEs that arrive after both ends have begun again, with the same queue pair numbers and keys, change nothing, and
/// neither do their acknowledgements: their PSNs are not the new connection's.
#[test]
fn late_packets_of_the_connection_before_are_dropped() {
    let with = Change { path_mtu: Mtu::new(256), ..Change::default() };
    let mut p = Pair::on_packets("delay=1ms", &attr(), &attr(), &with);
    for round in 0..8u64 {
        write(&mut p, 0, &pattern(1000, 2 * round));
        p.run_for(DELAY / 2); // sent, and not arrived
        let before = [&p.a, &p.b].map(|end| end.qp.address());
        for end in [&mut p.a, &mut p.b] {
            end.qp.reset().unwrap();
            end.host.begin_again(&*end.qp);
        }
        for (end, before) in [&p.a, &p.b].into_iter().zip(before) {
            let now = end.qp.address();
            assert_eq!((now.nic, now.qpn), (before.nic, before.qpn));
            assert!(now.psn != before.psn);
        }
        connect(&p.a.qp, &p.b.qp, &with);
        let came = |p: &Pair| p.nics[1].counters().rx_packets;
        let (had, old) = (p.b.buf.get(0, 1000), came(&p));
        p.run_for(2 * DELAY);
        assert!(came(&p) >= old + 4, "round {round}: they have come");
        assert!(p.b.buf.get(0, 1000) == had, "round {round}: nothing is written");
        // The new connection works, also where the old one's are answered.
        let sent = pattern(1000, 2 * round + 1);
        write(&mut p, 0, &sent);
        p.run_for(4 * DELAY);
        assert_eq!(syndromes(&p.sent()), [None], "round {round}");
        assert!(p.b.buf.get(0, 1000) == sent, "round {round}");
    }
}
