//! Where tables of auto endpoints are kept: a JSON file with one for each machine.

use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{env, fmt, fs, io, thread};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::place::Place;
use super::{Error, Memory, MemoryPlace, Options, Ranges, Tuning};
use crate::gpu::Gpu;
use crate::mem;
use crate::nic::{Nic, Order};
use crate::preload::one_line;

/// Version of the file's form.
const VERSION: u32 = 1;
/// The library that measured it: another one's kernels may take other times.
const LIBRARY: &str = env!("CARGO_PKG_VERSION");
/// Names a file to be read in place of the user's own.
const VARIABLE: &str = "BELLPUSH_TUNING";
/// Longest wait for others that keep a table; each takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// Who carries a NIC's WQEs out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum EngineSide {
    /// Hardware, or what stands for it: the NIC needs a doorbell.
    None,
    /// Threads of the software NIC.
    Host,
    /// A kernel on another GPU.
    Gpu,
    /// A kernel on the GPU that posts.
    SameGpu,
}

/// What a table holds for: who posts, who reads, and where all of it lies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Machine {
    /// The GPU's name; `host` for the host executor.
    pub gpu: String,
    /// The NIC's name.
    pub nic: String,
    /// Its engine.
    pub engine: EngineSide,
    /// Where the sender's region lies.
    pub region: MemoryPlace,
    /// [`Options::sq_place`].
    pub sq: MemoryPlace,
    /// [`Options::dbr_place`].
    pub dbr: MemoryPlace,
    /// [`Options::cq_place`].
    pub cq: MemoryPlace,
    /// [`Options::window_place`].
    pub window: MemoryPlace,
}

impl Machine {
    /// The machine of an endpoint with these options, whose region is `local`.
    ///
    /// # Errors
    /// When the NIC has no memory for a look at where it lies.
    pub fn of(
        gpu: &Arc<Gpu>,
        nic: &Arc<dyn Nic>,
        local: &Memory,
        options: &Options,
    ) -> Result<Self, Error> {
        let engine = match nic.order() {
            Order::Strict => EngineSide::None,
            Order::Later => match nic.alloc_queues(mem::PAGE_BYTES)? {
                None => EngineSide::Host,
                Some(own) if Place::of_nic(gpu, &own)?.is_near() => EngineSide::SameGpu,
                Some(_) => EngineSide::Gpu,
            },
        };
        let region = match local {
            Memory::Device(_) => MemoryPlace::Gpu,
            Memory::Host(_) => MemoryPlace::Host,
        };
        Ok(Self {
            gpu: gpu.describe().name.clone().unwrap_or_else(|| "host".into()),
            nic: nic.name().into(),
            engine,
            region,
            sq: options.sq_place,
            dbr: options.dbr_place,
            cq: options.cq_place,
            window: options.window_place,
        })
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let engine = match self.engine {
            EngineSide::None => "",
            EngineSide::Host => ", engine on the host",
            EngineSide::Gpu => ", engine on another GPU",
            EngineSide::SameGpu => ", engine on the same GPU",
        };
        let Self { gpu, nic, region, sq, dbr, cq, window, .. } = self;
        write!(
            f,
            "GPU {gpu}, NIC {nic}{engine}, region={region},sq={sq},dbr={dbr},cq={cq},window={window}"
        )
    }
}

/// Where a table comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// The program gave it.
    Given,
    /// It was measured on this machine, and is in this file.
    Measured(PathBuf),
    /// The library's own, and why.
    BuiltIn(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Given => f.write_str("given by the program"),
            Self::Measured(file) => write!(f, "measured, from {}", file.display()),
            Self::BuiltIn(why) => {
                write!(f, "built in, not measured here: {why}; bellpush bench --tune measures one")
            }
        }
    }
}

/// Why a table was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TuningError {
    /// Ranges that are no table.
    #[error("the ranges of a tuning table are refused: {why}")]
    Ranges {
        /// What is wrong.
        why: &'static str,
    },
    /// A file that cannot be read or written.
    #[error("the tuning file {}: {source}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file that holds something else.
    #[error("the tuning file {} is not one of ours: {}; remove it, and tune again", file.display(), one_line(.source))]
    Form {
        /// The file.
        file: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
    /// A file of another form.
    #[error("the tuning file {} has version {found}, and this is for version 1; remove it, and tune again", file.display())]
    Version {
        /// The file.
        file: PathBuf,
        /// Its version.
        found: u32,
    },
    /// A file without a table for this machine, or with one that another version measured.
    #[error("the tuning file {} has no table of this machine: {}", file.display(), one_line(.why))]
    NoTable {
        /// The file.
        file: PathBuf,
        /// What it has.
        why: String,
    },
    /// No folder to keep it in.
    #[error(
        "neither XDG_CONFIG_HOME nor HOME says where to keep a tuning table; name a file in {VARIABLE}"
    )]
    NoFolder,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: u32,
    tables: Vec<Table>,
}

#[derive(Deserialize)]
struct AnyVersion {
    version: u32,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    machine: Machine,
    /// The library's version.
    bellpush: String,
    thread: Ranges,
    warp: Ranges,
    block: Ranges,
}

impl Tuning {
    /// The table of a machine, from the file that `BELLPUSH_TUNING` names, which then must be there, or from
    /// [`Tuning::file`]. A machine without a table there gets the one that is built in, whose [`Origin`] says why.
    ///
    /// # Errors
    /// [`TuningError`] for a file that cannot be read, or is not one of ours.
    pub fn of(machine: &Machine) -> Result<Self, TuningError> {
        match named_file() {
            Some(named) => Self::load(&named, machine).or_else(|none| Self::without(none, machine)),
            None => Self::of_user(user_file().ok(), machine),
        }
    }

    fn of_user(file: Option<PathBuf>, machine: &Machine) -> Result<Self, TuningError> {
        let Some(file) = file else { return Self::without(TuningError::NoFolder, machine) };
        match Self::load(&file, machine) {
            Err(TuningError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                let why = "there is no file".into();
                Self::without(TuningError::NoTable { file, why }, machine)
            }
            found => found.or_else(|none| Self::without(none, machine)),
        }
    }

    /// The table that is built in, where there is no other.
    fn without(none: TuningError, machine: &Machine) -> Result<Self, TuningError> {
        match none {
            TuningError::NoTable { .. } | TuningError::NoFolder => {
                Ok(Self { origin: Origin::BuiltIn(none.to_string()), ..Self::built_in(machine) })
            }
            other => Err(other),
        }
    }

    /// A machine's table from a file.
    ///
    /// # Errors
    /// As [`Tuning::of`], and [`TuningError::NoTable`] where it has none, or another version measured it.
    pub fn load(file: &FilePath, machine: &Machine) -> Result<Self, TuningError> {
        let no_table = |why| Err(TuningError::NoTable { file: file.into(), why });
        let tables = read(file)?.tables;
        match tables.iter().find(|table| table.machine == *machine) {
            None => {
                let others: Vec<String> = tables.iter().map(|t| t.machine.to_string()).collect();
                no_table(format!(
                    "this is {machine}; it has {}",
                    match others.as_slice() {
                        [] => "none".into(),
                        others => others.join("; "),
                    }
                ))
            }
            Some(table) if table.bellpush != LIBRARY => {
                no_table(format!("bellpush {} measured it, and this is {LIBRARY}", table.bellpush))
            }
            Some(Table { thread, warp, block, .. }) => Ok(Self {
                origin: Origin::Measured(file.into()),
                ..Self::new(thread.clone(), warp.clone(), block.clone())
            }),
        }
    }

    /// Keeps the table in a file as the machine's, in place of the one before; those of other machines stay.
    ///
    /// # Errors
    /// [`TuningError`] for a file that cannot be written, or that is there and not one of ours.
    pub fn save(&self, file: &FilePath, machine: &Machine) -> Result<(), TuningError> {
        let trouble = |source| TuningError::File { file: file.into(), source };
        let folder = match file.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => FilePath::new("."),
        };
        fs::create_dir_all(folder).map_err(trouble)?;
        // Until the file is replaced: another's table that came meanwhile would be lost. It ends with `_turn`.
        let _turn = turn(folder).map_err(trouble)?;
        let mut tables = match read(file) {
            Ok(there) => there.tables,
            Err(TuningError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Vec::new()
            }
            Err(other) => return Err(other),
        };
        tables.retain(|table| table.machine != *machine);
        tables.push(Table {
            machine: machine.clone(),
            bellpush: LIBRARY.into(),
            thread: self.thread.clone(),
            warp: self.warp.clone(),
            block: self.block.clone(),
        });
        let text = serde_json::to_string_pretty(&File { version: VERSION, tables })
            .map_err(|e| trouble(e.into()))?;
        // Whoever reads it meanwhile finds the old one or the new one.
        let mut beside = file.as_os_str().to_owned();
        beside.push(format!(".{}", std::process::id()));
        let written = fs::write(&beside, text + "\n").and_then(|()| fs::rename(&beside, file));
        written.map_err(|e| {
            let _ = fs::remove_file(&beside); // it may not be there
            trouble(e)
        })
    }

    /// The file in which this user's tables are: what `BELLPUSH_TUNING` names, else `bellpush/tuning.json` in
    /// `XDG_CONFIG_HOME` or `~/.config`.
    ///
    /// # Errors
    /// [`TuningError::NoFolder`].
    pub fn file() -> Result<PathBuf, TuningError> {
        named_file().map_or_else(user_file, Ok)
    }
}

fn named_file() -> Option<PathBuf> {
    env::var_os(VARIABLE).filter(|name| !name.is_empty()).map(PathBuf::from)
}

fn user_file() -> Result<PathBuf, TuningError> {
    // A folder that is not absolute is to be ignored (XDG Base Directory Specification).
    let folder = |name| env::var_os(name).map(PathBuf::from).filter(|folder| folder.is_absolute());
    let config =
        folder("XDG_CONFIG_HOME").or_else(|| folder("HOME").map(|home| home.join(".config")));
    Ok(config.ok_or(TuningError::NoFolder)?.join("bellpush").join("tuning.json"))
}

/// Takes the folder's lock, once no other process or thread that keeps a table has it. `None` where the file system has
/// no such lock, as NFS for folders.
fn turn(folder: &FilePath) -> io::Result<Option<fs::File>> {
    let Ok(folder) = fs::File::open(folder) else { return Ok(None) };
    let end = Instant::now() + PATIENCE;
    loop {
        match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Some(folder)),
            Err(Errno::WOULDBLOCK) if Instant::now() < end => {
                thread::sleep(Duration::from_millis(1));
            }
            Err(Errno::WOULDBLOCK) => return Err(io::ErrorKind::TimedOut.into()),
            Err(_) => return Ok(None),
        }
    }
}

fn read(file: &FilePath) -> Result<File, TuningError> {
    let trouble = |source| TuningError::File { file: file.into(), source };
    // A pipe might never end.
    if !fs::metadata(file).map_err(trouble)?.is_file() {
        return Err(trouble(io::Error::other("it is no ordinary file")));
    }
    let text = fs::read_to_string(file).map_err(trouble)?;
    let form = |source| TuningError::Form { file: file.into(), source };
    // Another version may have other fields.
    let AnyVersion { version } = serde_json::from_str(&text).map_err(form)?;
    if version != VERSION {
        return Err(TuningError::Version { file: file.into(), found: version });
    }
    serde_json::from_str(&text).map_err(form)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::{Choice, Range};

    fn machine(gpu: &str) -> Machine {
        let auto = MemoryPlace::Auto;
        let engine = EngineSide::Host;
        let region = MemoryPlace::Gpu;
        let (gpu, nic) = (gpu.into(), "soft".into());
        Machine { gpu, nic, engine, region, sq: auto, dbr: auto, cq: auto, window: auto }
    }

    fn tuning(up_to: u32) -> Tuning {
        let short = Range { up_to: Some(up_to), path: Choice::Inband };
        let ranges = Ranges::new(vec![short, Range { up_to: None, path: Choice::Pull }]).unwrap();
        Tuning { warp: Ranges::always(Choice::Blueflame), ..Tuning::for_all(ranges) }
    }

    #[test]
    fn a_table_comes_back_and_others_stay() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("made/on/the/way/tuning.json");
        let (a, b) = (machine("A"), machine("B"));
        tuning(64).save(&file, &a).unwrap();
        tuning(128).save(&file, &b).unwrap();
        tuning(256).save(&file, &a).unwrap();
        for (machine, up_to) in [(&a, 256), (&b, 128)] {
            let found = Tuning::load(&file, machine).unwrap();
            let origin = Origin::Measured(file.clone());
            assert_eq!(found, Tuning { origin, ..tuning(up_to) });
            assert_eq!(Tuning::of_user(Some(file.clone()), machine).unwrap(), found);
        }
        let there: Vec<_> = fs::read_dir(file.parent().unwrap()).unwrap().collect();
        assert_eq!(there.len(), 1, "nothing is left beside it: {there:?}");
    }

    #[test]
    fn tables_that_are_kept_at_once_all_stay() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tuning.json");
        let machines: Vec<Machine> = (0..8).map(|n| machine(&format!("GPU {n}"))).collect();
        for up_to in 1..=20 {
            thread::scope(|s| {
                for machine in &machines {
                    s.spawn(|| tuning(up_to).save(&file, machine).unwrap());
                }
            });
            for machine in &machines {
                assert_eq!(Tuning::load(&file, machine).unwrap().thread, tuning(up_to).thread);
            }
        }
    }

    #[test]
    fn another_machines_table_is_not_taken() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tuning.json");
        tuning(64).save(&file, &machine("A")).unwrap();
        let near = Machine { sq: MemoryPlace::Gpu, ..machine("A") };
        for other in [machine("B"), Machine { engine: EngineSide::Gpu, ..machine("A") }, near] {
            let told = Tuning::load(&file, &other).unwrap_err().to_string();
            assert!(told.contains(&other.to_string()) && told.contains("GPU A"), "{told}");
            let built_in = Tuning::of_user(Some(file.clone()), &other).unwrap();
            assert_eq!(built_in.block, Tuning::built_in(&other).block);
            let told = built_in.origin.to_string();
            assert!(told.contains("not measured here") && told.contains("--tune"), "{told}");
        }
        let older = fs::read_to_string(&file).unwrap().replace(LIBRARY, "0.0.1");
        fs::write(&file, older).unwrap();
        let told = Tuning::load(&file, &machine("A")).unwrap_err().to_string();
        assert!(told.contains("bellpush 0.0.1 measured it"), "{told}");
        assert!(matches!(
            Tuning::of_user(Some(file), &machine("A")).unwrap().origin,
            Origin::BuiltIn(_)
        ));
    }

    #[test]
    fn without_a_file_the_built_in_table_says_so() {
        let folder = tempfile::tempdir().unwrap();
        for file in [None, Some(folder.path().join("none.json"))] {
            let found = Tuning::of_user(file, &machine("A")).unwrap();
            assert!(matches!(found.origin, Origin::BuiltIn(_)), "{found:?}");
        }
        let told = Tuning::load(&folder.path().join("none.json"), &machine("A")).unwrap_err();
        assert!(told.to_string().contains("none.json"), "{told}");
        let told = Tuning::load(FilePath::new("/dev/zero"), &machine("A")).unwrap_err().to_string();
        assert!(told.contains("/dev/zero: it is no ordinary file"), "{told}");
    }

    #[test]
    fn other_files_are_refused_and_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tuning.json");
        tuning(64).save(&file, &machine("A")).unwrap();
        let good = fs::read_to_string(&file).unwrap();
        for (text, why) in [
            (String::new(), "not one of ours"),
            ("[]".into(), "not one of ours"),
            (good.replace("}", ""), "not one of ours"),
            (good.replace("push/inband", "push/poke"), "push/poke"),
            (good.replace("\"up_to\": 64", "\"up_to\": 0"), "ascend"),
            (good.replace("\"up_to\": 64", "\"up_to\": -1"), "-1"),
            (good.replace("\"version\": 1", "\"version\": 2, \"more\": 0"), "version 2"),
            (good.replace("\"bellpush\"", "\"x\": 1, \"bellpush\""), "unknown field"),
        ] {
            assert_ne!(text, good);
            fs::write(&file, &text).unwrap();
            for told in [
                Tuning::load(&file, &machine("A")).unwrap_err(),
                Tuning::of_user(Some(file.clone()), &machine("A")).unwrap_err(),
                tuning(64).save(&file, &machine("A")).unwrap_err(),
            ] {
                let told = told.to_string();
                assert!(told.contains(why) && told.contains("tuning.json"), "{text}: {told}");
            }
            assert_eq!(fs::read_to_string(&file).unwrap(), text);
        }
    }

    #[test]
    fn every_machine_has_a_table_built_in() {
        let engines = [EngineSide::None, EngineSide::Host, EngineSide::Gpu, EngineSide::SameGpu];
        for (engine, region) in engines
            .into_iter()
            .flat_map(|engine| [MemoryPlace::Gpu, MemoryPlace::Host].map(|region| (engine, region)))
        {
            let built_in = Tuning::built_in(&Machine { engine, region, ..machine("A") });
            for ranges in [built_in.thread, built_in.warp, built_in.block] {
                let again = Ranges::new(ranges.ranges().to_vec()).unwrap();
                assert_eq!(again, ranges);
                let chosen = [8, 96 << 10, 1 << 20].map(|bytes| ranges.choice(bytes));
                match (engine, region) {
                    // It has no in-band slots.
                    (EngineSide::None, _) => assert_eq!(chosen, [Choice::Pull; 3]),
                    (EngineSide::Host, MemoryPlace::Host) => {
                        let wanted = [Choice::PullBlueflame, Choice::PullBlueflame, Choice::Pull];
                        assert_eq!(chosen, wanted, "the engine reads it by itself");
                    }
                    _ => assert_eq!([chosen[0], chosen[2]], [Choice::Inband, Choice::Pull]),
                }
            }
        }
    }
}
