//! WRITEs that an adversary keeps from memory: what brings them about.

use crate::adversary::{LONG_NS, ROUNDS, SEEDS, completion, pair, quiet, relaxed, silent, write};
use crate::queue_pairs::{attr, connect, make_qp, pattern};
use bellpush::nic::Change;
use bellpush::nic::queue::HostQp;
use bellpush::wire::wqe::{Opcode, Operands, SendWr};

#[test]
fn a_read_of_nothing_comes_behind_the_writes_before_it() {
    for seed in SEEDS {
        let mut p = pair(seed, ",writes");
        let to = relaxed(&p.nics[1]);
        for round in 0..ROUNDS {
            let data = pattern(1000, round);
            p.a.buf.put(0, &data);
            let payload = [p.a.buf.data(0, 1000)];
            p.a.host.send(&quiet(write(&to, 0).payload(&payload))).unwrap();
            let wr = SendWr::new(Opcode::RdmaRead).to(to.at(0), to.mr.rkey);
            p.a.host.send(&wr).unwrap();
            // Its completion is the WRITE's too.
            completion(&mut p);
            assert_eq!(to.get(0, 1000), data, "seed {seed}, round {round}");
        }
        silent(&p);
    }
}

/// Of a WRITE of another queue pair, which it passes elsewhere.
#[test]
fn an_atomic_comes_behind_what_is_on_its_way_to_its_word() {
    for seed in SEEDS {
        let mut p = pair(seed, ",writes,atomics");
        let (a, _a) = make_qp(&p.nics[0], &attr());
        let (b, _b) = make_qp(&p.nics[1], &attr());
        connect(&a, &b, &Change::default());
        let mut second = HostQp::new(&*a);
        let to = relaxed(&p.nics[1]);
        for round in 0..ROUNDS {
            p.a.buf.put(0, &pattern(1000, round));
            let payload = [p.a.buf.data(0, 1000)];
            p.a.host.send(&write(&to, 0).payload(&payload)).unwrap();
            p.step();
            let old = [p.a.buf.data(4000, 8)];
            let ops = Operands { swap_add: 1, compare: 0 };
            let wr = SendWr { atomic: Some(ops), ..SendWr::new(Opcode::AtomicFa) };
            second.send(&wr.to(to.at(8), to.mr.rkey).payload(&old)).unwrap();
            assert!(p.run_until(LONG_NS, |_| second.poll_send().unwrap().is_some()));
            completion(&mut p);
        }
        silent(&p);
    }
}
