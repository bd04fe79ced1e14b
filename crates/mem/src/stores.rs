//! Stores that fault because their page cannot be written, carried out at another address of its memory.
//!
//! A page that the program stores to may be made read-only, to learn of the store when it happens. It is then
//! carried out through another mapping of the page, and the program goes on behind its instruction: the page is
//! not opened for it, so that no store of another thread's goes by unseen. Known are the moves by which
//! libraries write registers; any other instruction is left to the caller, who opens the page.

use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Told of a store that may not write, in the handler of its fault: the address, and the handler's context.
/// Whether the program goes on with what the context says; if not, the fault is its own.
pub type Watcher = unsafe fn(address: usize, context: *mut c_void) -> bool;

static WATCHER: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Has such faults told, where faults come to [`crate::guarded`].
pub fn watch(watcher: Watcher) {
    code::prepare();
    WATCHER.store(watcher as *mut c_void, Ordering::Release);
}

/// A page's rights refuse the access (`SEGV_ACCERR`).
const REFUSED: i32 = 2;

/// Hands a fault on; whether it was dealt with.
///
/// # Safety
/// In a handler of SIGSEGV, with what it was given.
pub(crate) unsafe fn told(info: *mut libc::siginfo_t, context: *mut c_void) -> bool {
    let watcher = WATCHER.load(Ordering::Acquire);
    // SAFETY: as the caller promises; what is stored is a `Watcher`.
    unsafe {
        let refused = (*info).si_signo == libc::SIGSEGV && (*info).si_code == REFUSED;
        refused
            && !watcher.is_null()
            && std::mem::transmute::<*mut c_void, Watcher>(watcher)(
                (*info).si_addr() as usize,
                context,
            )
    }
}

#[cfg(target_arch = "x86_64")]
mod code {
    use std::ffi::c_void;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use crate::PAGE_BYTES;

    /// An instruction is this long at most.
    const MOST: usize = 15;
    /// General registers of a context, by their number in an instruction.
    const REGISTERS: [libc::c_int; 16] = [
        libc::REG_RAX,
        libc::REG_RCX,
        libc::REG_RDX,
        libc::REG_RBX,
        libc::REG_RSP,
        libc::REG_RBP,
        libc::REG_RSI,
        libc::REG_RDI,
        libc::REG_R8,
        libc::REG_R9,
        libc::REG_R10,
        libc::REG_R11,
        libc::REG_R12,
        libc::REG_R13,
        libc::REG_R14,
        libc::REG_R15,
    ];

    /// What a store writes.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Source {
        General(u8),
        /// The lower bytes of a vector register.
        Vector(u8),
        Immediate(i32),
    }

    /// Where it writes: the sum of what there is of this.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    struct Place {
        base: Option<u8>,
        /// With the binary logarithm of its factor.
        index: Option<(u8, u8)>,
        distance: i64,
        /// From the next instruction on.
        relative: bool,
    }

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    struct Store {
        source: Source,
        place: Place,
        /// Bytes that it writes, and of the instruction.
        bytes: usize,
        length: usize,
    }

    /// Bytes of an instruction, one after the other: what lies behind its last one may not be there.
    struct Bytes<F>(F, usize);

    impl<F: Fn(usize) -> u8> Bytes<F> {
        fn next(&mut self) -> Option<u8> {
            let at = self.1;
            self.1 += 1;
            (at < MOST).then(|| self.0(at))
        }

        fn number(&mut self, bytes: usize) -> Option<i64> {
            let mut value = 0u64;
            for i in 0..bytes {
                value |= u64::from(self.next()?) << (8 * i);
            }
            let unused = 64 - 8 * bytes as u32;
            Some(if bytes == 0 { 0 } else { (value << unused) as i64 >> unused })
        }
    }

    /// What comes before the operands: which operation, and the upper bits of its registers' numbers.
    #[derive(Default)]
    struct Opening {
        kind: Option<Kind>,
        /// Of the register that is stored (two bits), of the index, of the base.
        high: (u8, u8, u8),
        bytes: usize,
        /// The unit of a distance of one byte.
        unit: i64,
    }

    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Kind {
        General,
        Immediate,
        Vector,
    }

    /// Whether an operation of the map 0F stores a whole vector, by its prefix: none, 66, F3, F2.
    fn stores_vector(opcode: u8, prefix: u8) -> bool {
        match opcode {
            0x11 | 0x29 | 0x2b => prefix <= 1,
            0x7f => prefix == 1 || prefix == 2,
            0xe7 => prefix == 1,
            _ => false,
        }
    }

    /// An instruction without VEX, of which the first byte is no prefix but 66, F3 and REX.
    fn open_legacy(first: u8, code: &mut Bytes<impl Fn(usize) -> u8>) -> Option<Opening> {
        let (mut prefix, mut rex, mut opcode) = (0, 0, first);
        if let 0x66 | 0xf3 = opcode {
            prefix = if opcode == 0x66 { 1 } else { 2 };
            opcode = code.next()?;
        }
        if let 0x40..=0x4f = opcode {
            rex = opcode;
            opcode = code.next()?;
        }
        let high = ((rex & 4) << 1, (rex & 2) << 2, (rex & 1) << 3);
        let wide = rex & 8 != 0;
        let word = [4, 2][usize::from(prefix)..].first().map(|&n| if wide { 8 } else { n });
        let opening = |kind, bytes| Some(Opening { kind: Some(kind), high, bytes, unit: 1 });
        match (opcode, prefix) {
            (0x89, _) => opening(Kind::General, word?),
            (0xc7, 0) => opening(Kind::Immediate, word?),
            (0x0f, _) => match (code.next()?, prefix) {
                (0xc3, 0) => opening(Kind::General, word?),
                (0xd6, 1) => opening(Kind::Vector, 8),
                (opcode, _) if stores_vector(opcode, prefix) => opening(Kind::Vector, 16),
                _ => None,
            },
            _ => None,
        }
    }

    /// VEX, of two or three bytes.
    fn open_vex(first: u8, code: &mut Bytes<impl Fn(usize) -> u8>) -> Option<Opening> {
        let one = code.next()?;
        let (bits, last) = if first == 0xc5 { (one | 0x7f, one) } else { (one, code.next()?) };
        if first == 0xc4 && one & 0x1f != 1 {
            return None;
        }
        let high = ((!bits >> 7 & 1) << 3, (!bits >> 6 & 1) << 3, (!bits >> 5 & 1) << 3);
        let (opcode, prefix, bytes) = (code.next()?, last & 3, 16 << (last >> 2 & 1));
        let kind = Some(Kind::Vector);
        stores_vector(opcode, prefix).then_some(Opening { kind, high, bytes, unit: 1 })
    }

    /// EVEX, without a mask.
    fn open_evex(code: &mut Bytes<impl Fn(usize) -> u8>) -> Option<Opening> {
        let [one, two, three] = [code.next()?, code.next()?, code.next()?];
        let bytes = 16 << (three >> 5 & 3);
        if one & 0xf != 1 || two & 4 == 0 || three & 0x97 != 0 || bytes > 64 {
            return None;
        }
        let high = (
            (!one >> 7 & 1) << 3 | (!one >> 4 & 1) << 4,
            (!one >> 6 & 1) << 3,
            (!one >> 5 & 1) << 3,
        );
        let (opcode, prefix) = (code.next()?, two & 3);
        let kind = Some(Kind::Vector);
        (stores_vector(opcode, prefix) || (opcode, prefix) == (0x7f, 3)).then_some(Opening {
            kind,
            high,
            bytes,
            unit: bytes as i64,
        })
    }

    /// The store that an instruction is, if it is one that is known.
    fn decode(code: impl Fn(usize) -> u8) -> Option<Store> {
        let mut code = Bytes(code, 0);
        let Opening { kind, high, bytes, unit } = match code.next()? {
            first @ (0xc4 | 0xc5) => open_vex(first, &mut code)?,
            0x62 => open_evex(&mut code)?,
            first => open_legacy(first, &mut code)?,
        };
        let modrm = code.next()?;
        let (form, number, low) = (modrm >> 6, modrm >> 3 & 7, modrm & 7);
        let mut place = Place { base: Some(low | high.2), ..Place::default() };
        let mut based = low;
        if form < 3 && low == 4 {
            let sib = code.next()?;
            based = sib & 7;
            place.base = Some(based | high.2);
            let index = sib >> 3 & 7 | high.1;
            place.index = (index != 4).then_some((index, sib >> 6));
        }
        place.distance = match form {
            0 if based == 5 => {
                place.base = None;
                place.relative = low == 5;
                code.number(4)?
            }
            0 => 0,
            1 => code.number(1)? * unit,
            2 => code.number(4)?,
            _ => return None, // to a register
        };
        let source = match kind? {
            Kind::General => Source::General(number | high.0),
            Kind::Vector => Source::Vector(number | high.0),
            // Words of two bytes have immediates of two.
            Kind::Immediate if number == 0 => Source::Immediate(code.number(4)? as i32),
            Kind::Immediate => return None,
        };
        Some(Store { source, place, bytes, length: code.1 })
    }

    /// Where the upper parts of vector registers lie in what is saved of a thread: of ymm, zmm, and zmm16 on.
    static PARTS: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];
    const COMPONENTS: [u32; 3] = [2, 6, 7];
    /// Bytes of what every processor saves; its registers; what Linux says behind them of the rest (`struct
    /// _fpx_sw_bytes`).
    const SAVED: usize = 512;
    const XMM: usize = 160;
    const SAID: usize = 464;
    const MAGIC: u32 = 0x4650_5853;

    /// Asks the processor: not in a handler, where it would take long on a virtual machine.
    pub fn prepare() {
        use std::arch::x86_64::{__cpuid, __cpuid_count};
        const XSAVE: u32 = 1 << 27;
        // Where there is no such leaf, there is none of these registers.
        if __cpuid(1).ecx & XSAVE != 0 && __cpuid(0).eax >= 0xd {
            for (part, component) in PARTS.iter().zip(COMPONENTS) {
                part.store(__cpuid_count(0xd, component).ebx as usize, Ordering::Relaxed);
            }
        }
    }

    /// The bytes of a vector register.
    ///
    /// # Safety
    /// What Linux saved of a thread, in a handler's context.
    unsafe fn vector(saved: *const u8, number: usize, bytes: usize) -> Option<[u8; 64]> {
        let mut value = [0; 64];
        let mut take = |to: usize, from: usize, bytes: usize| {
            // SAFETY: below 512 always; above, as far as is said to be there.
            let bytes = unsafe { std::slice::from_raw_parts(saved.add(from), bytes) };
            value[to..to + bytes.len()].copy_from_slice(bytes);
        };
        let part = |index: usize, at: usize, bytes: usize| {
            // SAFETY: as above.
            let (magic, has, size) = unsafe {
                let said = saved.add(SAID);
                let has = said.add(8).cast::<u64>().read_unaligned();
                (
                    said.cast::<u32>().read_unaligned(),
                    has,
                    said.add(16).cast::<u32>().read_unaligned(),
                )
            };
            let from = PARTS[index].load(Ordering::Relaxed) + at;
            let is_there = magic == MAGIC && has >> COMPONENTS[index] & 1 != 0;
            (is_there && from >= SAVED + 64 && from + bytes <= size as usize).then_some(from)
        };
        if number >= 16 {
            take(0, part(2, (number - 16) * 64, 64)?, 64);
            return Some(value);
        }
        take(0, XMM + number * 16, 16);
        if bytes > 16 {
            take(16, part(0, number * 16, 16)?, 16);
        }
        if bytes > 32 {
            take(32, part(1, number * 32, 32)?, 32);
        }
        Some(value)
    }

    /// # Safety
    /// As [`super::carry_out`].
    pub unsafe fn carry_out(context: *mut c_void, page: usize, to: *mut u8) -> bool {
        // One that copies 64 bytes has several stores in a row.
        // SAFETY: as the caller promises.
        (0..8).take_while(|_| unsafe { carry_out_one(context, page, to) }).count() > 0
    }

    /// # Safety
    /// As [`super::carry_out`], or the instruction follows one that was carried out.
    unsafe fn carry_out_one(context: *mut c_void, page: usize, to: *mut u8) -> bool {
        // SAFETY: as the caller promises: the system's own for the time of the handler.
        let machine = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext };
        let at = machine.gregs[libc::REG_RIP as usize];
        // SAFETY: the processor has just read the instruction, or goes on there next. Not more of it is read than
        // there is.
        let Some(store) = decode(|i| unsafe { (at as *const u8).add(i).read() }) else {
            return false;
        };
        let register = |number: u8| machine.gregs[REGISTERS[usize::from(number)] as usize];
        let place = store.place;
        let base = match place.relative {
            true => at + store.length as i64,
            false => place.base.map_or(0, register),
        };
        let index = place.index.map_or(0, |(number, log)| register(number) << log);
        let address = base.wrapping_add(index).wrapping_add(place.distance) as usize;
        let offset = address.wrapping_sub(page);
        // In the page whole, and in words that the processor would write in one piece.
        if offset >= PAGE_BYTES
            || store.bytes > PAGE_BYTES - offset
            || !offset.is_multiple_of(store.bytes.min(8))
        {
            return false;
        }
        let mut value = [0; 64];
        match store.source {
            Source::General(number) => value[..8].copy_from_slice(&register(number).to_le_bytes()),
            Source::Immediate(n) => value[..8].copy_from_slice(&i64::from(n).to_le_bytes()),
            Source::Vector(number) => {
                let saved = machine.fpregs.cast::<u8>();
                // SAFETY: of this context.
                let found = (!saved.is_null())
                    .then(|| unsafe { vector(saved, number.into(), store.bytes) })
                    .flatten();
                let Some(found) = found else { return false };
                value = found;
            }
        }
        // SAFETY: as the caller promises. Volatile: others look at the memory.
        unsafe { write(to.add(offset), &value[..store.bytes]) };
        machine.gregs[libc::REG_RIP as usize] = at + store.length as i64;
        true
    }

    /// # Safety
    /// `to` is valid for writes of them, and aligned as they are long, up to 8.
    unsafe fn write(to: *mut u8, bytes: &[u8]) {
        // SAFETY: as the caller promises; a store has 2 or 4 bytes, or a multiple of 8.
        unsafe {
            match *bytes {
                [a, b] => to.cast::<u16>().write_volatile(u16::from_le_bytes([a, b])),
                [a, b, c, d] => to.cast::<u32>().write_volatile(u32::from_le_bytes([a, b, c, d])),
                _ => {
                    for (i, word) in bytes.as_chunks::<8>().0.iter().enumerate() {
                        to.cast::<u64>().add(i).write_volatile(u64::from_le_bytes(*word));
                    }
                }
            }
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        fn of(code: &[u8]) -> Option<Store> {
            decode(|i| code[i])
        }

        #[test]
        fn known_stores_are_read_as_the_processor_reads_them() {
            use Source::{General, Immediate, Vector};
            let base = |number| Place { base: Some(number), ..Place::default() };
            let far = |number, distance| Place { distance, ..base(number) };
            let rip = Place { distance: 0x0403_0201, relative: true, ..Place::default() };
            let absolute = Place { distance: 0x0403_0201, ..Place::default() };
            let indexed = |number, index| Place { index: Some(index), ..number };
            for (code, source, place, bytes) in [
                // mov [rax], rdx; edx; dx; mov [r12], r15; mov [rip + ..], rax
                (&[0x48, 0x89, 0x10][..], General(2), base(0), 8),
                (&[0x89, 0x10], General(2), base(0), 4),
                (&[0x66, 0x89, 0x10], General(2), base(0), 2),
                (&[0x4d, 0x89, 0x3c, 0x24], General(15), base(12), 8),
                (&[0x48, 0x89, 0x05, 1, 2, 3, 4], General(0), rip, 8),
                // mov [rax + rcx * 8 + 0x800], rax; mov [0x04030201], rax; mov [rbp - 8], rax
                (
                    &[0x48, 0x89, 0x84, 0xc8, 0, 8, 0, 0],
                    General(0),
                    indexed(far(0, 0x800), (1, 3)),
                    8,
                ),
                (&[0x48, 0x89, 0x04, 0x25, 1, 2, 3, 4], General(0), absolute, 8),
                (&[0x48, 0x89, 0x45, 0xf8], General(0), far(5, -8), 8),
                // mov qword ptr [rax + 8], -1; movnti [rax], rcx
                (&[0x48, 0xc7, 0x40, 8, 0xff, 0xff, 0xff, 0xff], Immediate(-1), far(0, 8), 8),
                (&[0x48, 0x0f, 0xc3, 0x08], General(1), base(0), 8),
                // movq; movdqa of xmm9; movntdq; movdqu; movaps
                (&[0x66, 0x0f, 0xd6, 0x08], Vector(1), base(0), 8),
                (&[0x66, 0x44, 0x0f, 0x7f, 0x08], Vector(9), base(0), 16),
                (&[0x66, 0x0f, 0xe7, 0x40, 0x10], Vector(0), far(0, 16), 16),
                (&[0xf3, 0x0f, 0x7f, 0x00], Vector(0), base(0), 16),
                (&[0x0f, 0x29, 0x18], Vector(3), base(0), 16),
                // vmovaps [rax], ymm0; vmovdqu [r8 + rdx - 32], ymm11
                (&[0xc5, 0xfc, 0x29, 0x00], Vector(0), base(0), 32),
                (
                    &[0xc4, 0x41, 0x7e, 0x7f, 0x5c, 0x10, 0xe0],
                    Vector(11),
                    indexed(far(8, -32), (2, 0)),
                    32,
                ),
                // vmovdqu64 [rdi], zmm16; vmovdqu64 [rdi + rdx - 64], zmm17
                (&[0x62, 0xe1, 0xfe, 0x48, 0x7f, 0x07], Vector(16), base(7), 64),
                (
                    &[0x62, 0xe1, 0xfe, 0x48, 0x7f, 0x4c, 0x17, 0xff],
                    Vector(17),
                    indexed(far(7, -64), (2, 0)),
                    64,
                ),
            ] {
                let store = Some(Store { source, place, bytes, length: code.len() });
                assert_eq!(of(code), store, "{code:x?}");
            }
        }

        #[test]
        fn what_is_not_known_is_left_alone() {
            for code in [
                &[0x88, 0x10][..],                     // mov [rax], dl
                &[0x48, 0x89, 0xd0],                   // mov rax, rdx
                &[0x48, 0x01, 0x10],                   // add [rax], rdx
                &[0xf0, 0x48, 0x89, 0x10],             // lock
                &[0x64, 0x48, 0x89, 0x10],             // mov fs:[rax], rdx
                &[0x66, 0xc7, 0x00, 1, 0],             // mov word ptr [rax], 1
                &[0xc5, 0xfc, 0x28, 0x00],             // vmovaps ymm0, [rax]
                &[0x62, 0xe1, 0xfe, 0x49, 0x7f, 0x07], // vmovdqu64 [rdi]{k1}, zmm16
                &[0xf3, 0xa4],                         // rep movsb
                &[0x66; MOST],
            ] {
                assert_eq!(of(code), None, "{code:x?}");
            }
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod code {
    pub fn prepare() {}

    /// # Safety
    /// None.
    pub unsafe fn carry_out(_: *mut std::ffi::c_void, _: usize, _: *mut u8) -> bool {
        false
    }
}

/// Carries a store to a page that has faulted out in another mapping of the page, `to`, and those to it that follow at
/// once; the program goes on behind them. False if the instruction is none that is known: nothing has happened then.
///
/// # Safety
/// In a handler of the store's fault, with its context; `to` is valid for writes of a page, and nothing of Rust's lies
/// there but atomics.
pub unsafe fn carry_out(context: *mut c_void, page: usize, to: *mut u8) -> bool {
    // SAFETY: as the caller promises.
    unsafe { code::carry_out(context, page, to) }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use std::arch::asm;
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::PAGE_BYTES;

    static PAGES: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

    unsafe fn watcher(address: usize, context: *mut c_void) -> bool {
        let [page, other] = [0, 1].map(|i| PAGES[i].load(Ordering::Relaxed));
        // SAFETY: in the handler; the other mapping is as long.
        address.wrapping_sub(page) < PAGE_BYTES
            && unsafe { carry_out(context, page, other as *mut u8) }
    }

    /// A page twice: not to be written, and to be written.
    fn twice() -> [*mut u8; 2] {
        let rights = [libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE];
        // SAFETY: new mappings of a new file.
        unsafe {
            let fd = libc::memfd_create(c"twice".as_ptr(), 0);
            assert!(fd >= 0 && libc::ftruncate(fd, PAGE_BYTES as i64) == 0);
            rights.map(|rights| {
                let null = std::ptr::null_mut();
                let page = libc::mmap(null, PAGE_BYTES, rights, libc::MAP_SHARED, fd, 0);
                assert_ne!(page, libc::MAP_FAILED);
                page.cast()
            })
        }
    }

    #[test]
    fn stores_that_fault_are_done_elsewhere_and_the_program_goes_on() {
        let [closed, open] = twice();
        PAGES[0].store(closed as usize, Ordering::Relaxed);
        PAGES[1].store(open as usize, Ordering::Relaxed);
        crate::guarded::install(libc::sigaction);
        watch(watcher);
        let (first, second) = (0x1122_3344_5566_7788u64, u64::MAX - 6);
        let vector: [u64; 2] = [first, second];
        // SAFETY: the page is there; what its rights refuse the handler does.
        unsafe {
            asm!(
                "mov [{to} + 0x800], {first}",
                "movnti [{to} + 8 * {index} + 0x808], {second}",
                "mov dword ptr [{to} + 0x810], {second:e}",
                "mov word ptr [{to} + 0x814], {first:x}",
                "nop",
                "mov qword ptr [{to} + 0x818], -2",
                "movdqu xmm9, [{vector}]",
                "movntdq [{to} + 0x820], xmm9",
                "movups [{to} + 0x830], xmm9",
                "movq qword ptr [{to} + 0x840], xmm9",
                "inc {index}",
                to = in(reg) closed, first = in(reg) first, second = in(reg) second,
                vector = in(reg) vector.as_ptr(), index = inout(reg) 0u64 => _, out("xmm9") _,
            );
            let word = |offset: usize| open.add(offset).cast::<u64>().read_volatile();
            assert_eq!((word(0x800), word(0x808)), (first, second));
            assert_eq!(word(0x810), second & 0xffff_ffff | (first & 0xffff) << 32);
            assert_eq!(word(0x818), u64::MAX - 1);
            assert_eq!([0x820, 0x828].map(word), vector);
            assert_eq!([0x830, 0x838, 0x840, 0x848].map(word), [first, second, first, 0]);
            let words: [u64; 8] = std::array::from_fn(|i| first + i as u64);
            let copied = || std::array::from_fn(|i| word(0x900 + 8 * i));
            if std::arch::is_x86_feature_detected!("avx") {
                asm!(
                    "vmovdqu ymm3, [{from}]",
                    "vmovdqu ymm12, [{from} + 32]",
                    "vmovdqa [{to} + 0x900], ymm3",
                    "vmovups [{to} + 0x920], ymm12",
                    to = in(reg) closed, from = in(reg) words.as_ptr(), out("xmm3") _, out("xmm12") _,
                );
                assert_eq!(copied(), words);
            }
            if std::arch::is_x86_feature_detected!("avx512f") {
                for (i, word) in words.iter().enumerate() {
                    open.add(0x900 + 8 * i).cast::<u64>().write_volatile(!word);
                }
                // Of a program without these instructions, zmm17 is nobody's.
                asm!(
                    "vmovdqu64 zmm17, [{from}]",
                    "vmovdqu64 zmm5, [{from}]",
                    "vmovdqu64 [{to} + 0x900], zmm17",
                    "vmovdqu64 [{to} + 0x940], zmm5",
                    to = in(reg) closed, from = in(reg) words.as_ptr(), out("xmm5") _,
                );
                assert_eq!(copied(), words);
                assert_eq!(std::array::from_fn(|i| word(0x940 + 8 * i)), words);
            }
        }
    }
}
