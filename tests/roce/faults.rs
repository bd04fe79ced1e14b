//! What loss, duplication, reordering and corruption change: time, and nothing else.
//!
//! The link is modelled: 100 Gb/s, 2 µs one way, and the engines' clock is the test's. The table
//! that is printed counts modelled time, so that it repeats.

use std::time::Instant;

use crate::queue_pairs::{Buf, Pair, attr, pattern};
use bellpush::nic::soft::DropReason;
use bellpush::nic::{Access, Change, QpAttr};
use bellpush::wire::cqe::Cqe;
use bellpush::wire::wqe::{Opcode, Operands, SendWr};

/// Messages on their way at most, each with a slot of its own in both ends' memory.
const SLOTS: u64 = 32;
const SLOT_BYTES: usize = 64 << 10;
/// Loss of the table's rows, in percent; with duplication and reordering from the second on.
const LOSS: [&str; 4] = ["0", "0.1", "1", "5"];

fn faults(loss: &str) -> String {
    let hurt = if loss == "0" { "" } else { ",dup=0.1%,reorder=1%,corrupt=0.01%" };
    format!("loss={loss}%{hurt},delay=2us,rate=12.5GB/s,seed=7")
}

fn deep() -> QpAttr {
    QpAttr { sq_blocks: 64, rq_wqes: 64, send_cqes: 64, recv_cqes: 64, ..attr() }
}

struct Run {
    p: Pair,
    a: Buf,
    b: Buf,
    /// What messages are made of.
    block: Vec<u8>,
}

impl Run {
    fn new(loss: &str) -> Self {
        // A local ACK timeout of 1 ms.
        let with = Change { timeout: Some(8), ..Change::default() };
        let p = Pair::on_packets(&faults(loss), &deep(), &deep(), &with);
        let bytes = SLOTS as usize * SLOT_BYTES;
        let a = Buf::new(&p.nics[0], bytes, 0x1000_0000, Access::ALL);
        let b = Buf::new(&p.nics[1], bytes, 0x2000_0000, Access::ALL);
        Self { p, a, b, block: pattern(2 * SLOT_BYTES, 5) }
    }

    /// Length and bytes of message `i`.
    fn message(&self, i: u64) -> &[u8] {
        let bytes = match i % 4 {
            0 => SLOT_BYTES,
            1 => SLOT_BYTES - 1 - (i % 997) as usize,
            2 => 4096 * (1 + i as usize % 9),
            _ => 1 + (i % 5000) as usize,
        };
        &self.block[(i * 37) as usize % SLOT_BYTES..][..bytes]
    }

    fn post(&mut self, opcode: Opcode, i: u64) -> u64 {
        let at = i % SLOTS * SLOT_BYTES as u64;
        let data = self.message(i).to_vec();
        let n = data.len() as u32;
        let source = if opcode == Opcode::RdmaRead { &self.b } else { &self.a };
        source.put(at as usize, &data);
        if opcode == Opcode::Send {
            self.p.b.host.rq.post(&[self.b.sge(at, SLOT_BYTES as u32)]).unwrap();
        }
        let payload = [self.a.data(at, n)];
        let wr = SendWr::new(opcode).to(self.b.at(at), self.b.mr.rkey).payload(&payload);
        self.p.a.host.sq.post(&wr).unwrap();
        n.into()
    }

    fn check(&self, opcode: Opcode, i: u64) {
        let at = (i % SLOTS) as usize * SLOT_BYTES;
        let target = if opcode == Opcode::RdmaRead { &self.a } else { &self.b };
        let data = self.message(i);
        assert!(target.get(at, data.len()) == data, "{opcode:?} {i} is damaged");
    }

    /// Moves `bytes` bytes, and returns the modelled time it took.
    fn transfer(&mut self, opcode: Opcode, bytes: u64) -> u64 {
        let (mut posted, mut done, mut received, mut moved) = (0, 0, 0, 0);
        let start = self.p.now_ns;
        while moved < bytes || done < posted {
            while moved < bytes && posted - done < SLOTS {
                moved += self.post(opcode, posted);
                posted += 1;
            }
            self.p.a.host.sq.ring().unwrap();
            let mut cqes: Vec<Cqe> = Vec::new();
            let came = self.p.run_until(10_000_000_000, |p| {
                cqes = p.sent();
                !cqes.is_empty()
            });
            assert!(came, "{opcode:?} {done} does not complete");
            for cqe in cqes {
                assert!(!cqe.opcode.is_error(), "{cqe:?}");
                if opcode == Opcode::Send {
                    // Delivered before it is complete, once, in order.
                    while received <= done {
                        let cqe = self.p.b.host.poll_recv().unwrap().expect("it was acknowledged");
                        assert_eq!(cqe.byte_cnt as usize, self.message(received).len());
                        received += 1;
                    }
                }
                self.check(opcode, done);
                done += 1;
            }
        }
        assert!(self.p.received().is_empty(), "something was delivered twice");
        self.p.now_ns - start
    }

    /// Adds 1 so many times, and returns the modelled time it took.
    fn atomics(&mut self, count: u64) -> u64 {
        self.b.put(0, &0u64.to_ne_bytes());
        let (mut posted, mut done) = (0, 0);
        let start = self.p.now_ns;
        while done < count {
            while posted < count && posted - done < SLOTS {
                let payload = [self.a.data(posted % SLOTS * 8, 8)];
                let atomic = Some(Operands { swap_add: 1, compare: 0 });
                let wr = SendWr { atomic, ..SendWr::new(Opcode::AtomicFa) };
                let wr = wr.to(self.b.at(0), self.b.mr.rkey).payload(&payload);
                self.p.a.host.sq.post(&wr).unwrap();
                posted += 1;
            }
            self.p.a.host.sq.ring().unwrap();
            let mut cqes: Vec<Cqe> = Vec::new();
            let came = self.p.run_until(10_000_000_000, |p| {
                cqes = p.sent();
                !cqes.is_empty()
            });
            assert!(came, "atomic {done} does not complete");
            for cqe in cqes {
                assert!(!cqe.opcode.is_error(), "{cqe:?}");
                // Each is carried out once: the old values count.
                let old = self.a.get((done % SLOTS * 8) as usize, 8);
                assert_eq!(old, done.to_ne_bytes(), "atomic {done}");
                done += 1;
            }
        }
        assert_eq!(self.b.get(0, 8), count.to_ne_bytes());
        self.p.now_ns - start
    }
}

/// Runs all of it at every loss, and prints the table.
fn table(bytes: u64, atomics: u64) {
    let kinds = [Opcode::RdmaWrite, Opcode::Send, Opcode::RdmaRead];
    let mut base = [0.0; 4];
    println!("\n{bytes} bytes of each kind and {atomics} atomics; link 100 Gb/s, 2 us one way");
    println!("| loss % | WRITE GB/s | SEND GB/s | READ GB/s | atomics /ms | slower by | real s |");
    println!("|---|---|---|---|---|---|---|");
    for loss in LOSS {
        let wall = Instant::now();
        let mut rates = [0.0; 4];
        let mut run = Run::new(loss);
        for (i, opcode) in kinds.into_iter().enumerate() {
            rates[i] = bytes as f64 / run.transfer(opcode, bytes) as f64;
        }
        rates[3] = atomics as f64 * 1e6 / run.atomics(atomics) as f64;
        if loss == "0" {
            base = rates;
        }
        let slower: Vec<String> =
            base.iter().zip(rates).map(|(b, r)| format!("{:.1}", b / r)).collect();
        println!(
            "| {loss} | {:.2} | {:.2} | {:.2} | {:.0} | {} | {:.1} |",
            rates[0],
            rates[1],
            rates[2],
            rates[3],
            slower.join(" "),
            wall.elapsed().as_secs_f64()
        );
        let counters = run.p.nics.each_ref().map(|nic| nic.counters());
        println!(
            "  sent again {} + {}, timeouts {} + {}, wrong ICRC {} + {}",
            counters[0].retransmitted,
            counters[1].retransmitted,
            counters[0].timeouts,
            counters[1].timeouts,
            counters[0].dropped(DropReason::Icrc),
            counters[1].dropped(DropReason::Icrc)
        );
        if loss != "0" {
            assert!(counters[0].retransmitted > 0, "the link does not hurt");
            assert!(counters[1].dropped(DropReason::Icrc) > 0, "nothing was corrupted");
        }
    }
}

#[test]
fn loss_duplication_reordering_and_corruption_change_only_the_time() {
    table(1_000_000_000, 1_000_000);
}

/// The whole amount: 10 GB and 10 M atomics at each loss.
#[test]
#[ignore = "takes minutes, in release: ./x test --long runs it"]
fn ten_gigabytes_and_ten_million_atomics_at_every_loss() {
    table(10_000_000_000, 10_000_000);
}
