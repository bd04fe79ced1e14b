//! Masked atomics on memory that has whole ones of 8 bytes.

use bellpush_mem::{Dma, MemError};
use bellpush_wire::Iova;
use bellpush_wire::wqe::{Kind, Masks, Operands};

/// How often another's change may come between.
const TRIES: u32 = 1 << 16;

/// The aligned 8 bytes that an operand at an address lies in; `None` where it crosses them.
pub(crate) fn word(addr: Iova, masks: &Masks) -> Option<Iova> {
    // The size came in a packet.
    let fits = matches!(masks.bytes, 4 | 8) && addr.0.is_multiple_of(masks.bytes.into());
    fits.then_some(Iova(addr.0 & !7))
}

/// Carries a masked atomic out on the operand at `addr`, whose [`word`] lies at `offset`; its old
/// value.
///
/// # Errors
/// Those of the memory; [`MemError::Contended`] when others never let it through.
pub(crate) fn execute(
    mem: &dyn Dma,
    offset: usize,
    addr: Iova,
    kind: Kind,
    (operands, masks): (Operands, &Masks),
) -> Result<u64, MemError> {
    // Where the operand lies in the word, of whichever byte order.
    let half = (addr.0 & 4 != 0) != cfg!(target_endian = "big");
    let shift = if masks.bytes == 4 && half { 32 } else { 0 };
    let mask = if masks.bytes == 4 { 0xffff_ffffu64 << shift } else { u64::MAX };
    let mut old = mem.fetch_add(offset, 0)?;
    for _ in 0..TRIES {
        let operand = (old & mask) >> shift;
        let new = old & !mask | masks.apply(kind, operands, operand) << shift;
        if new == old {
            return Ok(operand);
        }
        match mem.compare_swap(offset, old, new)? {
            found if found == old => return Ok(operand),
            found => old = found,
        }
    }
    Err(MemError::Contended { offset })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bellpush_broken_mem::Copied;
    use bellpush_mem::{HostMem, View};

    #[test]
    fn four_bytes_change_only_their_half_of_the_word() {
        let mem = HostMem::alloc(4096).unwrap();
        let view = View::new(&mem, 0, 64).unwrap();
        view.write(0, &[0x11; 16]).unwrap();
        let masks = Masks { bytes: 4, change: 0, compare: 0 };
        let add = (Operands { swap_add: 0xeeee_eeef, compare: 0 }, &masks);
        for (addr, wanted) in [(8u64, [0, 0, 0, 0, 0x11, 0x11, 0x11, 0x11]), (12, [0; 8])] {
            let addr = Iova(0x1000 + addr);
            assert_eq!(word(addr, &masks), Some(Iova(0x1008)));
            let old = execute(&view, 8, addr, Kind::FetchAdd, add).unwrap();
            assert_eq!(old, 0x1111_1111);
            let mut got = [0; 8];
            view.read(8, &mut got).unwrap();
            assert_eq!(got, wanted);
        }
        let mut before = [0; 8];
        view.read(0, &mut before).unwrap();
        assert_eq!(before, [0x11; 8]);
        assert_eq!(word(Iova(2), &masks), None);
        assert_eq!(word(Iova(4), &Masks { bytes: 8, ..masks }), None);
    }

    /// Two flags in one word of a GPU's memory, one the peer's atomic's and one its own kernel's, as DeepEP has them.
    #[test]
    fn a_neighbour_keeps_what_it_stores_meanwhile() {
        for (operand, neighbour) in [(0, 4), (4, 0)] {
            let mem = HostMem::alloc(4096).unwrap();
            let view = View::new(&mem, 0, 64).unwrap();
            let stores = move |view: &View| view.write(8 + neighbour, &[7; 4]).unwrap();
            let mem = Copied::new(view.clone(), Box::new(stores));
            let masks = Masks { bytes: 4, change: 0, compare: 0 };
            let add = (Operands { swap_add: 0x0505_0505, compare: 0 }, &masks);
            let old = execute(&mem, 8, Iova(0x1008 + operand), Kind::FetchAdd, add).unwrap();
            let read = |offset| {
                let mut got = [0; 4];
                view.read(offset, &mut got).unwrap();
                got
            };
            assert_eq!((old, read(8 + operand as usize), read(8 + neighbour)), (0, [5; 4], [7; 4]));
        }
    }

    #[test]
    fn words_that_can_only_be_copied_are_changed_whole() {
        let mem = HostMem::alloc(4096).unwrap();
        let view = View::new(&mem, 0, 64).unwrap();
        let mem = Copied::new(view, Box::new(|_| ()));
        assert_eq!(mem.fetch_add(8, 0xffff_ffff).unwrap(), 0);
        assert_eq!(mem.fetch_add(8, 1).unwrap(), 0xffff_ffff, "both halves change");
        assert_eq!(mem.compare_swap(8, 5, 9).unwrap(), 1 << 32);
        assert_eq!(mem.compare_swap(8, 1 << 32, 9).unwrap(), 1 << 32);
        assert_eq!(mem.fetch_add(8, 0).unwrap(), 9);
    }

    #[test]
    fn additions_of_many_are_all_there() {
        let mem = HostMem::alloc(4096).unwrap();
        let view = View::new(&mem, 0, 8).unwrap();
        let masks = Masks { bytes: 8, change: 0, compare: 0 };
        std::thread::scope(|s| {
            for _ in 0..2 {
                s.spawn(|| {
                    for _ in 0..2000 {
                        let add = (Operands { swap_add: 3, compare: 0 }, &masks);
                        execute(&view, 0, Iova(0), Kind::FetchAdd, add).unwrap();
                    }
                });
            }
        });
        let mut got = [0; 8];
        view.read(0, &mut got).unwrap();
        assert_eq!(u64::from_ne_bytes(got), 12000);
    }
}
