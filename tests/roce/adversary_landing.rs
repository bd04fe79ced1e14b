//! WRITEs that an adversary keeps from memory: what brings them about.

use crate::adversary::{ROUNDS, SEEDS, completion, pair, quiet, relaxed, silent, write};
use crate::queue_pairs::pattern;
use bellpush::wire::wqe::{Opcode, SendWr};

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
