//! Functions of libibverbs that are interposed, and functions of the provider's that are taken and chained.
//!
//! The header's inline functions (`ibv_poll_cq`, `ibv_post_send` and others) call what the provider has put
//! into the context, the CQ or the queue pair. Where a device of ours is opened, those that poll, post and arm
//! are replaced by ones that call the provider's and give the engine a turn (`drive`); the one that reads
//! the running clock is replaced whole. Programs that look libibverbs up by `dlvsym`, as NCCL does, find the
//! same. One that opens devices by other means, and programs that write WQEs and doorbells themselves, have the
//! engine's thread, and doorbells that are caught (`trap`).

use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::abi::libibverbs::{
    CREATE_CQ_EX, Function, IS_EXTENDED, IbvContext, IbvCqEx, IbvQpEx, IbvValuesEx,
    QUERY_RT_VALUES, VALUES_RAW_CLOCK, op,
};
use crate::cancel;
use crate::clock;
use crate::drive::Turn;
use crate::files::Kind;
use crate::hooks::set_errno;
use crate::process::process;
use crate::real;
use crate::waits;

/// Gives the engines a turn; whether there was anything to do. No panic leaves it.
fn turn(turn: Turn) -> bool {
    let turn = || process().is_some_and(|process| process.drivers.turn(turn));
    catch_unwind(AssertUnwindSafe(turn)).unwrap_or(false)
}

/// Functions of providers that are chained at most, of each kind: of libmlx5 there are a few variants.
const MOST: usize = 12;

/// Functions of one kind that were replaced, each by the hook of its place.
struct Chain {
    hooks: [Function; MOST],
    replaced: [AtomicPtr<c_void>; MOST],
}

// SAFETY: the pointers are functions'.
unsafe impl Sync for Chain {}

impl Chain {
    const fn new(hooks: [Function; MOST]) -> Self {
        Self { hooks, replaced: [const { AtomicPtr::new(std::ptr::null_mut()) }; MOST] }
    }

    /// Puts a hook before a function. One more than there is room for is left as it is.
    ///
    /// # Safety
    /// `place` holds a function of the chain's kind, or null, and nobody calls it or changes it meanwhile.
    unsafe fn hook(&self, place: *mut Function) {
        // SAFETY: as the caller promises.
        let original = unsafe { *place };
        if original.is_null() || self.hooks.contains(&original) {
            return;
        }
        for (hook, replaced) in self.hooks.iter().zip(&self.replaced) {
            let null = std::ptr::null_mut();
            // Release: for nobody; a function that is replaced is set before its hook can be called.
            let before =
                replaced.compare_exchange(null, original, Ordering::Release, Ordering::Relaxed);
            if before.is_ok() || before == Err(original) {
                // SAFETY: as the caller promises.
                unsafe { *place = *hook };
                return;
            }
        }
    }
}

/// Declares hooks of functions of the provider's: the chain, and a hook for each of its places.
macro_rules! chains {
    ($($chain:ident $name:ident ($($arg:ident: $type:ty),*) -> $ret:ty,
        again if $again:expr => $turn:expr;)*) => {$(
        static $chain: Chain = {
            type Original = unsafe extern "C-unwind" fn($($type),*) -> $ret;
            extern "C-unwind" fn hook<const I: usize>($($arg: $type),*) -> $ret {
                let original = $chain.replaced[I].load(Ordering::Relaxed);
                // SAFETY: the function that had this hook's place; the program's own arguments.
                unsafe {
                    let original = std::mem::transmute::<Function, Original>(original);
                    // Cancelled anywhere in there, the thread unwinds through here: nothing is to be dropped, and nothing
                    // catches it. In a step it would be as soon as that has let cancellation through again.
                    if cancel::is_at_once() {
                        return original($($arg),*);
                    }
                    with_turn(original, $($arg),*)
                }
            }
            /// # Safety
            /// As `original`.
            #[inline(never)]
            unsafe fn with_turn(original: Original, $($arg: $type),*) -> $ret {
                // SAFETY: as the caller promises.
                let call = || unsafe { original($($arg),*) };
                let done = call();
                let again: fn($ret) -> bool = $again;
                let done = match again(done) && turn($turn) {
                    true if matches!($turn, Turn::Poll) => call(),
                    _ => done,
                };
                match $turn {
                    Turn::Poll => waits::after(!again(done), false),
                    Turn::Arm => waits::after(false, true),
                    Turn::Post => {}
                }
                done
            }
            Chain::new(chains!(@hooks hook 0 1 2 3 4 5 6 7 8 9 10 11))
        };
    )*};
    (@hooks $hook:ident $($i:literal)*) => { [$($hook::<$i> as Function),*] };
}
chains! {
    POLL_CQ poll_cq (cq: *mut c_void, most: c_int, entries: *mut c_void) -> c_int,
        again if |found| found == 0 => Turn::Poll;
    START_POLL start_poll (cq: *mut c_void, attr: *mut c_void) -> c_int,
        again if |error| error == libc::ENOENT => Turn::Poll;
    REQ_NOTIFY_CQ req_notify_cq (cq: *mut c_void, solicited_only: c_int) -> c_int,
        again if |error| error == 0 => Turn::Arm;
    POST_SEND post_send (qp: *mut c_void, requests: *mut c_void, bad: *mut c_void) -> c_int,
        again if |_| true => Turn::Post;
    WR_COMPLETE wr_complete (qp: *mut c_void) -> c_int,
        again if |error| error == 0 => Turn::Post;
}

type CreateCqEx = unsafe extern "C" fn(*mut IbvContext, *mut c_void) -> *mut IbvCqEx;
/// The provider's, which is one for all its contexts.
static CREATE_CQ: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

extern "C" fn create_cq_ex(context: *mut IbvContext, attr: *mut c_void) -> *mut IbvCqEx {
    let original = CREATE_CQ.load(Ordering::Relaxed);
    // SAFETY: the function that was replaced; the program's own arguments; a CQ that nobody has yet.
    unsafe {
        let cq = std::mem::transmute::<Function, CreateCqEx>(original)(context, attr);
        if !cq.is_null() {
            START_POLL.hook(&raw mut (*cq).start_poll);
        }
        cq
    }
}

/// The running clock (`ibv_query_rt_values_ex`). libmlx5 reads it from a page that a card keeps running; there is no
/// such page here, and the clock is read in its place.
extern "C" fn query_rt_values(_: *mut IbvContext, values: *mut IbvValuesEx) -> c_int {
    // SAFETY: the program's own argument, as the header's inline function hands it on.
    unsafe {
        if (*values).comp_mask & !VALUES_RAW_CLOCK != 0 {
            return libc::EINVAL;
        }
        if (*values).comp_mask & VALUES_RAW_CLOCK != 0 {
            // As libmlx5 tells it: cycles, not split into seconds.
            let tv_nsec = clock::cycles() as libc::c_long;
            (*values).raw_clock = libc::timespec { tv_sec: 0, tv_nsec };
        }
    }
    0
}

/// Whether a descriptor is a device's of ours.
fn is_ours(fd: c_int) -> bool {
    let find = || process().and_then(|process| process.find(fd));
    let kind = catch_unwind(AssertUnwindSafe(find)).unwrap_or(None);
    matches!(kind, Some(Kind::Device(_)))
}

/// Has a context's polls, posts and armings drive the engine, if it is a device's of ours.
///
/// # Safety
/// Null, or a context that was just opened.
unsafe fn hook_context(context: *mut IbvContext) -> *mut IbvContext {
    // SAFETY: as the caller promises: nobody else has it yet.
    unsafe {
        if context.is_null() || !is_ours((*context).cmd_fd) {
            return context;
        }
        let ops = (&raw mut (*context).ops).cast::<Function>();
        POLL_CQ.hook(ops.add(op::POLL_CQ));
        REQ_NOTIFY_CQ.hook(ops.add(op::REQ_NOTIFY_CQ));
        POST_SEND.hook(ops.add(op::POST_SEND));
        let words = context.cast::<Function>();
        let is_there = (*context).abi_compat == IS_EXTENDED
            && *words.sub(1) as usize >= size_of::<IbvContext>() + 8 * CREATE_CQ_EX;
        if !is_there {
            return context;
        }
        if *words.sub(1) as usize >= size_of::<IbvContext>() + 8 * QUERY_RT_VALUES {
            *words.sub(QUERY_RT_VALUES) = query_rt_values as Function;
        }
        let create = words.sub(CREATE_CQ_EX);
        if !(*create).is_null() && *create != create_cq_ex as Function {
            let null = std::ptr::null_mut();
            let before =
                CREATE_CQ.compare_exchange(null, *create, Ordering::Relaxed, Ordering::Relaxed);
            if before.is_ok() || before == Err(*create) {
                *create = create_cq_ex as Function;
            }
        }
        context
    }
}

/// A function of the libibverbs that is loaded, also where it is no other library's to see.
///
/// # Safety
/// `T` is the function's type.
unsafe fn libibverbs<T: Copy>(
    known: &AtomicPtr<c_void>,
    name: &CStr,
    version: Option<&CStr>,
) -> Option<T> {
    const { assert!(size_of::<T>() == size_of::<Function>()) };
    let mut found = known.load(Ordering::Relaxed);
    if found.is_null() {
        // SAFETY: C strings; the library stays loaded as long as its caller is.
        unsafe {
            let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
            let library = libc::dlopen(c"libibverbs.so.1".as_ptr(), flags);
            if library.is_null() {
                return None;
            }
            found = match version {
                Some(version) => real::dlvsym(library, name.as_ptr(), version.as_ptr()),
                None => real::dlsym(library, name.as_ptr()),
            };
            libc::dlclose(library);
        }
        known.store(found, Ordering::Relaxed);
    }
    // SAFETY: of one size, and of that type as the caller promises.
    (!found.is_null()).then(|| unsafe { std::mem::transmute_copy(&found) })
}

/// Declares hooks of functions that open a device: each calls libibverbs' own.
macro_rules! hook_opens {
    ($($name:ident $version:expr, ($($arg:ident: $type:ty),*);)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name($($arg: $type),*) -> *mut IbvContext {
            type Original = unsafe extern "C" fn($($type),*) -> *mut IbvContext;
            static ORIGINAL: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
            const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a C string"),
            };
            // SAFETY: the function's type, and the program's own arguments.
            unsafe {
                match libibverbs::<Original>(&ORIGINAL, NAME, $version) {
                    Some(original) => hook_context(original($($arg),*)),
                    None => {
                        set_errno(libc::ENOSYS);
                        std::ptr::null_mut()
                    }
                }
            }
        }
    )*};
}
hook_opens! {
    ibv_open_device Some(c"IBVERBS_1.1"), (device: *mut c_void);
    ibv_import_device None, (fd: c_int);
    // By which libmlx5's own function opens devices; its version is of each release.
    verbs_open_device None, (device: *mut c_void, private: *mut c_void);
}

/// The hook in place of libibverbs' `ibv_open_device`; anything else of that name as it is.
pub extern "C" fn look_up_open(
    library: *mut c_void,
    name: *const c_char,
    version: *const c_char,
) -> *mut c_void {
    static ITS_OWN: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    // SAFETY: the program's own arguments; the function's type.
    unsafe {
        let found = real::dlvsym(library, name, version);
        if found.is_null() {
            return found; // with what dlerror() says of it
        }
        let its_own = libibverbs::<Function>(&ITS_OWN, c"ibv_open_device", Some(c"IBVERBS_1.1"));
        if its_own == Some(found) {
            return ibv_open_device as *mut c_void;
        }
        found
    }
}

#[unsafe(no_mangle)]
extern "C" fn ibv_qp_to_qp_ex(qp: *mut c_void) -> *mut IbvQpEx {
    type Original = unsafe extern "C" fn(*mut c_void) -> *mut IbvQpEx;
    static ORIGINAL: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    // SAFETY: the function's type, and the program's own argument. A program asks before it posts.
    unsafe {
        let original = libibverbs::<Original>(&ORIGINAL, c"ibv_qp_to_qp_ex", None);
        let qp = original.map_or(std::ptr::null_mut(), |original| original(qp));
        if !qp.is_null() && is_ours((*(*qp).context).cmd_fd) {
            WR_COMPLETE.hook(&raw mut (*qp).wr_complete);
        }
        qp
    }
}
