//! An open device: its name, its limits, its port and its address.

use std::ffi::{CStr, OsStr};
use std::fmt;
use std::fs::OpenOptions;
use std::io;
use std::mem::zeroed;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::NonNull;

use rdma_sys::ibv_atomic_cap::IBV_ATOMIC_NONE;
use rdma_sys::{
    IBV_GID_TYPE_ROCE_V2, ibv_close_device, ibv_context, ibv_device, ibv_device_attr_ex,
    ibv_free_device_list, ibv_get_device_list, ibv_gid_entry, ibv_open_device, ibv_port_attr,
    ibv_port_state,
};

use super::dv::{self, Dv};
use super::error::Mlx5Error;
use super::events::{self, Events};
use super::gid::{self, Gid};
use super::verbs::{_ibv_query_gid_ex, verb};
use bellpush_nic::{Mtu, NicAddress};

/// Link layer of a port that speaks InfiniBand (`IBV_LINK_LAYER_INFINIBAND`).
const INFINIBAND: u8 = 1;
/// GIDs of a port that are looked at; ConnectX has 256.
const MAX_GIDS: u32 = 256;

/// A name as people give it: `mlx5_0`, `mlx5_0:1` or `mlx5_0:1:3`, each perhaps with marks:
/// `mlx5_0,tc=106,sl=3`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceName {
    /// The device's name in `/sys/class/infiniband`.
    pub device: String,
    /// Its port, from 1.
    pub port: u8,
    /// Index of the GID to use; `None` chooses.
    pub gid_index: Option<u8>,
    /// What packets are marked with, for switches.
    pub marks: Marks,
}

/// What packets of a device's queue pairs are marked with, for switches to tell them from others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Marks {
    /// Traffic class of routed packets; with RoCE v2 the IP header's DSCP (upper 6 bits) and ECN.
    pub traffic_class: u8,
    /// Service level; with RoCE the priority of a VLAN.
    pub service_level: u8,
}

impl std::str::FromStr for DeviceName {
    type Err = Mlx5Error;

    fn from_str(text: &str) -> Result<Self, Mlx5Error> {
        let bad = || Mlx5Error::Name { name: text.into() };
        let mut marks = Marks::default();
        let mut words = text.split(',');
        let mut parts = words.next().unwrap_or_default().split(':');
        let device = parts.next().filter(|d| !d.is_empty()).ok_or_else(bad)?.to_string();
        let port = parts.next().map_or(Ok(1), str::parse).map_err(|_| bad())?;
        let gid_index = parts.next().map(str::parse).transpose().map_err(|_| bad())?;
        if port == 0 || parts.next().is_some() {
            return Err(bad());
        }
        for word in words {
            match word.split_once('=') {
                Some(("tc", value)) => marks.traffic_class = value.parse().map_err(|_| bad())?,
                Some(("sl", value)) => marks.service_level = value.parse().map_err(|_| bad())?,
                _ => return Err(bad()),
            }
        }
        if marks.service_level > 15 {
            return Err(bad());
        }
        Ok(Self { device, port, gid_index, marks })
    }
}

/// An open context, its port and what the two can do.
pub(super) struct Device {
    pub name: String,
    pub dv: &'static Dv,
    context: NonNull<ibv_context>,
    pub port: u8,
    pub marks: Marks,
    /// Firmware, as the device says; a software device names itself here.
    pub firmware: String,
    /// All device memory there is, in bytes; 0 for none.
    pub max_dm_bytes: u64,
    /// Whether it has atomics on 8 bytes whose results are in this machine's byte order.
    pub atomics: bool,
    /// READs and atomics as requester and as responder.
    pub max_rd_atomic: [u8; 2],
    pub max_cqes: u32,
    /// Where peers find the port.
    pub address: NicAddress,
    /// GID of that address.
    pub gid: Gid,
    /// Path MTU that the port has now.
    pub mtu: Mtu,
    /// What went wrong outside of requests.
    pub events: Events,
}

// SAFETY: verbs may be called from any thread (rdma-core, Documentation/libibverbs.md: libibverbs
// and its providers are thread-safe), and the context lives until the last reference goes.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{} {:?}", self.name, self.port, self.address)
    }
}

/// libibverbs' device list, freed on drop. Contexts that were opened from it live on.
struct List(Option<NonNull<*mut ibv_device>>, usize);

impl List {
    fn get() -> Result<Self, Mlx5Error> {
        let mut count = 0;
        // SAFETY: writes one number, and gives back a list or null.
        let list = unsafe { ibv_get_device_list(&mut count) };
        match NonNull::new(list) {
            Some(list) => Ok(Self(Some(list), usize::try_from(count).unwrap_or(0))),
            None => match io::Error::last_os_error() {
                // A kernel without RDMA has no devices.
                error if error.raw_os_error() == Some(libc::ENOSYS) => Ok(Self(None, 0)),
                error => Err(Mlx5Error::List(error)),
            },
        }
    }

    fn devices(&self) -> impl Iterator<Item = (NonNull<ibv_device>, String)> {
        // SAFETY: the list has that many entries, and lives as long as this.
        let entry = |i| self.0.and_then(|list| NonNull::new(unsafe { *list.as_ptr().add(i) }));
        (0..self.1).filter_map(entry).map(|device| {
            // SAFETY: a device of the list; its name is a C string in it.
            let name = unsafe { CStr::from_ptr((*device.as_ptr()).name.as_ptr()) };
            (device, name.to_string_lossy().into_owned())
        })
    }
}

impl Drop for List {
    fn drop(&mut self) {
        if let Some(list) = self.0 {
            // SAFETY: from `ibv_get_device_list`, freed once.
            unsafe { ibv_free_device_list(list.as_ptr()) };
        }
    }
}

/// Names of this machine's RDMA devices, of whatever driver.
///
/// # Errors
/// [`Mlx5Error::List`].
pub fn devices() -> Result<Vec<String>, Mlx5Error> {
    Ok(List::get()?.devices().map(|(_, name)| name).collect())
}

impl Device {
    pub fn open(wanted: &DeviceName) -> Result<Self, Mlx5Error> {
        let name = wanted.device.clone();
        let list = List::get()?;
        let Some((device, _)) = list.devices().find(|(_, n)| *n == name) else {
            // libibverbs leaves out a device whose provider it cannot load: say that instead.
            if Path::new("/sys/class/infiniband").join(&name).exists() {
                dv::library()?;
            }
            let found = list.devices().map(|(_, name)| name).collect();
            return Err(Mlx5Error::NoDevice { name, found });
        };
        let dv = dv::library()?;
        // SAFETY: a device of the list, which still lives.
        if !unsafe { dv.is_supported(device) } {
            return Err(Mlx5Error::NotMlx5 { name });
        }
        // SAFETY: as above.
        let Some(context) = NonNull::new(unsafe { ibv_open_device(device.as_ptr()) }) else {
            let source = why_closed(device, io::Error::last_os_error());
            return Err(Mlx5Error::Open { name, source });
        };
        // From here on the context is closed by the device's drop, whatever else fails.
        let none = Gid { index: 0, raw: [0; 16], roce_v2: false };
        let mut device = Self {
            name,
            dv,
            context,
            port: wanted.port,
            marks: wanted.marks,
            firmware: String::new(),
            max_dm_bytes: 0,
            atomics: false,
            max_rd_atomic: [0; 2],
            max_cqes: 0,
            address: NicAddress::Lid { lid: 0, gid: none.raw },
            gid: none,
            mtu: Mtu::MAX,
            events: Events::default(),
        };
        // SAFETY: the context is open.
        let quick = unsafe { events::never_wait(context) };
        quick.map_err(|source| Mlx5Error::verb(&device.name, "fcntl", source))?;
        device.query_limits()?;
        device.query_port(wanted.gid_index)?;
        Ok(device)
    }

    pub fn context(&self) -> NonNull<ibv_context> {
        self.context
    }

    fn failed(&self, call: &'static str, code: i32) -> Mlx5Error {
        Mlx5Error::verb(&self.name, call, io::Error::from_raw_os_error(code.abs()))
    }

    fn query_limits(&mut self) -> Result<(), Mlx5Error> {
        let query = verb!(self, query_device_ex)?;
        // SAFETY: a structure of integers and character arrays.
        let mut attr: ibv_device_attr_ex = unsafe { zeroed() };
        let size = size_of_val(&attr);
        // SAFETY: an open context, and a structure of that size to fill in.
        let code = unsafe { query(self.context.as_ptr(), std::ptr::null(), &mut attr, size) };
        if code != 0 {
            return Err(self.failed("ibv_query_device_ex", code));
        }
        // SAFETY: an open context.
        let cqe_v1 = unsafe { self.dv.has_cqe_v1(self.context) };
        if !cqe_v1.map_err(|code| self.failed("mlx5dv_query_device", code))? {
            let lacks =
                "writes CQEs of version 0 (Connect-IB); ConnectX-4 and later write version 1";
            return Err(Mlx5Error::Capability { name: self.name.clone(), lacks });
        }
        let orig = &attr.orig_attr;
        let fw: Vec<u8> = orig.fw_ver.iter().map(|&c| c as u8).take_while(|&c| c != 0).collect();
        self.firmware = String::from_utf8_lossy(&fw).into_owned();
        self.max_dm_bytes = attr.max_dm_size;
        // A card that answers in big-endian order says NONE as well (mlx5_ib, get_atomic_caps_qp).
        self.atomics = orig.atomic_cap != IBV_ATOMIC_NONE;
        let few = |n: i32| n.clamp(0, 255) as u8;
        self.max_rd_atomic = [few(orig.max_qp_init_rd_atom), few(orig.max_qp_rd_atom)];
        self.max_cqes = u32::try_from(orig.max_cqe).unwrap_or(0);
        Ok(())
    }

    /// The port's attributes now.
    fn port_attr(&self) -> Result<ibv_port_attr, Mlx5Error> {
        let query = verb!(self, query_port)?;
        // SAFETY: a structure of integers.
        let mut attr: ibv_port_attr = unsafe { zeroed() };
        let size = size_of_val(&attr);
        // SAFETY: an open context, and a structure of that size to fill in.
        match unsafe { query(self.context.as_ptr(), self.port, &mut attr, size) } {
            0 => Ok(attr),
            libc::EINVAL => Err(Mlx5Error::Port {
                name: self.name.clone(),
                port: self.port,
                state: "not there",
            }),
            code => Err(self.failed("ibv_query_port", code)),
        }
    }

    /// Fails unless the port is up.
    fn active_port(&self) -> Result<ibv_port_attr, Mlx5Error> {
        let attr = self.port_attr()?;
        let state = match attr.state {
            ibv_port_state::IBV_PORT_ACTIVE => return Ok(attr),
            ibv_port_state::IBV_PORT_DOWN => "DOWN, not ACTIVE",
            ibv_port_state::IBV_PORT_INIT => "INIT, not ACTIVE (is a subnet manager running?)",
            ibv_port_state::IBV_PORT_ARMED => "ARMED, not ACTIVE",
            _ => "not ACTIVE",
        };
        Err(Mlx5Error::Port { name: self.name.clone(), port: self.port, state })
    }

    fn query_port(&mut self, gid_index: Option<u8>) -> Result<(), Mlx5Error> {
        let attr = self.active_port()?;
        self.mtu = mtu_of(attr.active_mtu).unwrap_or(Mtu::ALL[2]);
        let gids = self.gids(u32::try_from(attr.gid_tbl_len).unwrap_or(0));
        let none = |what: String| Mlx5Error::Gid { name: self.name.clone(), port: self.port, what };
        if attr.link_layer == INFINIBAND {
            let index = gid_index.unwrap_or(0);
            let gid = gids.iter().copied().find(|gid| gid.index == index);
            self.gid = gid.ok_or_else(|| none(format!("GID {index}")))?;
            self.address = NicAddress::Lid { lid: attr.lid, gid: self.gid.raw };
            return Ok(());
        }
        let what = || match gid_index {
            Some(index) => format!("RoCE v2 GID {index}"),
            None => "RoCE v2 GID".into(),
        };
        self.gid = gid::choose(&gids, gid_index).ok_or_else(|| none(what()))?;
        self.address = NicAddress::Ip(self.gid.ip());
        Ok(())
    }

    /// The port's GIDs; what cannot be read is not there.
    fn gids(&self, len: u32) -> Vec<Gid> {
        let entry = |index: u32| {
            // SAFETY: a structure of integers.
            let mut entry: ibv_gid_entry = unsafe { zeroed() };
            let (port, size) = (self.port.into(), size_of_val(&entry));
            // SAFETY: an open context, and a structure of that size to fill in.
            let code = unsafe {
                _ibv_query_gid_ex(self.context.as_ptr(), port, index, &mut entry, 0, size)
            };
            // SAFETY: all bytes of the union are bytes.
            let raw = unsafe { entry.gid.raw };
            let roce_v2 = entry.gid_type == IBV_GID_TYPE_ROCE_V2;
            let index = u8::try_from(index).ok()?;
            (code == 0 && raw != [0; 16]).then_some(Gid { index, raw, roce_v2 })
        };
        (0..len.min(MAX_GIDS)).filter_map(entry).collect()
    }

    /// What is wrong with the device, its port or one of these objects (by address): the reason why
    /// something else failed.
    pub fn trouble(&self, objects: &[usize]) -> Option<Mlx5Error> {
        // SAFETY: an open context; `open` called `never_wait`.
        let event = unsafe { self.events.look(self.context, objects) };
        let event = event.map(|event| Mlx5Error::Event { name: self.name.clone(), event });
        event.or_else(|| self.active_port().err())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: opened by `open`, and every object of the context holds a reference to this.
        unsafe { ibv_close_device(self.context.as_ptr()) };
    }
}

/// Why a device did not open: libibverbs goes on to look for its node by number, and says how that
/// ended, which is ENOENT in a container whatever kept it from opening the node itself.
fn why_closed(device: NonNull<ibv_device>, told: io::Error) -> io::Error {
    // SAFETY: a device of a list that still lives; the name is a C string in it.
    let node = unsafe { CStr::from_ptr((*device.as_ptr()).dev_name.as_ptr()) };
    let node = Path::new("/dev/infiniband").join(OsStr::from_bytes(node.to_bytes()));
    OpenOptions::new().read(true).write(true).open(node).err().unwrap_or(told)
}

/// `enum ibv_mtu`: 1 is 256 bytes, each next one twice that.
fn mtu_of(code: u32) -> Option<Mtu> {
    Mtu::ALL.get((code as usize).checked_sub(1)?).copied()
}

/// The code of a path MTU.
pub(super) fn mtu_code(mtu: Mtu) -> u32 {
    Mtu::ALL.iter().position(|&m| m == mtu).map_or(3, |i| i as u32 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_device_port_and_gid() {
        let parse = |text: &str| text.parse::<DeviceName>().ok();
        let name = |port, gid_index| {
            let marks = Marks::default();
            Some(DeviceName { device: "mlx5_0".into(), port, gid_index, marks })
        };
        assert_eq!(parse("mlx5_0"), name(1, None));
        assert_eq!(parse("mlx5_0:2"), name(2, None));
        assert_eq!(parse("mlx5_0:1:3"), name(1, Some(3)));
        let marks = |traffic_class, service_level| Some(Marks { traffic_class, service_level });
        assert_eq!(parse("mlx5_0,tc=106").map(|name| name.marks), marks(106, 0));
        assert_eq!(parse("mlx5_0:2:1,sl=3,tc=8").map(|name| name.marks), marks(8, 3));
        assert_eq!(parse("mlx5_0:1:3,sl=15").unwrap().gid_index, Some(3));
        for bad in [
            "",
            ":1",
            "mlx5_0:",
            "mlx5_0:0",
            "mlx5_0:x",
            "mlx5_0:1:2:3",
            "mlx5_0:1:256",
            "mlx5_0,",
            "mlx5_0,tc",
            "mlx5_0,tc=256",
            "mlx5_0,sl=16",
            "mlx5_0,dscp=1",
            ",tc=1",
        ] {
            let error = bad.parse::<DeviceName>().unwrap_err().to_string();
            assert!(error.contains(&format!("'{bad}'")), "{error}");
        }
    }

    #[test]
    fn mtu_codes_are_libibverbs() {
        for (mtu, code) in Mtu::ALL.into_iter().zip(1..) {
            assert_eq!((mtu_code(mtu), mtu_of(code)), (code, Some(mtu)));
        }
        assert_eq!((mtu_of(0), mtu_of(6)), (None, None));
    }

    #[test]
    fn a_device_that_is_not_there_is_told_with_those_that_are() {
        let error = Device::open(&"no_such_device".parse().unwrap()).unwrap_err().to_string();
        assert!(error.contains("no_such_device") && error.contains("bellpush run"), "{error}");
        for name in devices().unwrap() {
            assert!(error.contains(&name), "{error} lacks {name}");
        }
    }
}
