//! Where a topology comes from: a built-in, a file, a machine's sysfs, or what tools printed.

use std::path::Path;

use bellpush::pcie::topology::{
    BUILTIN_NAMES, Capture, Matrix, Topology, TopologyError, Tree, capture_sysfs, compare,
    from_lspci,
};

use super::TopoArgs;
use crate::values;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// What was read.
pub enum Source {
    /// A topology as it is.
    Given(Topology),
    /// Functions of a machine, and nvidia-smi's matrix beside them.
    Captured(Capture, Option<Matrix>),
    /// nvidia-smi's matrix alone.
    Matrix(Matrix),
}

fn read(path: &Path) -> Result<String> {
    // Names of devices may be in any encoding.
    Ok(String::from_utf8_lossy(&values::read_bytes(path)?).into_owned())
}

/// Loads a topology by name: a built-in, a TOML file, or the running machine.
fn load(name: &str, socket_gb_per_s: Option<f64>) -> Result<Topology> {
    if name == "machine" {
        let capture = machine()?;
        return Ok(Tree::new(&capture).topology("this machine", socket_gb_per_s)?);
    }
    Ok(values::topology(name)?)
}

/// Containers and machines without PCI do not have this directory.
fn machine() -> Result<Capture> {
    let names = BUILTIN_NAMES.join(", ");
    capture_sysfs(Path::new("/sys"))
        .map_err(|e| format!("this machine: {e} (name a file, or one of {names})").into())
}

impl Source {
    /// Reads what the arguments name.
    pub fn read(args: &TopoArgs) -> Result<Self> {
        let matrix = match &args.nvidia_smi {
            Some(path) => {
                let matrix = Matrix::parse(&read(path)?);
                Some(matrix.map_err(|e| format!("{}: {e}", path.display()))?)
            }
            None => None,
        };
        if let Some(dir) = &args.sysfs {
            let capture = capture_sysfs(dir).map_err(|e| e.to_string())?;
            return Ok(Self::Captured(capture, matrix));
        }
        if !args.from.is_empty() {
            let mut capture = Capture::default();
            for path in &args.from {
                let one = from_lspci(&read(path)?);
                capture.merge(one.map_err(|e| format!("{}: {e}", path.display()))?);
            }
            if let Some(what) = capture.contradiction() {
                return Err(format!("--from: {what}: are these files of one machine?").into());
            }
            return Ok(Self::Captured(capture, matrix));
        }
        match (args.topology.as_deref(), matrix) {
            (None, Some(matrix)) => Ok(Self::Matrix(matrix)),
            (None | Some("machine"), matrix) => Ok(Self::Captured(machine()?, matrix)),
            (Some(_), Some(_)) => {
                Err("--nvidia-smi: stands alone, or beside machine, --sysfs or --from".into())
            }
            (Some(name), None) => Ok(Self::Given(load(name, args.socket_gb_per_s)?)),
        }
    }

    /// The capture's tree, the matrix beside it.
    pub fn tree(&self) -> Option<Tree<'_>> {
        let Self::Captured(capture, matrix) = self else { return None };
        let tree = Tree::new(capture);
        Some(match matrix {
            Some(matrix) => tree.beside(matrix),
            None => tree,
        })
    }

    /// Whether nvidia-smi's matrix stands beside a capture in which fewer than two of its devices are known.
    pub fn is_beside_a_stranger(&self) -> bool {
        let Self::Captured(_, Some(matrix)) = self else { return false };
        self.tree().is_some_and(|tree| compare(&tree, matrix).devices.len() < 2)
    }

    /// What /proc says of this machine's CPU, if it is this machine that was read.
    fn own_cpu(&self, args: &TopoArgs) -> Option<String> {
        let is_this =
            args.sysfs.is_none() && args.from.is_empty() && matches!(self, Self::Captured(..));
        is_this.then(|| std::fs::read_to_string("/proc/cpuinfo").ok()).flatten()
    }

    /// Whether it is of a guest: its root ports are its hypervisor's, whatever CPU runs it.
    pub fn is_guest(&self, args: &TopoArgs) -> bool {
        args.cpu.is_none() && self.own_cpu(args).is_some_and(|text| values::is_guest(&text))
    }

    /// The CPU that the command names, or this machine's, unless that is a guest; a topology may have its own.
    pub fn cpu(&self, args: &TopoArgs) -> Option<String> {
        let own = || self.own_cpu(args).filter(|text| !values::is_guest(text));
        args.cpu.clone().or_else(|| own().as_deref().and_then(values::cpu_name))
    }

    /// Its topology.
    pub fn topology(&self, args: &TopoArgs) -> std::result::Result<Topology, TopologyError> {
        let name = match (&args.sysfs, args.from.first()) {
            (Some(path), _) | (None, Some(path)) => path.display().to_string(),
            (None, None) => "this machine".to_owned(),
        };
        match self {
            Self::Given(topology) => Ok(topology.clone()),
            Self::Captured(capture, _) => Tree::new(capture).topology(&name, args.socket_gb_per_s),
            Self::Matrix(matrix) => matrix.topology("nvidia-smi's matrix", args.socket_gb_per_s),
        }
    }
}
