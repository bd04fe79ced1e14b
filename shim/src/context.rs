//! An open device: the file behind its descriptor, and the objects that were created through it.

use std::collections::HashMap;
use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bellpush_mem::{HostMem, PAGE_BYTES, View};
use bellpush_nic::{Nic, QueuePair};

use crate::abi::ids::VERBS_IOCTL;
use crate::abi::mlx5::MMAP_DEVICE_MEM;
use crate::clock;
use crate::commands::cq::CqObj;
use crate::commands::dct::Dct;
use crate::commands::dm::DmObj;
use crate::commands::memory::{MrObj, MwObj, PdObj};
use crate::commands::qp::QpObj;
use crate::commands::srq::SrqObj;
use crate::commands::xrcd::XrcdObj;
use crate::commands::{self, Command, Undo};
use crate::device::{Device, Source};
use crate::devx::{DevxCq, DevxGeneral, DevxMkey, DevxQp, DevxRmp, Key, Umem};
use crate::error::Refusal;
use crate::events::{EventPipe, Reporter};
use crate::files::Kind;
use crate::names;
use crate::process::Process;
use crate::request::Request;
use crate::trap::Trap;

/// First page of UARs in the file: behind all that libmlx5's mapping commands can name, which have
/// 24 bits.
const UAR_PAGE: u64 = 1 << 24;
/// Most UARs of a context: a CQ names its page in 16 bits.
const MAX_UARS: u32 = 1 << 16;
const FILE_BYTES: u64 = (UAR_PAGE + MAX_UARS as u64) * PAGE_BYTES as u64;

/// An object of the program's.
pub enum Object {
    /// Protection domain.
    Pd(Arc<PdObj>),
    /// Memory region.
    Mr(MrObj),
    /// Memory window.
    Mw(MwObj),
    /// Completion queue.
    Cq(Arc<CqObj>),
    /// Queue pair.
    Qp(QpObj),
    /// Shared receive queue.
    Srq(Arc<SrqObj>),
    /// XRC domain.
    Xrcd(Arc<XrcdObj>),
    /// Address handle: its protection domain is all that is kept.
    Ah(#[allow(dead_code)] Arc<PdObj>),
    /// Device memory.
    Dm(Arc<DmObj>),
    /// UAR page, by its index.
    Uar(u32),
    /// Memory of DEVX objects.
    Umem(Arc<Umem>),
    /// Completion queue made through DEVX.
    DevxCq(Arc<DevxCq>),
    /// Queue pair made through DEVX.
    DevxQp(DevxQp),
    /// Target of dynamic connections, which nobody reaches.
    Dct(Dct),
    /// Receive memory pool made through DEVX.
    DevxRmp(Arc<DevxRmp>),
    /// Key made through DEVX.
    DevxMkey(DevxMkey),
    /// Object of the general kind, made through DEVX.
    DevxGeneral(DevxGeneral),
}

impl Object {
    /// Where its asynchronous events come from.
    fn source(&self) -> Option<Source> {
        match self {
            Self::Cq(cq) => Some(Source::Cq(cq.cq.number())),
            Self::Qp(qp) => Some(Source::Qp(qp.qp.qpn().0)),
            Self::Srq(srq) => Some(Source::Srq(srq.srq.number())),
            _ => None,
        }
    }
}

/// What an open device holds.
#[derive(Default)]
pub struct Objects {
    /// Whether the driver has said hello (`GET_CONTEXT`).
    pub is_open: bool,
    table: HashMap<u32, Object>,
    last: u32,
    /// UAR pages by index.
    pub uars: HashMap<u32, View>,
    /// Those that have queue pairs.
    traps: HashMap<u32, Weak<Trap>>,
    /// Pages of device memory in use: (first, number).
    pub dm_pages: Vec<(u32, u32)>,
    /// Where asynchronous events go.
    pub async_events: Option<Arc<EventPipe>>,
    /// Tells it the port's.
    pub port_events: Option<Arc<Reporter>>,
}

impl Objects {
    /// Takes an object on; its handle.
    pub fn add(&mut self, object: Object) -> u32 {
        loop {
            self.last = self.last.wrapping_add(1);
            if self.last != 0 && !self.table.contains_key(&self.last) {
                self.table.insert(self.last, object);
                return self.last;
            }
        }
    }

    /// An object by its handle.
    pub fn get(&self, handle: u32) -> Option<&Object> {
        self.table.get(&handle)
    }

    /// An object by its handle, to be changed.
    pub fn get_mut(&mut self, handle: u32) -> Option<&mut Object> {
        self.table.get_mut(&handle)
    }

    /// All objects, in no order.
    pub fn all(&self) -> impl Iterator<Item = &Object> {
        self.table.values()
    }

    /// Lets an object go.
    pub fn remove(&mut self, handle: u32) -> Option<Object> {
        self.table.remove(&handle)
    }
}

/// Declares how objects are found.
macro_rules! finders {
    ($($name:ident $variant:ident $type:ty, $what:literal;)*) => {
        impl Objects {$(
            /// The object of that kind with this handle.
            pub fn $name(&self, handle: u32) -> Result<&$type, Refusal> {
                match self.table.get(&handle) {
                    Some(Object::$variant(object)) => Ok(object),
                    _ => Err(Refusal::Handle { what: $what, handle }),
                }
            }
        )*}
    };
}
finders! {
    pd Pd Arc<PdObj>, "protection domain";
    mr Mr MrObj, "memory region";
    mw Mw MwObj, "memory window";
    cq Cq Arc<CqObj>, "completion queue";
    qp Qp QpObj, "queue pair";
    srq Srq Arc<SrqObj>, "shared receive queue";
    xrcd Xrcd Arc<XrcdObj>, "XRC domain";
    ah Ah Arc<PdObj>, "address handle";
    dm Dm Arc<DmObj>, "device memory";
    uar Uar u32, "UAR";
}

/// An open device.
pub struct Context {
    /// The device.
    pub device: Arc<Device>,
    objects: Mutex<Objects>,
}

impl Context {
    /// Opens a device; what comes back is the program's descriptor.
    ///
    /// It is a sparse file in memory, so that the program's `mmap` of UARs and device memory is the
    /// system's own, and shows the pages that the engine sees.
    pub fn open(process: &Process, index: usize, cloexec: bool) -> Result<OwnedFd, Refusal> {
        process.sweep();
        let device = process.device(index, None)?;
        let flags = libc::MFD_ALLOW_SEALING | if cloexec { libc::MFD_CLOEXEC } else { 0 };
        // SAFETY: the name is a C string; what comes back is checked.
        let fd = unsafe { libc::memfd_create(c"bellpush-uverbs".as_ptr(), flags) };
        if fd < 0 {
            return Err(Refusal::last("memfd_create"));
        }
        // SAFETY: a new descriptor that nobody else has.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(FILE_BYTES).map_err(|source| Refusal::System { call: "ftruncate", source })?;
        clock::lay_out(fd)?;
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: sealing a file of ours: a program that cut it off would take the pages from
        // under the engine.
        if unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, seals) } != 0 {
            return Err(Refusal::last("F_ADD_SEALS"));
        }
        let context = Arc::new(Self { device, objects: Mutex::default() });
        process.files.add(&file, Kind::Device(context))?;
        Ok(file.into())
    }

    /// How many objects there are.
    #[cfg(any(test, fuzzing))]
    pub fn count(&self) -> usize {
        let objects = self.objects();
        objects.table.len() + usize::from(objects.table.is_empty()) * objects.dm_pages.len()
    }

    fn objects(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries a command out.
    ///
    /// # Errors
    /// The errno that the program gets.
    pub fn ioctl(
        &self,
        process: &'static Process,
        fd: RawFd,
        request: u64,
        arg: u64,
    ) -> Result<(), i32> {
        if request != VERBS_IOCTL {
            return Err(libc::ENOTTY);
        }
        let request = Request::read(arg).map_err(|refusal| {
            process.refused("a command", &refusal);
            refusal.errno()
        })?;
        let what = process.options.verbose.then(|| names::of(&request));
        self.carry_out(process, fd, request).map_err(|refusal| {
            process.refused(what.as_deref().unwrap_or_default(), &refusal);
            refusal.errno()
        })
    }

    fn carry_out(
        &self,
        process: &'static Process,
        fd: RawFd,
        request: Request,
    ) -> Result<(), Refusal> {
        let mut objects = self.objects();
        let mut command =
            Command { process, context: self, objects: &mut objects, request, fd, undo: None };
        let dispatched = commands::dispatch(&mut command);
        let Command { request, undo, .. } = command;
        if let Err(refusal) = dispatched {
            // What firmware refuses, its answer's mailbox says as well.
            if matches!(refusal, Refusal::Firmware(_)) {
                request.send()?;
            }
            return Err(refusal);
        }
        let Err(refusal) = request.send() else { return Ok(()) };
        match undo {
            Some(Undo::Object(handle)) => self.discard(&mut objects, handle),
            Some(Undo::Descriptor(fd)) => {
                drop(objects);
                // SAFETY: the program was not told of the descriptor.
                drop(unsafe { OwnedFd::from_raw_fd(fd) });
            }
            None => {}
        }
        Err(refusal)
    }

    /// Has the events of an object told, which the program knows by `element`.
    pub fn listen(&self, objects: &Objects, source: Source, element: u64) {
        if let Some(pipe) = &objects.async_events {
            self.device.listeners.add(source, Reporter::new(pipe.clone(), element));
        }
    }

    /// Destroys an object, and tells how many of its asynchronous events the program has read: it
    /// waits until it has acknowledged as many.
    pub fn destroy_with_events(
        &self,
        objects: &mut Objects,
        handle: u32,
        source: Source,
    ) -> Result<u32, Refusal> {
        self.destroy(objects, handle)?;
        let reporter = self.device.listeners.remove(source);
        Ok(reporter.map_or(0, |reporter| reporter.read_so_far()))
    }

    /// Destroys an object. Nothing touches its memory after that.
    pub fn destroy(&self, objects: &mut Objects, handle: u32) -> Result<(), Refusal> {
        let nic = &self.device.nic;
        let Some(object) = objects.get(handle) else { return Ok(()) };
        match object {
            Object::Pd(pd) if Arc::strong_count(pd) > 1 => {
                return Err(Refusal::Busy("protection domain"));
            }
            Object::Cq(cq) if Arc::strong_count(cq) > 1 => {
                return Err(Refusal::Busy("completion queue"));
            }
            Object::Srq(srq) if Arc::strong_count(srq) > 1 => {
                return Err(Refusal::Busy("shared receive queue"));
            }
            Object::DevxRmp(rmp) if Arc::strong_count(rmp) > 1 => {
                return Err(Refusal::Busy("receive memory pool"));
            }
            Object::Xrcd(xrcd) if Arc::strong_count(xrcd) > 1 => {
                return Err(Refusal::Busy("XRC domain"));
            }
            Object::Dm(dm) if Arc::strong_count(dm) > 1 => {
                return Err(Refusal::Busy("device memory"));
            }
            Object::DevxCq(cq) if Arc::strong_count(cq) > 1 => {
                return Err(Refusal::Busy("completion queue"));
            }
            Object::DevxGeneral(object) if object.is_used() => {
                return Err(Refusal::Busy("element of a schedule"));
            }
            Object::Umem(umem) if Arc::strong_count(umem) > 1 => {
                return Err(Refusal::Busy("umem"));
            }
            Object::Mr(mr) => nic.deregister(mr.mr)?,
            Object::DevxMkey(DevxMkey { key: Key::Region(mr), .. }) => nic.deregister(*mr)?,
            Object::DevxMkey(DevxMkey { key: Key::Parts(key), .. }) => nic.destroy_mkey(*key)?,
            Object::DevxQp(qp) => nic.destroy_qp(qp.qp.qpn())?,
            Object::Dct(dct) => nic.destroy_qp(dct.qp.qpn())?,
            Object::Srq(srq) => srq.srq.close(),
            Object::DevxRmp(rmp) => rmp.srq.close(),
            Object::Mw(mw) => nic.destroy_mkey(mw.key)?,
            Object::Qp(qp) => nic.destroy_qp(qp.qp.qpn())?,
            _ => {}
        }
        let source = match objects.get(handle) {
            Some(Object::DevxCq(cq)) => Some(Source::Cq(cq.cq.number())),
            Some(Object::DevxQp(qp)) => Some(Source::Qp(qp.qp.qpn().0)),
            Some(Object::DevxRmp(rmp)) => Some(Source::Srq(rmp.srq.number())),
            _ => None,
        };
        match objects.remove(handle) {
            Some(Object::Uar(page)) => drop(objects.uars.remove(&page)),
            Some(Object::Dm(dm)) => {
                objects.dm_pages.retain(|&(first, _)| first != dm.first_page);
                dm.give_back(&self.device);
            }
            _ => {}
        }
        if let Some(source) = source {
            self.device.listeners.subscriptions.remove(source);
        }
        nic.quiesce();
        Ok(())
    }

    /// Destroys an object that nothing uses and nobody asks about.
    fn discard(&self, objects: &mut Objects, handle: u32) {
        let source = objects.get(handle).and_then(Object::source);
        let _ = self.destroy(objects, handle); // nothing uses it
        source.map(|source| self.device.listeners.remove(source));
    }

    /// Ends everything, those first that use others.
    pub fn shut_down(&self) {
        let mut objects = self.objects();
        let rank = |object: &Object| match object {
            Object::Qp(_) | Object::DevxQp(_) | Object::Dct(_) => 0,
            Object::Mr(_) | Object::Mw(_) | Object::DevxMkey(_) => 1,
            Object::Ah(_) | Object::DevxGeneral(_) => 1,
            Object::Srq(_) | Object::DevxRmp(_) => 2,
            Object::Cq(_) | Object::DevxCq(_) | Object::Dm(_) | Object::Uar(_) => 3,
            Object::Pd(_) | Object::Umem(_) | Object::Xrcd(_) => 4,
        };
        let mut handles: Vec<_> =
            objects.table.iter().map(|(&handle, object)| (rank(object), handle)).collect();
        handles.sort_unstable();
        for (_, handle) in handles {
            self.discard(&mut objects, handle);
        }
        *objects = Objects::default();
    }
}

/// Maps pages of a device's file.
pub fn map(fd: RawFd, first: u64, bytes: usize) -> Result<View, Refusal> {
    // SAFETY: the program's descriptor, which is not closed here.
    let file = ManuallyDrop::new(unsafe { File::from_raw_fd(fd) });
    // SAFETY: the file is a device's of ours, which nobody shortens.
    let mem = unsafe { HostMem::shared_at(&file, first * PAGE_BYTES as u64, bytes)? };
    Ok(View::new(&mem, 0, bytes)?)
}

/// Gives the memory behind pages of a device's file back: they are zero after that.
pub fn punch(fd: RawFd, first: u64, pages: u64) {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let page = PAGE_BYTES as u64;
    // SAFETY: the file is one of ours; what fails leaves the memory where it is.
    unsafe { libc::fallocate(fd, mode, (first * page) as i64, (pages * page) as i64) };
}

/// The file's page of a UAR.
pub fn uar_page(index: u32) -> u64 {
    UAR_PAGE + u64::from(index)
}

/// The file's page of a page of device memory, as libmlx5 computes it: the upper byte of the index
/// above the mapping command, the lower one below it.
pub fn dm_page(index: u32) -> u64 {
    u64::from(index >> 8) << 16 | MMAP_DEVICE_MEM << 8 | u64::from(index & 0xff)
}

impl Objects {
    /// Has the doorbells of a page be caught where that helps, for as long as it has queue pairs.
    pub fn trap(&mut self, fd: RawFd, index: u32, device: &Device) -> Option<Arc<Trap>> {
        if let Some(trap) = self.traps.get(&index).and_then(Weak::upgrade) {
            return Some(trap);
        }
        let offset = uar_page(index) * PAGE_BYTES as u64;
        let trap = Trap::new(fd, offset, self.uars.get(&index)?, device.index, &device.driver);
        let trap = Arc::new(trap);
        self.traps.insert(index, Arc::downgrade(&trap));
        Some(trap)
    }

    /// A UAR index that is free. Programs take 0 for none.
    pub fn free_uar(&self) -> Result<u32, Refusal> {
        (1..MAX_UARS).find(|index| !self.uars.contains_key(index)).ok_or(Refusal::Room("a UAR"))
    }
}
