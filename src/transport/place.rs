//! Where queues and windows lie, and what follows for the fence before a doorbell.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Error, PathError};
use crate::gpu::{Gpu, Mapped};
use crate::mem::{Dma, HostMem, View};

/// Where an endpoint's send queue, doorbell record, completion queue or window lies.
///
/// | place | a kernel stores there | a kernel polls there | the NIC reads it |
/// |---|---|---|---|
/// | the posting GPU's memory | into its own L2 | locally | over the interconnect |
/// | host memory | over PCIe, posted | a round trip over PCIe, about 1 µs | as host memory |
/// | the NIC's memory | over the interconnect, posted | a round trip over it | locally |
///
/// A send queue, doorbell record and window in the posting GPU's memory allow a fence of GPU scope before the doorbell
/// ([`Reach::Gpu`]). A completion queue there makes waits local, whatever the rest does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum MemoryPlace {
    /// The NIC's own memory where it has some and a kernel posts, with the completion queue in the posting GPU's;
    /// else host memory. A staged window: host memory.
    #[default]
    Auto,
    /// Memory of the GPU that posts.
    Gpu,
    /// Host memory that the GPU has mapped, on [`Options::host_numa`](super::Options::host_numa).
    Host,
}

impl MemoryPlace {
    /// Every value.
    pub const ALL: &[Self] = &[Self::Auto, Self::Gpu, Self::Host];

    /// The name in results and on the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Gpu => "gpu",
            Self::Host => "host",
        }
    }
}

impl fmt::Display for MemoryPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for MemoryPlace {
    type Err = PathError;
    fn from_str(s: &str) -> Result<Self, PathError> {
        let known = "auto, gpu, host";
        let found = Self::ALL.iter().copied().find(|v| v.as_str() == s);
        found.ok_or_else(|| PathError::Unknown { what: "place", given: s.into(), known })
    }
}

/// The scope that the fence before a doorbell needs, `bp::reach` of the kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Reach {
    /// All that a kernel stores and the NIC then reads is this GPU's memory, and is read through its L2.
    Gpu,
    /// Some of it lies elsewhere.
    System,
}

impl Reach {
    /// The name in results, which is that of `bp::reach`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Gpu => "gpu",
            Self::System => "system",
        }
    }
}

impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Memory of queues or of a window.
#[derive(Clone)]
pub(super) struct Place {
    view: View,
    /// The memory as a NIC registers it.
    dma: Arc<dyn Dma>,
    /// `None` for a GPU's memory, which the processor does not reach: kernels have its address.
    mapped: Option<Mapped>,
    /// Whether it is the posting GPU's own memory.
    near: bool,
}

impl Place {
    /// Zero-filled memory of the GPU's.
    pub fn on_gpu(gpu: &Arc<Gpu>, bytes: usize) -> Result<Self, Error> {
        let memory = gpu.alloc(bytes)?;
        let view = match memory.as_host() {
            Some(view) => view.clone(),
            None => {
                let far = HostMem::far(memory.clone()).expect("a GPU's memory has an address");
                View::new(&far, 0, bytes)?
            }
        };
        Ok(Self { mapped: mapped(gpu, &view)?, view, dma: memory, near: true })
    }

    /// Zero-filled host memory that the GPU has mapped.
    pub fn on_host(gpu: &Arc<Gpu>, bytes: usize, numa: Option<usize>) -> Result<Self, Error> {
        let mapped = gpu.alloc_mapped(bytes, numa)?;
        let view = View::new(mapped.host(), 0, bytes)?;
        Ok(Self { dma: Arc::new(view.clone()), view, mapped: Some(mapped), near: false })
    }

    /// Memory of the NIC's own, which may be this GPU's: an engine on the same GPU.
    pub fn of_nic(gpu: &Arc<Gpu>, view: &View) -> Result<Self, Error> {
        let own: Vec<usize> = gpu.ordinal().into_iter().collect();
        let near = view.mem().is_far() && gpu.reach(view, &own).is_some();
        let dma = Arc::new(view.clone());
        Ok(Self { view: view.clone(), dma, mapped: mapped(gpu, view)?, near })
    }

    /// All of it, as the NIC has it.
    pub fn view(&self) -> &View {
        &self.view
    }

    pub fn dma(&self) -> &Arc<dyn Dma> {
        &self.dma
    }

    /// Whether it is the posting GPU's own memory.
    pub fn is_near(&self) -> bool {
        self.near
    }

    /// For whoever posts on the host.
    pub fn mapped(&self) -> Option<&Mapped> {
        self.mapped.as_ref()
    }

    /// The kernels' address of what the NIC calls `view`, if it lies here.
    pub fn device_addr(&self, view: &View) -> Option<u64> {
        // A mapping may be larger than the part of it that is ours: a register's page, the end of a MEMIC window.
        let (begin, bytes, addr) = match &self.mapped {
            Some(mapped) => (mapped.host_addr(), mapped.bytes(), mapped.addr()),
            None => (self.view.addr(), self.view.len(), self.view.addr()),
        };
        let at = view.addr().checked_sub(begin)?;
        (at < bytes as u64).then_some(addr + at)
    }
}

/// The mapping of memory that the processor reaches.
fn mapped(gpu: &Arc<Gpu>, view: &View) -> Result<Option<Mapped>, Error> {
    let mem = view.mem();
    Ok(if mem.is_far() { None } else { Some(gpu.register(mem)?) })
}
