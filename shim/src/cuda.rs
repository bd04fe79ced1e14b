//! Memory of GPUs that a program registers: what `nvidia_peermem` is for with a real NIC.
//!
//! A CPU thread has no address for it, so the engine's accesses are copies by the GPU's copy engine,
//! on a stream of their own that no kernel holds up. Atomics are read, changed and written back:
//! atomic among this process's device's own only. What lies beside an operand is not written.
//!
//! The driver is found in the process: a program that names GPU memory has loaded it.

use std::collections::HashMap;
use std::ffi::{CStr, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use bellpush_mem::{Dma, Hook, Hooked, HostMem, MemError, PAGE_BYTES, rewrite};

use crate::process::say;
use crate::real;

/// Bytes that are copied at once.
const BOUNCE_BYTES: usize = 1 << 20;
/// How long a copy may take before its memory is given up.
const LIMIT: Duration = Duration::from_secs(10);

/// `CUresult`, as far as it is told apart.
const SUCCESS: c_int = 0;
const NOT_READY: c_int = 600;
/// `CU_POINTER_ATTRIBUTE_*`.
const ATTRIBUTE_CONTEXT: c_int = 1;
const ATTRIBUTE_MEMORY_TYPE: c_int = 2;
const ATTRIBUTE_DEVICE_ORDINAL: c_int = 9;
/// `CU_MEMORYTYPE_DEVICE`.
const TYPE_DEVICE: u32 = 2;
/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: c_uint = 1;
/// `CU_MEMHOSTALLOC_PORTABLE`.
const PORTABLE: c_uint = 1;

/// Declares the driver's functions (CUDA Driver API reference), which are looked up once.
macro_rules! driver {
    ($($name:ident = $symbol:literal: fn($($arg:ty),*);)*) => {
        struct Driver { $($name: unsafe extern "C" fn($($arg),*) -> c_int,)* }

        impl Driver {
            fn find() -> Option<Self> {
                // SAFETY: C strings; the library is the program's own, and each function has the
                // signature of its header.
                unsafe {
                    let flags = libc::RTLD_NOW | libc::RTLD_NOLOAD;
                    let library = libc::dlopen(c"libcuda.so.1".as_ptr(), flags);
                    let symbol = |name: &CStr| {
                        let at = real::dlsym(library, name.as_ptr());
                        (!library.is_null() && !at.is_null()).then_some(at)
                    };
                    Some(Self { $($name: std::mem::transmute::<
                        *mut c_void,
                        unsafe extern "C" fn($($arg),*) -> c_int,
                    >(symbol($symbol)?),)* })
                }
            }
        }
    };
}
driver! {
    pointer_attribute = c"cuPointerGetAttribute": fn(*mut c_void, c_int, u64);
    device_get = c"cuDeviceGet": fn(*mut c_int, c_int);
    primary_retain = c"cuDevicePrimaryCtxRetain": fn(*mut usize, c_int);
    push = c"cuCtxPushCurrent_v2": fn(usize);
    pop = c"cuCtxPopCurrent_v2": fn(*mut usize);
    stream_create = c"cuStreamCreate": fn(*mut usize, c_uint);
    stream_query = c"cuStreamQuery": fn(usize);
    host_alloc = c"cuMemHostAlloc": fn(*mut *mut c_void, usize, c_uint);
    to_host = c"cuMemcpyDtoHAsync_v2": fn(*mut c_void, u64, usize, usize);
    to_device = c"cuMemcpyHtoDAsync_v2": fn(u64, *const c_void, usize, usize);
}

fn driver() -> Option<&'static Driver> {
    static DRIVER: OnceLock<Driver> = OnceLock::new();
    if let Some(driver) = DRIVER.get() {
        return Some(driver);
    }
    // One that is not loaded yet may be later.
    let found = Driver::find()?;
    Some(DRIVER.get_or_init(|| found))
}

impl Driver {
    /// An attribute of a pointer, of 8 bytes or less.
    fn attribute(&self, which: c_int, addr: u64) -> Option<u64> {
        let mut value = 0u64;
        // SAFETY: writes the attribute, of at most 8 bytes.
        let done = unsafe { (self.pointer_attribute)((&raw mut value).cast(), which, addr) };
        (done == SUCCESS).then_some(value)
    }

    /// The context and the device of GPU memory.
    fn owner(&self, addr: u64) -> Option<(usize, c_int)> {
        if self.attribute(ATTRIBUTE_MEMORY_TYPE, addr)? as u32 != TYPE_DEVICE {
            return None;
        }
        let ordinal = self.attribute(ATTRIBUTE_DEVICE_ORDINAL, addr)? as c_int;
        // Memory of cuMemCreate belongs to no context.
        let context = self.attribute(ATTRIBUTE_CONTEXT, addr).filter(|&context| context != 0);
        let context = context.map(|context| context as usize).or_else(|| {
            let (mut device, mut context) = (0, 0);
            // SAFETY: each writes one value. The context is kept for as long as the process is.
            let done = unsafe {
                (self.device_get)(&mut device, ordinal) == SUCCESS
                    && (self.primary_retain)(&mut context, device) == SUCCESS
            };
            done.then_some(context)
        });
        Some((context?, ordinal))
    }
}

/// Says what became of a copy; the first few times, since every access may fail in the same way.
fn trouble(line: &str) {
    const MOST_TOLD: u32 = 16;
    static TOLD: AtomicU32 = AtomicU32::new(0);
    if TOLD.fetch_add(1, Ordering::Relaxed) < MOST_TOLD {
        say(&format!("a copy of the GPU's memory {line}"));
    }
}

/// A stream with its buffer, for one copy at a time.
struct Lane {
    driver: &'static Driver,
    context: usize,
    stream: usize,
    bounce: usize,
    /// A copy did not end: the GPU may still use the buffer.
    broken: bool,
}

/// A context that is current for as long as this lives.
struct Current(&'static Driver);

impl Current {
    fn new(driver: &'static Driver, context: usize) -> Option<Self> {
        // SAFETY: a context that the driver named.
        (unsafe { (driver.push)(context) } == SUCCESS).then_some(Self(driver))
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        let mut context = 0;
        // SAFETY: takes back what `new` pushed.
        unsafe { (self.0.pop)(&mut context) };
    }
}

impl Lane {
    fn new(driver: &'static Driver, context: usize) -> Option<Self> {
        let _current = Current::new(driver, context)?;
        let (mut stream, mut bounce) = (0, std::ptr::null_mut());
        // SAFETY: each writes one value.
        let made = unsafe {
            (driver.stream_create)(&mut stream, NON_BLOCKING) == SUCCESS
                && (driver.host_alloc)(&mut bounce, BOUNCE_BYTES, PORTABLE) == SUCCESS
        };
        made.then_some(Self { driver, context, stream, bounce: bounce as usize, broken: false })
    }

    /// The lane of a context. It stays when its regions go: freeing would wait for kernels.
    fn of(driver: &'static Driver, context: usize) -> Option<Arc<Mutex<Self>>> {
        static LANES: OnceLock<Mutex<HashMap<usize, Arc<Mutex<Lane>>>>> = OnceLock::new();
        let lanes = LANES.get_or_init(Mutex::default);
        let mut lanes = lanes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lane) = lanes.get(&context) {
            return Some(lane.clone());
        }
        let lane = Arc::new(Mutex::new(Self::new(driver, context)?));
        lanes.insert(context, lane.clone());
        Some(lane)
    }

    /// Starts a copy and waits for it.
    fn run(&mut self, start: impl FnOnce(&Driver, usize) -> c_int) -> bool {
        let Some(_current) =
            (!self.broken).then(|| Current::new(self.driver, self.context)).flatten()
        else {
            return false;
        };
        let code = start(self.driver, self.stream);
        if code != SUCCESS {
            trouble(&format!("is refused (CUDA error {code})"));
            return false;
        }
        let began = Instant::now();
        loop {
            // SAFETY: the lane's own stream.
            match unsafe { (self.driver.stream_query)(self.stream) } {
                SUCCESS => return true,
                NOT_READY if began.elapsed() < LIMIT => std::hint::spin_loop(),
                code => {
                    let why = match code {
                        NOT_READY => format!("is not done after {LIMIT:?}: a kernel holds it up"),
                        code => format!("failed (CUDA error {code})"),
                    };
                    trouble(&format!("{why}; accesses to it fail from here"));
                    self.broken = true;
                    return false;
                }
            }
        }
    }

    /// Copies out of the GPU into the buffer, and hands it on.
    fn read(&mut self, addr: u64, bytes: usize, to: impl FnOnce(&[u8])) -> bool {
        let bounce = self.bounce as *mut u8;
        // SAFETY: the buffer has room; the driver checks the address.
        let copy = |d: &Driver, stream| unsafe { (d.to_host)(bounce.cast(), addr, bytes, stream) };
        let done = self.run(copy);
        if done {
            // SAFETY: the copy has ended, and the lane's lock is held.
            to(unsafe { std::slice::from_raw_parts(bounce, bytes) });
        }
        done
    }

    /// Has the buffer filled and copies it to the GPU.
    fn write(&mut self, addr: u64, bytes: usize, from: impl FnOnce(&mut [u8])) -> bool {
        let bounce = self.bounce as *mut u8;
        if self.broken {
            return false;
        }
        // SAFETY: no copy is under way, and the lane's lock is held.
        from(unsafe { std::slice::from_raw_parts_mut(bounce, bytes) });
        // SAFETY: the buffer is that long; the driver checks the address.
        self.run(|d, stream| unsafe { (d.to_device)(addr, bounce.cast(), bytes, stream) })
    }
}

/// A registered range of a GPU's memory.
pub struct GpuMem {
    addr: u64,
    bytes: usize,
    lane: Arc<Mutex<Lane>>,
}

impl GpuMem {
    /// A range that begins and ends in memory of one GPU; `None` for any other.
    pub fn register(addr: u64, bytes: usize) -> Option<Self> {
        let driver = driver()?;
        let last = addr.checked_add(bytes.checked_sub(1)? as u64)?;
        let (context, device) = driver.owner(addr)?;
        if driver.owner(last)?.1 != device {
            return None;
        }
        Some(Self { addr, bytes, lane: Lane::of(driver, context)? })
    }

    /// The memory as queues and records lie in it: from the beginning of its first page on, of which what comes before
    /// the memory is nobody's.
    pub fn hooked(self: &Arc<Self>) -> Arc<Hooked> {
        let shift = self.addr as usize % PAGE_BYTES;
        let queues = Box::new(Queues { memory: self.clone(), shift });
        Hooked::new(self.addr - shift as u64, shift + self.bytes, queues)
    }

    fn at(&self, offset: usize, bytes: usize) -> Result<u64, MemError> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(self.addr + offset as u64),
            _ => Err(MemError::OutOfBounds { offset, bytes, len: self.bytes }),
        }
    }

    fn lane(&self) -> MutexGuard<'_, Lane> {
        self.lane.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Goes through a range piece by piece.
    fn pieces(
        &self,
        offset: usize,
        bytes: usize,
        mut copy: impl FnMut(&mut Lane, u64, std::ops::Range<usize>) -> bool,
    ) -> Result<(), MemError> {
        let addr = self.at(offset, bytes)?;
        let mut lane = self.lane();
        for start in (0..bytes).step_by(BOUNCE_BYTES) {
            let end = (start + BOUNCE_BYTES).min(bytes);
            if !copy(&mut lane, addr + start as u64, start..end) {
                return Err(MemError::Fault { addr, bytes });
            }
        }
        Ok(())
    }

    fn change(&self, offset: usize, new: impl FnOnce(u64) -> u64) -> Result<u64, MemError> {
        static ALONE: Mutex<()> = Mutex::new(());
        let addr = self.at(offset, 8)?;
        if addr % 8 != 0 {
            return Err(MemError::Misaligned { offset, align: 8 });
        }
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        rewrite(self, offset, new)
    }
}

/// See [`GpuMem::hooked`].
struct Queues {
    memory: Arc<GpuMem>,
    shift: usize,
}

impl Queues {
    fn at(&self, offset: usize) -> Result<usize, MemError> {
        let before = MemError::OutOfBounds { offset, bytes: 0, len: self.memory.bytes };
        offset.checked_sub(self.shift).ok_or(before)
    }
}

impl Hook for Queues {
    fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), MemError> {
        self.memory.read(self.at(offset)?, into)
    }

    fn write(&self, offset: usize, from: &[u8]) -> Result<(), MemError> {
        self.memory.write(self.at(offset)?, from)
    }

    fn fetch_add(&self, offset: usize, add: u64) -> Result<u64, MemError> {
        self.memory.fetch_add(self.at(offset)?, add)
    }

    fn compare_swap(&self, offset: usize, compare: u64, swap: u64) -> Result<u64, MemError> {
        self.memory.compare_swap(self.at(offset)?, compare, swap)
    }
}

// SAFETY: names no address that is to be reached.
unsafe impl Dma for GpuMem {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn place(&self) -> Option<u64> {
        Some(self.addr)
    }

    fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), MemError> {
        self.pieces(offset, into.len(), |lane, addr, part| {
            lane.read(addr, part.len(), |bytes| into[part].copy_from_slice(bytes))
        })
    }

    fn write(&self, offset: usize, from: &[u8]) -> Result<(), MemError> {
        self.pieces(offset, from.len(), |lane, addr, part| {
            lane.write(addr, part.len(), |bytes| bytes.copy_from_slice(&from[part]))
        })
    }

    fn fetch_add(&self, offset: usize, add: u64) -> Result<u64, MemError> {
        self.change(offset, |old| old.wrapping_add(add))
    }

    fn compare_swap(&self, offset: usize, compare: u64, swap: u64) -> Result<u64, MemError> {
        self.change(offset, |old| if old == compare { swap } else { old })
    }

    fn read_to_host(
        &self,
        offset: usize,
        to: &HostMem,
        at: usize,
        n: usize,
    ) -> Result<(), MemError> {
        let mut moved = Ok(());
        self.pieces(offset, n, |lane, addr, part| {
            lane.read(addr, part.len(), |bytes| moved = to.write(at + part.start, bytes))
        })?;
        moved
    }

    fn write_from_host(
        &self,
        offset: usize,
        from: &HostMem,
        at: usize,
        n: usize,
    ) -> Result<(), MemError> {
        let mut moved = Ok(());
        self.pieces(offset, n, |lane, addr, part| {
            lane.write(addr, part.len(), |bytes| moved = from.read(at + part.start, bytes))
        })?;
        moved
    }
}
