//! Doorbells that are caught: UAR pages of which the program's mapping cannot be written for a time.
//!
//! Before the engine's thread rests, it takes the right to write from the pages of a program that rings past
//! libibverbs (`rings` says when), and then looks once more. A doorbell from before is found by that look; one
//! from after it faults, and its fault comes to [`on_store`] in the program's thread: the store is carried out in
//! the engine's own mapping of the page, the program goes on behind its instruction, and the engine has a step at
//! once, on a stack of its own and with no signal let through (`guarded`): a handler of the program's would find locks held. In a
//! handler, which may have interrupted `malloc`, the engine's thread is woken instead. The page stays closed for other threads' doorbells meanwhile. A store that is not understood opens the
//! page and is done again. So each store is in the page before anybody looks for it, and the engine's thread
//! looks at its own times besides, whatever becomes of a catch.
//!
//! A thread that blocks SIGSEGV would be killed by its doorbell. Nothing is caught while there is one: the hooks
//! of the mask open all pages when a thread has done so, before it goes on, and the threads' masks are looked at
//! before one is closed again.

use std::ffi::c_void;
use std::fs;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bellpush_mem::{PAGE_BYTES, View, guarded, stores};
use bellpush_wire::doorbell::UAR_DOORBELL_OFFSETS;

use crate::cancel;
use crate::clock;
use crate::drive::Driver;
use crate::files::{FileId, file_id};
use crate::marked;
use crate::masks;
use crate::process::process;

/// Pages that are watched at most. Those of further queue pairs are never closed.
const MOST: usize = 64;
/// Stack that a step wants and more. What a program's thread has may be a coroutine's few KiB.
const STACK: usize = 256 << 10;
/// How long others are waited for that are in a few instructions, unless their thread is gone.
const PATIENCE: Duration = Duration::from_millis(100);
/// How long a fault of a page may be on its way that is watched no more.
const ON_ITS_WAY_NS: u64 = 1_000_000_000;
/// A mapping of a page.
struct Slot {
    /// Where the program has it; 0 for none, 1 for one that is being filled in.
    program: AtomicUsize,
    /// Where the engine has it.
    engine: AtomicUsize,
    /// Whose device's: valid while [`LOOKING`] is counted.
    driver: AtomicPtr<Driver>,
    device: AtomicUsize,
    closed: AtomicBool,
    /// Its queue pairs go, or the program's mapping does: nobody closes it any more.
    retired: AtomicBool,
    /// What `program` was last: faults of it may be on their way, until then.
    was: AtomicUsize,
    was_until: AtomicU64,
}

static SLOTS: [Slot; MOST] = [const {
    Slot {
        program: AtomicUsize::new(0),
        engine: AtomicUsize::new(0),
        driver: AtomicPtr::new(std::ptr::null_mut()),
        device: AtomicUsize::new(0),
        closed: AtomicBool::new(false),
        retired: AtomicBool::new(false),
        was: AtomicUsize::new(0),
        was_until: AtomicU64::new(0),
    }
}; MOST];
/// The stack that steps run on, one at a time: where it ends, and whether it is in use.
static STACK_END: AtomicUsize = AtomicUsize::new(0);
static STACK_BUSY: AtomicBool = AtomicBool::new(false);
/// Threads that use what is in a slot, and engines' threads that close pages.
static LOOKING: AtomicU32 = AtomicU32::new(0);
static CLOSING: AtomicU32 = AtomicU32::new(0);
/// A UAR was given to a GPU, which rings past the processor's rights, and whose driver pins pages for writing.
static GIVEN_AWAY: AtomicBool = AtomicBool::new(false);
/// Threads in libc that make others, which block all signals.
static MAKING: AtomicU32 = AtomicU32::new(0);
/// Counts somebody for as long as it is there.
struct Counted(&'static AtomicU32);

impl Counted {
    fn new(count: &'static AtomicU32) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Waits until nobody is counted; whether that came about.
fn none_left(count: &AtomicU32) -> bool {
    let start = Instant::now();
    while count.load(Ordering::SeqCst) > 0 {
        if start.elapsed() > PATIENCE {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

fn set_rights(page: usize, rights: libc::c_int) -> bool {
    // SAFETY: a page of a device's file of ours, of which the program alone has this mapping. A thread's own errno
    // stays, for this runs between two of the program's instructions.
    unsafe {
        let errno = *libc::__errno_location();
        let done = libc::syscall(libc::SYS_mprotect, page, PAGE_BYTES, rights) == 0;
        *libc::__errno_location() = errno;
        done
    }
}

impl Slot {
    /// Takes the right to write; whether it was there.
    fn close(&self, page: usize) -> bool {
        if self.retired.load(Ordering::SeqCst) || self.closed.swap(true, Ordering::SeqCst) {
            return false;
        }
        let done = set_rights(page, libc::PROT_READ);
        if !done {
            self.closed.store(false, Ordering::SeqCst);
        }
        // Whoever retires it does not wait for ever for a thread that is kept from its core here.
        if self.retired.load(Ordering::SeqCst) {
            self.open(page);
        }
        done
    }

    /// Gives it back; whether that could be done. Marked before and after: of a thread that closes the page
    /// meanwhile, either the mark stands and the page is closed, or neither; a page that is closed without the mark
    /// faults and comes here again.
    fn open(&self, page: usize) -> bool {
        self.closed.store(false, Ordering::SeqCst);
        let done = set_rights(page, libc::PROT_READ | libc::PROT_WRITE);
        self.closed.store(false, Ordering::SeqCst);
        done
    }

    /// The same for a page that is marked; otherwise no system call.
    fn open_if_closed(&self, page: usize) {
        if self.closed.load(Ordering::SeqCst) {
            self.open(page);
        }
    }

    fn page(&self) -> Option<usize> {
        Some(self.program.load(Ordering::SeqCst)).filter(|&page| page > 1)
    }

    /// The page is about to be watched no more.
    fn has_been(&self, page: usize) {
        self.was_until.store(clock::cycles() + ON_ITS_WAY_NS, Ordering::SeqCst);
        self.was.store(page, Ordering::SeqCst);
    }

    fn is_of(&self, driver: &Driver) -> bool {
        std::ptr::eq(self.driver.load(Ordering::Acquire), driver)
    }
}

fn pages() -> impl Iterator<Item = (&'static Slot, usize)> {
    SLOTS.iter().filter_map(|slot| Some((slot, slot.page()?)))
}

/// A UAR page whose doorbells may be caught, while it has queue pairs.
pub struct Trap {
    slots: Vec<usize>,
    file: FileId,
    offset: u64,
    driver: Option<Arc<Driver>>,
    /// The slots have its address.
    page: Option<View>,
}

impl Trap {
    /// For a page of a device's file, wherever the program has it mapped.
    pub fn new(fd: RawFd, offset: u64, page: &View, device: usize, driver: &Arc<Driver>) -> Self {
        let mut trap = Self {
            slots: Vec::new(),
            file: (0, 0),
            offset,
            driver: Some(driver.clone()),
            page: Some(page.clone()),
        };
        let Some(file) = file_id(fd) else { return trap };
        trap.file = file;
        make_stack();
        stores::watch(on_store);
        let own = page.addr() as usize;
        for at in mappings(file, offset).unwrap_or_default().into_iter().filter(|&at| at != own) {
            let free = SLOTS.iter().position(|slot| {
                slot.program.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            });
            let Some(index) = free else { break };
            let slot = &SLOTS[index];
            slot.engine.store(own, Ordering::Relaxed);
            slot.driver.store(Arc::as_ptr(driver).cast_mut(), Ordering::Relaxed);
            slot.device.store(device, Ordering::Relaxed);
            slot.closed.store(false, Ordering::Relaxed);
            slot.retired.store(false, Ordering::Relaxed);
            slot.program.store(at, Ordering::Release);
            trap.slots.push(index);
        }
        trap
    }
}

impl Drop for Trap {
    fn drop(&mut self) {
        if self.slots.is_empty() {
            return;
        }
        // What the program has unmapped may be another mapping by now.
        let there = mappings(self.file, self.offset);
        let mut gone = true;
        for slot in self.slots.iter().map(|&index| &SLOTS[index]) {
            let page = slot.program.load(Ordering::Relaxed);
            // Nobody closes it after this.
            slot.retired.store(true, Ordering::SeqCst);
            gone &= none_left(&CLOSING);
            // Where it cannot be looked up: what the program unmaps by libc is not here any more (`leaves`).
            if page > 1 && there.as_ref().is_none_or(|there| there.contains(&page)) {
                slot.open(page);
            }
            if page > 1 {
                slot.has_been(page);
            }
            slot.program.store(1, Ordering::SeqCst);
        }
        gone &= none_left(&LOOKING);
        if !gone {
            // Somebody may have the addresses: neither memory nor slots are used again.
            std::mem::forget((self.driver.take(), self.page.take()));
            return;
        }
        for slot in self.slots.iter().map(|&index| &SLOTS[index]) {
            slot.driver.store(std::ptr::null_mut(), Ordering::Relaxed);
            slot.program.store(0, Ordering::Release);
        }
    }
}

/// Where this process has a page of a file mapped, if that can be looked up.
fn mappings((dev, ino): FileId, offset: u64) -> Option<Vec<usize>> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    Some(maps.lines().filter_map(|line| mapping(line, dev, ino, offset)).collect())
}

/// Of a line of `/proc/PID/maps`: `start-end rights offset major:minor inode path`.
fn mapping(line: &str, dev: u64, ino: u64, offset: u64) -> Option<usize> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let shared = fields.next()?.ends_with('s');
    let first = u64::from_str_radix(fields.next()?, 16).ok()?;
    let (major, minor) = fields.next()?.split_once(':')?;
    let hex = |text| u64::from_str_radix(text, 16).ok();
    let found = libc::makedev(hex(major)? as u32, hex(minor)? as u32);
    if !shared || found != dev || fields.next()?.parse() != Ok(ino) {
        return None;
    }
    let (start, end) = (hex(start)?, hex(end)?);
    let at = start + offset.checked_sub(first)?;
    (at < end).then_some(at as usize)
}

/// Whether pages may be closed, as far as other threads have said.
fn may_close() -> bool {
    masks::are_clear() && MAKING.load(Ordering::SeqCst) == 0 && !GIVEN_AWAY.load(Ordering::SeqCst)
}

/// Closes the pages of a device's program; whether any was open, so that there may be doorbells from before.
pub fn close(driver: &Driver) -> bool {
    if !of(driver).any(|(slot, _)| !slot.closed.load(Ordering::Relaxed)) {
        return false;
    }
    if !guarded::is_armed() || !masks::nobody_blocks() {
        return false;
    }
    guarded::check();
    let _counted = Counted::new(&CLOSING);
    // Whoever blocks after this waits until it is done, as does who gives a page away.
    if !guarded::is_armed() || !may_close() {
        return false;
    }
    let any = of(driver).fold(false, |any, (slot, page)| any | slot.close(page));
    // They do not wait for ever for a thread that is kept from its core here.
    if !may_close() {
        open_surely(driver);
    }
    any
}

/// The pages of a device's program.
fn of(driver: &Driver) -> impl Iterator<Item = (&'static Slot, usize)> {
    pages().filter(move |(slot, _)| slot.is_of(driver))
}

/// Opens those pages that are marked as closed. One that has lost its mark faults, and is opened then.
pub fn open(driver: &Driver) {
    of(driver).for_each(|(slot, page)| slot.open_if_closed(page));
}

/// Opens all of them, whatever the marks say: for where a fault would not come here.
pub fn open_surely(driver: &Driver) {
    of(driver).for_each(|(slot, page)| _ = slot.open(page));
}

/// The calling thread has blocked a signal of faults.
pub fn blocks() {
    masks::change();
    open_all();
}

/// Calls a function of libc's that makes a thread with all signals blocked, past the hooks of the mask: no page is
/// closed meanwhile, and none after that as long as the thread is there.
pub fn makes_a_thread<R>(call: impl FnOnce() -> R) -> R {
    let counted = Counted::new(&MAKING);
    open_all();
    let done = call();
    masks::change();
    drop(counted);
    done
}

/// The program is about to register a UAR with CUDA, which pins it for writing: nothing is caught from now on.
pub fn give_away() {
    GIVEN_AWAY.store(true, Ordering::SeqCst);
    open_all();
}

/// The program is about to unmap or move a range: what is there next is not ours to close.
pub fn leaves(at: usize, bytes: usize) {
    if pages().next().is_none() {
        return;
    }
    // Slots keep what they have while this is counted.
    let _counted = Counted::new(&LOOKING);
    for (slot, page) in pages().filter(|&(_, page)| page >= at && page - at < bytes) {
        slot.retired.store(true, Ordering::SeqCst);
        none_left(&CLOSING);
        slot.open(page);
        slot.has_been(page);
        let _ = slot.program.compare_exchange(page, 1, Ordering::SeqCst, Ordering::Relaxed);
    }
}

/// Opens all pages. Whoever begins to close after this sees what was stored before it.
fn open_all() {
    if pages().next().is_some() {
        let _counted = Counted::new(&LOOKING);
        none_left(&CLOSING);
        pages().for_each(|(slot, page)| _ = slot.open(page));
    }
}

/// In the child of a fork: it has no engine, and its copies of closed pages are its own.
pub fn forked() {
    pages().for_each(|(slot, page)| _ = slot.open(page));
    SLOTS.iter().for_each(|slot| slot.program.store(0, Ordering::Relaxed));
    LOOKING.store(0, Ordering::Relaxed);
    CLOSING.store(0, Ordering::Relaxed);
    STACK_BUSY.store(STACK_END.load(Ordering::Relaxed) == 0, Ordering::Relaxed);
}

/// A store of the program's to a page that cannot be written: whether it is a doorbell of ours, which is done then.
///
/// # Safety
/// As [`stores::Watcher`].
unsafe fn on_store(address: usize, context: *mut c_void) -> bool {
    let (page, offset) = (address & !(PAGE_BYTES - 1), address & (PAGE_BYTES - 1));
    let Some((slot, _)) = pages().find(|&(_, at)| at == page) else { return was_there(page) };
    let counted = Counted::new(&LOOKING);
    if slot.page() != Some(page) {
        return was_there(page);
    }
    if !process().is_some_and(|process| process.drivers.are_here()) {
        return slot.open(page); // a child's own copy
    }
    // SAFETY: the engine's mapping is there while this is counted, and so is the driver.
    let done = unsafe {
        let driver = &*slot.driver.load(Ordering::Acquire);
        let to = slot.engine.load(Ordering::Relaxed);
        let before = registers(to);
        // Who arms a CQ is about to sleep: that is left to the engine's thread.
        let done =
            offset >= UAR_DOORBELL_OFFSETS[0] && stores::carry_out(context, page, to as *mut u8);
        // A BlueFlame buffer has more stores than the one that counts.
        let rings = !done || registers(to) != before;
        let too_many = rings && driver.catches();
        // What can be neither done nor let through would fault for ever.
        let stands = done && !too_many;
        if !stands && !slot.open(page) && !done {
            return false;
        }
        if !done {
            driver.leave_to_thread();
        }
        rings && done
    };
    if !done {
        return true;
    }
    let device = slot.device.load(Ordering::Relaxed);
    // SAFETY: a handler's context; the driver as above.
    unsafe {
        // A handler may have been interrupted, as far as masks say, and that in `malloc`.
        let mask = guarded::interrupted_mask(context);
        let in_handler = mask != 0;
        marked::seen(mask);
        if in_handler || cancel::is_at_once() || STACK_BUSY.swap(true, Ordering::Acquire) {
            (*slot.driver.load(Ordering::Acquire)).leave_to_thread();
            return true;
        }
    }
    drop(counted);
    // SAFETY: the stack is this thread's now.
    unsafe { call_on(STACK_END.load(Ordering::Relaxed), ring, device) };
    STACK_BUSY.store(false, Ordering::Release);
    true
}

extern "C" fn ring(device: usize) {
    // The handler's frame may be on an alternate stack, which the next fault's would begin anew, since this stack is
    // not it. The handler's end brings it back.
    // SAFETY: takes nothing else; this is no part of an alternate stack.
    unsafe {
        let mut none: libc::stack_t = std::mem::zeroed();
        none.ss_flags = libc::SS_DISABLE;
        libc::sigaltstack(&none, std::ptr::null_mut());
    }
    if let Some(process) = process() {
        process.drivers.ring(device);
    }
}

/// Whether a fault is of a page that is watched no more, and may have been on its way since before, as those of several
/// threads may be: it is done again. If it still comes after a while, it is the program's.
fn was_there(page: usize) -> bool {
    let was = |slot: &Slot| {
        slot.was.load(Ordering::SeqCst) == page
            && clock::cycles() < slot.was_until.load(Ordering::SeqCst)
    };
    page != 0 && SLOTS.iter().any(was)
}

/// Makes the stack, with a page below it that nobody has rights to; without it no step runs in a handler.
fn make_stack() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        STACK_BUSY.store(true, Ordering::Relaxed);
        // SAFETY: fresh memory of our own.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK;
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            let at = libc::mmap(std::ptr::null_mut(), STACK, rights, flags, -1, 0);
            if at != libc::MAP_FAILED && libc::mprotect(at, PAGE_BYTES, libc::PROT_NONE) == 0 {
                STACK_END.store(at as usize + STACK, Ordering::Relaxed);
                STACK_BUSY.store(false, Ordering::Release);
            }
        }
    });
}

/// Calls a function on another stack.
///
/// # Safety
/// `end` is where a stack ends that nobody uses, on 16 bytes. No panic leaves the function.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn call_on(end: usize, function: extern "C" fn(usize), argument: usize) {
    std::arch::naked_asm!(
        "push rbp",
        "mov rbp, rsp",
        "mov rsp, rdi",
        "mov rdi, rdx",
        "call rsi",
        "mov rsp, rbp",
        "pop rbp",
        "ret",
    )
}

/// Nothing is caught on other processors.
///
/// # Safety
/// None.
#[cfg(not(target_arch = "x86_64"))]
unsafe extern "C" fn call_on(_end: usize, function: extern "C" fn(usize), argument: usize) {
    function(argument);
}

/// The doorbell registers of a page.
///
/// # Safety
/// The engine's mapping is there.
unsafe fn registers(page: usize) -> [u64; UAR_DOORBELL_OFFSETS.len()] {
    // SAFETY: as the caller promises.
    UAR_DOORBELL_OFFSETS.map(|at| unsafe { ((page + at) as *const u64).read_volatile() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn can_be_written(page: usize) -> bool {
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let start = format!("{page:x}-");
        let line = maps.lines().find(|line| line.starts_with(&start)).unwrap();
        line.split(' ').nth(1).unwrap().contains('w')
    }

    #[test]
    fn a_page_without_a_mark_costs_no_call() {
        let slot = &SLOTS[MOST - 1];
        // SAFETY: fresh memory of the test's own, with a page before and behind it that other rights keep apart.
        let page = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let at = libc::mmap(std::ptr::null_mut(), 3 * PAGE_BYTES, 0, flags, -1, 0);
            at as usize + PAGE_BYTES
        };
        assert!(set_rights(page, libc::PROT_READ));
        slot.open_if_closed(page);
        assert!(!can_be_written(page));
        assert!(slot.open(page) && can_be_written(page));
        assert!(slot.close(page) && !can_be_written(page));
        slot.open_if_closed(page);
        assert!(can_be_written(page));
        // What is not there cannot be opened, and is said.
        // SAFETY: the test's own memory, which nothing uses any more.
        assert_eq!(unsafe { libc::syscall(libc::SYS_munmap, page, PAGE_BYTES) }, 0);
        assert!(!slot.open(page));
    }

    #[test]
    fn a_page_that_was_never_watched_is_the_programs() {
        assert!(!was_there(0));
        let slot = &SLOTS[MOST - 2];
        slot.has_been(0x5000);
        assert!((0..9).all(|_| was_there(0x5000)), "stores of several threads may be on their way");
        assert!(!was_there(0x6000));
        slot.was_until.store(clock::cycles(), Ordering::SeqCst);
        assert!(!was_there(0x5000), "the program's by now");
    }

    #[test]
    fn a_page_is_found_where_it_is_mapped() {
        let dev = libc::makedev(0, 1);
        let line = "7f2e00001000-7f2e00003000 rw-s 1000005000 00:01 77 /memfd:x (deleted)";
        assert_eq!(mapping(line, dev, 77, 0x10_0000_5000), Some(0x7f2e_0000_1000));
        assert_eq!(mapping(line, dev, 77, 0x10_0000_6000), Some(0x7f2e_0000_2000));
        for (dev, ino, offset) in [
            (dev, 77, 0x10_0000_7000),
            (dev, 77, 0x10_0000_4000),
            (dev, 78, 0x10_0000_5000),
            (libc::makedev(0, 2), 77, 0x10_0000_5000),
        ] {
            assert_eq!(mapping(line, dev, ino, offset), None);
        }
        assert_eq!(mapping(&line.replace("rw-s", "rw-p"), dev, 77, 0x10_0000_5000), None);
        assert_eq!(mapping("", dev, 77, 0), None);
    }
}
