//! Why a command is refused, and the errno that says so to the program.

use std::net::IpAddr;

use bellpush_cm::IdError;
use bellpush_mem::MemError;
use bellpush_nic::NicError;
use bellpush_soft_nic::link::LinkError;

/// A refusal.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// `EPROTONOSUPPORT`, by which the kernel tells a library to try another way.
    #[error("this device has no such call (object {object:#x}, method {method:#x})")]
    Method {
        /// `object_id`.
        object: u16,
        /// `method_id`.
        method: u16,
    },
    /// `EPROTONOSUPPORT`: an attribute that must be understood is not.
    #[error("attribute {0:#x} is not understood")]
    Attribute(u16),
    /// `EOPNOTSUPP`.
    #[error("{0} is not supported")]
    Unsupported(&'static str),
    /// `EOPNOTSUPP`, for a command by its number.
    #[error("this device has no such command ({0:#x})")]
    Command(u32),
    /// `EINVAL`.
    #[error("{what} is {value:#x}, but must be {must}")]
    Value {
        /// What is wrong.
        what: &'static str,
        /// Its value.
        value: u64,
        /// What is accepted.
        must: &'static str,
    },
    /// `EINVAL`: the request lacks an attribute.
    #[error("attribute {0:#x} is missing")]
    Missing(u16),
    /// `ENOENT`.
    #[error("there is no {what} with handle {handle}")]
    Handle {
        /// Kind of object.
        what: &'static str,
        /// The handle.
        handle: u32,
    },
    /// `EINVAL`: a command of the device names an object by a number that none has.
    #[error("there is no {what} with number {number:#x}")]
    Number {
        /// Kind of object.
        what: &'static str,
        /// Its number on the device.
        number: u32,
    },
    /// `EINVAL`: a command's mailbox is shorter than its struct.
    #[error("the mailbox has {have} bytes of {need}")]
    Mailbox {
        /// Bytes given.
        have: usize,
        /// Bytes needed.
        need: usize,
    },
    /// `EREMOTEIO`: the device refused a command, and its answer says so.
    #[error("{0}")]
    Firmware(#[source] Box<Refusal>),
    /// `EPERM`.
    #[error("not allowed: {0}")]
    Denied(&'static str),
    /// `EBUSY`.
    #[error("the {0} is in use")]
    Busy(&'static str),
    /// `EFAULT`.
    #[error("{bytes} bytes at {addr:#x} cannot be accessed")]
    Fault {
        /// First byte.
        addr: u64,
        /// Length.
        bytes: usize,
    },
    /// `ENODATA`: an empty entry of the GID table.
    #[error("GID index {0} is empty")]
    NoGid(u64),
    /// `EAGAIN`, as the kernel says it: nobody has opened a domain of that file.
    #[error("the file has no XRC domain")]
    NoDomain,
    /// `ENOMEM`.
    #[error("there is no room for {0}")]
    Room(&'static str),
    /// `ENOSPC`: the answer of a kernel whose commands all go by `ioctl`.
    #[error("the command has no core part")]
    NoCore,
    /// `ENOSYS`, by which the kernel says that its version has no such thing.
    #[error("{0} is not known")]
    NoSystemCall(&'static str),
    /// `ENOSPC`: the answer finds no room.
    #[error("the answer has {need} bytes, and there is room for {have}")]
    NoAnswerRoom {
        /// Bytes that the program has room for.
        have: usize,
        /// Bytes needed.
        need: usize,
    },
    /// `EAGAIN`: nothing has happened, and the program does not wait.
    #[error("there is no event")]
    NoEvent,
    /// `ENODEV`: an address of this machine's, as opposed to one that nobody has.
    #[error("no device of this process has the address {0}, which is this machine's")]
    NoDeviceAt(IpAddr),
    /// Of connection management.
    #[error(transparent)]
    Id(#[from] IdError),
    /// The NIC's own reason.
    #[error(transparent)]
    Nic(#[from] NicError),
    /// Memory.
    #[error(transparent)]
    Memory(#[from] MemError),
    /// The link.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// A call of the system.
    #[error("{call}: {source}")]
    System {
        /// What was called.
        call: &'static str,
        /// Its error.
        source: std::io::Error,
    },
}

impl Refusal {
    /// The errno.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Method { .. } | Self::Attribute(_) => libc::EPROTONOSUPPORT,
            Self::Unsupported(_) | Self::Command(_) => libc::EOPNOTSUPP,
            Self::Value { .. } | Self::Missing(_) => libc::EINVAL,
            Self::Number { .. } | Self::Mailbox { .. } => libc::EINVAL,
            Self::Firmware(_) => libc::EREMOTEIO,
            Self::Handle { .. } => libc::ENOENT,
            Self::Denied(_) => libc::EPERM,
            Self::Busy(_) => libc::EBUSY,
            Self::Fault { .. } | Self::Memory(MemError::Fault { .. }) => libc::EFAULT,
            Self::NoGid(_) => libc::ENODATA,
            Self::NoDomain => libc::EAGAIN,
            Self::Room(_) => libc::ENOMEM,
            Self::NoCore | Self::NoAnswerRoom { .. } => libc::ENOSPC,
            Self::NoSystemCall(_) => libc::ENOSYS,
            Self::NoEvent => libc::EAGAIN,
            Self::NoDeviceAt(_) => libc::ENODEV,
            Self::Id(error) => match error {
                IdError::Unknown => libc::ENOENT,
                IdError::OtherChannel | IdError::Stage | IdError::Value(_) => libc::EINVAL,
                IdError::Established => libc::EISCONN,
                IdError::InUse => libc::EADDRINUSE,
                IdError::NotLocal(_) => libc::EADDRNOTAVAIL,
                IdError::NoDevice => libc::ENODEV,
                IdError::Unsupported(_) => libc::EOPNOTSUPP,
                IdError::Full => libc::ENOMEM,
            },
            Self::Link(_) => libc::EIO,
            Self::Nic(NicError::Memory(MemError::Fault { .. })) => libc::EFAULT,
            Self::Nic(NicError::Full { .. } | NicError::Random(_) | NicError::Thread(_)) => {
                libc::ENOMEM
            }
            Self::Nic(NicError::NoSuchPeer { .. }) => libc::EHOSTUNREACH,
            Self::Nic(NicError::Engine(_)) => libc::EIO,
            Self::Nic(_) | Self::Memory(_) => libc::EINVAL,
            Self::System { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        }
    }

    /// The call of the system that just failed.
    pub fn last(call: &'static str) -> Self {
        Self::System { call, source: std::io::Error::last_os_error() }
    }
}
