//! Why a verbs device refused something.

use std::io;

use bellpush_nic::NicError;

/// Remedy for a machine without a device.
const SOFTWARE_DEVICE: &str =
    "for a software one start the program as `bellpush run -- COMMAND…`, or take --nic soft";

/// What can go wrong between a name and a working device.
#[derive(Debug, thiserror::Error)]
pub enum Mlx5Error {
    /// The device list could not be read.
    #[error("cannot list RDMA devices: {0}; is the module ib_uverbs loaded?")]
    List(#[source] io::Error),
    /// No device of that name.
    #[error("there is no RDMA device '{name}': {}; {SOFTWARE_DEVICE}", list_of(.found))]
    NoDevice {
        /// What was asked for.
        name: String,
        /// What there is.
        found: Vec<String>,
    },
    /// A name that is no name.
    #[error(
        "'{name}' is no RDMA device: give NAME, NAME:PORT or NAME:PORT:GID-INDEX, then perhaps ,tc=0..255 and ,sl=0..15"
    )]
    Name {
        /// What was given.
        name: String,
    },
    /// The device belongs to another driver.
    #[error("RDMA device '{name}' is not an mlx5 device; bellpush writes mlx5 queues only")]
    NotMlx5 {
        /// The device.
        name: String,
    },
    /// The device node could not be opened.
    #[error("cannot open RDMA device '{name}': {source}; {}", remedy(.source))]
    Open {
        /// The device.
        name: String,
        /// What the system said.
        source: io::Error,
    },
    /// No libmlx5.
    #[error("libmlx5.so.1 cannot be loaded ({0}): install ibverbs-providers or MLNX_OFED")]
    NoLibrary(#[source] libloading::Error),
    /// An old libmlx5.
    #[error("this machine's libmlx5 has no {symbol}: install a newer rdma-core or MLNX_OFED")]
    NoSymbol {
        /// The function that is missing.
        symbol: &'static str,
    },
    /// An old libibverbs, or a driver without a verb.
    #[error("device '{name}' has no {verb}: its driver or this machine's rdma-core is too old")]
    NoVerb {
        /// The device.
        name: String,
        /// The verb that is missing.
        verb: &'static str,
    },
    /// A device that lacks something which nothing can replace.
    #[error("device '{name}' {lacks}")]
    Capability {
        /// The device.
        name: String,
        /// What it lacks, and what follows.
        lacks: &'static str,
    },
    /// A port that does not exist or is not up.
    #[error("port {port} of '{name}' is {state}; ibv_devinfo -d {name} shows its ports")]
    Port {
        /// The device.
        name: String,
        /// The port.
        port: u8,
        /// Its state.
        state: &'static str,
    },
    /// No usable GID.
    #[error("port {port} of '{name}' has no {what}; give its network interface an IP address")]
    Gid {
        /// The device.
        name: String,
        /// The port.
        port: u8,
        /// What was looked for.
        what: String,
    },
    /// A peer that this port cannot reach.
    #[error(
        "the peer's address {peer} cannot be reached from {local}: both ends must be InfiniBand, or \
         IPv4, or IPv6; choose another GID with NAME:PORT:GID-INDEX"
    )]
    Unreachable {
        /// The peer's NIC.
        peer: String,
        /// This port.
        local: String,
    },
    /// A call failed.
    #[error("{call} failed on '{name}': {source}{hint}")]
    Verb {
        /// The device.
        name: String,
        /// The call.
        call: &'static str,
        /// The system's error.
        source: io::Error,
        /// What is often the reason, or nothing.
        hint: &'static str,
    },
    /// GPU memory that could be registered in neither way.
    #[error(
        "GPU memory of {bytes} bytes cannot be registered with '{name}': as a dma-buf: {dmabuf}; as \
         an address: {plain} (is the module nvidia_peermem loaded?)"
    )]
    GpuMemory {
        /// The device.
        name: String,
        /// Length.
        bytes: usize,
        /// What became of the dma-buf.
        dmabuf: String,
        /// What became of plain registration.
        plain: io::Error,
    },
    /// Device memory that there is no room for.
    #[error(
        "{bytes} bytes of device memory cannot be had on '{name}' ({source}): it has {max} bytes in \
         all, and every endpoint of a push path takes a window of it; give a smaller window, or place it in host memory \
         (Options::window_place)"
    )]
    DeviceMemory {
        /// The device.
        name: String,
        /// What was asked for.
        bytes: usize,
        /// What the device has.
        max: u64,
        /// The system's error.
        source: io::Error,
    },
    /// Queues that are not what was asked for.
    #[error("libmlx5 made {what} {found}, but {wanted} was asked for")]
    Queue {
        /// What differs.
        what: &'static str,
        /// What libmlx5 says.
        found: u64,
        /// What it should be.
        wanted: u64,
    },
    /// Something happened to the device, asynchronously.
    #[error("'{name}' reports: {event}")]
    Event {
        /// The device.
        name: String,
        /// In libibverbs' words.
        event: String,
    },
    /// An object that is still in use.
    #[error(
        "{call} failed on '{name}' ({source}): the object's memory is kept until the program ends"
    )]
    Destroy {
        /// The device.
        name: String,
        /// The call.
        call: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl From<Mlx5Error> for NicError {
    fn from(error: Mlx5Error) -> Self {
        Self::Device(error.into())
    }
}

impl Mlx5Error {
    /// The failed call of this thread, whose `errno` is still there.
    pub(super) fn last(name: &str, call: &'static str) -> Self {
        Self::verb(name, call, io::Error::last_os_error())
    }

    /// A failed call that returned its error.
    pub(super) fn verb(name: &str, call: &'static str, source: io::Error) -> Self {
        let hint = match (call, source.raw_os_error()) {
            (_, Some(libc::ENOMEM)) if call.starts_with("ibv_reg") || call.contains("create") => {
                ": is the locked-memory limit (ulimit -l) large enough?"
            }
            ("ibv_modify_qp to RTR", Some(libc::ENETUNREACH | libc::ETIMEDOUT | libc::EINVAL)) => {
                ": is the peer's address in the subnet of this port's GID?"
            }
            _ => "",
        };
        Self::Verb { name: name.into(), call, source, hint }
    }
}

fn list_of(devices: &[String]) -> String {
    if devices.is_empty() {
        "this machine has none".into()
    } else {
        format!("there are {}", devices.join(", "))
    }
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "who may use it is the mode of /dev/infiniband/uverbs*: join its group, or be root"
        }
        io::ErrorKind::NotFound => "is the module ib_uverbs loaded, and /dev/infiniband there?",
        _ => "dmesg may say why",
    }
}
