//! This process's rank in a job, from the launcher's environment variables.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

use super::bootstrap::BootstrapError;
use super::member::MAX_RANKS;
use super::secret;

/// Least bytes of a job's secret. A handshake shows MACs over known bytes, so that a secret which is
/// a word can be found by trying words.
pub(super) const LEAST_SECRET: usize = 16;
/// Port of rank 0 where only its address is given.
const PORT: u16 = 29401;

/// A rank's place in a job.
#[derive(Clone)]
pub struct Job {
    /// This rank.
    pub rank: u32,
    /// Number of ranks.
    pub ranks: u32,
    /// Rank among the ranks of this host, which selects the GPU; equal to `rank` where the launcher
    /// does not give it.
    pub local_rank: u32,
    /// Address of rank 0: there it listens, and the others connect.
    pub root: SocketAddr,
    /// Secret that only the ranks of the job know: 16 bytes or more, best random ones. A job of one
    /// rank needs none.
    pub secret: String,
    /// Name of this start of the job, equal at all of its ranks. It keeps out processes left over
    /// from an earlier start.
    pub start: String,
    /// Name of the communicator, equal at all of its ranks. Communicators that are joined at once
    /// need different names.
    pub communicator: String,
    /// Bound of joining: the first rank waits this long for the last.
    pub join_timeout: Duration,
    /// Bound of each exchange.
    pub timeout: Duration,
}

/// A launcher's variables: rank, number of ranks, rank on this host, and a name of the job that all
/// ranks share.
const LAUNCHERS: &[[&str; 4]] = &[
    ["RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RUN_ID"], // torchrun
    [
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "PMIX_NAMESPACE",
    ], // Open MPI
    ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "PMI_JOBID"],    // MPICH, Intel MPI
    ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_JOB_ID"], // Slurm
];

/// Variables that distinguish two starts of a job with the same name, where they are equal at all
/// ranks. torchrun counts restarts per host, so its number is used only where all ranks are on one
/// host; Slurm counts per job, and numbers steps.
fn restarts(launcher: &str, var: impl Fn(&str) -> Option<String>) -> &'static [&'static str] {
    match launcher {
        "RANK" if var("LOCAL_WORLD_SIZE").is_some_and(|here| var("WORLD_SIZE") == Some(here)) => {
            &["TORCHELASTIC_RESTART_COUNT"]
        }
        "SLURM_PROCID" => &["SLURM_RESTART_COUNT", "SLURM_STEP_ID"],
        _ => &[],
    }
}

impl Job {
    /// Reads the job from the environment; `None` where no launcher started this process.
    ///
    /// Rank 0's address is `BELLPUSH_ROOT` (`host:port`, or a host for port 29401), else
    /// `MASTER_ADDR` with the port after `MASTER_PORT`, since torchrun listens on the latter. The
    /// secret is `BELLPUSH_JOB_SECRET`; otherwise it is derived from the launcher's name of the job
    /// and from a file that is created for the user (`bellpush/job-secret` in `$XDG_STATE_HOME` or
    /// `~/.local/state`). The start is `BELLPUSH_JOB_START`; otherwise the launcher's name of the
    /// job with its count of restarts, where all ranks get the same count: from Slurm, and from
    /// torchrun on one host. The communicator's name is empty.
    ///
    /// # Errors
    /// [`BootstrapError`] for a missing or invalid variable, and for a secret file that cannot be
    /// created or trusted.
    pub fn from_env(
        join_timeout: Duration,
        timeout: Duration,
    ) -> Result<Option<Self>, BootstrapError> {
        Self::from(|name| std::env::var(name).ok(), join_timeout, timeout)
    }

    /// A job of two processes that no launcher starts, such as the ends of a measurement: rank 0 listens at `root`, and
    /// rank 1 connects to it. `root` is `host:port`, or a host for port 29401. The secret is that of
    /// [`Job::from_env`] for a job of this name, the start is `BELLPUSH_JOB_START`, and the name is the communicator's
    /// too.
    ///
    /// # Errors
    /// [`BootstrapError`] for an address that is none, and for a secret file that cannot be created or trusted.
    pub fn of_two(
        rank: u32,
        root: &str,
        name: &str,
        join_timeout: Duration,
        timeout: Duration,
    ) -> Result<Self, BootstrapError> {
        let var = |name: &str| std::env::var(name).ok();
        check(rank, 2)?;
        let must = "the name or address of the host that listens, with a port or without";
        let found = resolve("the address", root, PORT, must)?;
        let root = if rank == 0 { listens(root, found) } else { found };
        let secret = secret(var, || name.into())?;
        let start = var("BELLPUSH_JOB_START").unwrap_or_default();
        let (ranks, local_rank, communicator) = (2, rank, name.to_string());
        Ok(Self {
            rank,
            ranks,
            local_rank,
            root,
            secret,
            start,
            communicator,
            join_timeout,
            timeout,
        })
    }

    fn from(
        var: impl Fn(&str) -> Option<String>,
        join_timeout: Duration,
        timeout: Duration,
    ) -> Result<Option<Self>, BootstrapError> {
        let Some([rank, ranks, local, name]) =
            LAUNCHERS.iter().find(|[rank, ranks, ..]| var(rank).is_some() && var(ranks).is_some())
        else {
            // An incomplete set of torchrun's variables is an error; Slurm sets some of its own in
            // a batch script.
            let [rank, ranks, ..] = LAUNCHERS[0];
            return match (var(rank), var(ranks)) {
                (None, None) => Ok(None),
                (None, _) => Err(BootstrapError::Missing { name: rank }),
                (_, _) => Err(BootstrapError::Missing { name: ranks }),
            };
        };
        let restarts = restarts(rank, &var);
        let number = |name: &'static str| -> Result<Option<u32>, BootstrapError> {
            let Some(given) = var(name) else { return Ok(None) };
            let bad = || BootstrapError::Variable { name, given: given.clone(), must: "a number" };
            given.trim().parse().map(Some).map_err(|_| bad())
        };
        let (rank, ranks, local) = (number(rank)?, number(ranks)?, number(local)?);
        let (Some(rank), Some(ranks)) = (rank, ranks) else { return Ok(None) };
        check(rank, ranks)?;
        let missing = |name| BootstrapError::Missing { name };
        let (given, root) = match (var("BELLPUSH_ROOT"), var("MASTER_ADDR")) {
            (Some(given), _) => {
                let root = resolve("BELLPUSH_ROOT", &given, PORT, ROOT)?;
                (given, root)
            }
            (None, Some(host)) => {
                let above = |p: u32| u16::try_from(p).ok().filter(|&p| p > 0)?.checked_add(1);
                let port = match number("MASTER_PORT")? {
                    None => PORT,
                    Some(p) => above(p).ok_or_else(|| {
                        let (name, must) = ("MASTER_PORT", "a port from 1 to 65534");
                        BootstrapError::Variable { name, given: p.to_string(), must }
                    })?,
                };
                let root = resolve("MASTER_ADDR", &host, port, ROOT)?;
                (host, root)
            }
            (None, None) => return Err(missing("BELLPUSH_ROOT")),
        };
        let root = if rank == 0 { listens(&given, root) } else { root };
        let secret = secret(&var, || {
            // Other jobs may have the same launcher's name: torchrun's is "none", and the steps of
            // a Slurm job share theirs.
            let said = [name, "MASTER_PORT", "SLURM_STEP_ID"].map(|n| var(n).unwrap_or_default());
            format!("{ranks} {}", said.join(" "))
        })?;
        let start = var("BELLPUSH_JOB_START").unwrap_or_else(|| {
            let said = [&[*name], restarts].concat();
            said.into_iter().map(|n| var(n).unwrap_or_default()).collect::<Vec<_>>().join(" ")
        });
        let (local_rank, communicator) = (local.unwrap_or(rank), String::new());
        Ok(Some(Self {
            rank,
            ranks,
            local_rank,
            root,
            secret,
            start,
            communicator,
            join_timeout,
            timeout,
        }))
    }

    /// Checks that the numbers form a job.
    pub(super) fn check(&self) -> Result<(), BootstrapError> {
        for (what, timeout) in [("joining", self.join_timeout), ("an exchange", self.timeout)] {
            if timeout.is_zero() {
                return Err(BootstrapError::NoTime { what });
            }
        }
        check(self.rank, self.ranks)?;
        match self.secret.len() {
            bytes if bytes < LEAST_SECRET && self.ranks > 1 => {
                Err(BootstrapError::ShortSecret { bytes })
            }
            _ => Ok(()),
        }
    }
}

/// The secret that is named, or the user's own for the job of this name.
fn secret(
    var: impl Fn(&str) -> Option<String>,
    job: impl FnOnce() -> String,
) -> Result<String, BootstrapError> {
    match var("BELLPUSH_JOB_SECRET").filter(|secret| !secret.is_empty()) {
        Some(named) => Ok(named),
        None => secret::of_job(var, &job())
            .map_err(|(path, source)| BootstrapError::Secret { path, source }),
    }
}

fn check(rank: u32, ranks: u32) -> Result<(), BootstrapError> {
    match ranks {
        1..=MAX_RANKS if rank < ranks => Ok(()),
        1..=MAX_RANKS => Err(BootstrapError::Rank { rank, ranks }),
        _ => Err(BootstrapError::Ranks { ranks }),
    }
}

/// Address at which rank 0 listens. Debian maps a host's own name to 127.0.1.1 on that host alone;
/// other hosts reach it at another address.
fn listens(given: &str, found: SocketAddr) -> SocketAddr {
    let here = given.starts_with("localhost") || !given.contains(|c: char| c.is_alphabetic());
    match found {
        _ if here || given.contains("::") => found,
        SocketAddr::V4(v4) if v4.ip().is_loopback() => (Ipv4Addr::UNSPECIFIED, v4.port()).into(),
        SocketAddr::V6(v6) if v6.ip().is_loopback() => (Ipv6Addr::UNSPECIFIED, v6.port()).into(),
        _ => found,
    }
}

/// What a job's variables for its first rank must be.
const ROOT: &str = "the name or address of rank 0's host, with a port or without";

/// Parses `host:port`, `[v6]:port`, or a host alone; an error says what it `must` be.
fn resolve(
    name: &'static str,
    given: &str,
    port: u16,
    must: &'static str,
) -> Result<SocketAddr, BootstrapError> {
    // An IPv6 address would be parsed as a host with a port.
    let bare = given.strip_prefix('[').and_then(|g| g.strip_suffix(']')).unwrap_or(given);
    if let Ok(address) = bare.parse::<IpAddr>() {
        return Ok(SocketAddr::new(address, port));
    }
    let found = match given.to_socket_addrs() {
        Ok(mut all) => all.next(),
        Err(_) => (given, port).to_socket_addrs().ok().and_then(|mut all| all.next()),
    };
    found.filter(|root| root.port() > 0).ok_or_else(|| BootstrapError::Variable {
        name,
        given: given.into(),
        must,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::Bootstrap;

    fn job(vars: &[(&str, &str)]) -> Result<Option<Job>, BootstrapError> {
        let var = |name: &str| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string());
        Job::from(var, Duration::from_secs(2), Duration::from_secs(1))
    }

    /// What a launcher counts for each host tells ranks on several hosts apart that belong together.
    #[test]
    fn starts_are_alike_at_all_ranks() {
        let start = |vars: &[(&'static str, &'static str)]| {
            let root = [("BELLPUSH_ROOT", "127.0.0.1:7000"), ("BELLPUSH_JOB_SECRET", "s")];
            job(&[vars, &root[..]].concat()).unwrap().unwrap().start
        };
        let torch = |here, again| {
            let said = [("RANK", "0"), ("WORLD_SIZE", "4"), ("LOCAL_WORLD_SIZE", here)];
            start(&[&said[..], &[("TORCHELASTIC_RESTART_COUNT", again)]].concat())
        };
        assert_ne!(torch("4", "0"), torch("4", "1"));
        assert_eq!(torch("2", "0"), torch("2", "1"));
        let step = |launcher: [&'static str; 2], step| {
            start(&[(launcher[0], "0"), (launcher[1], "2"), ("SLURM_STEP_ID", step)])
        };
        let slurm = ["SLURM_PROCID", "SLURM_NTASKS"];
        assert_ne!(step(slurm, "0"), step(slurm, "1"));
        let mpi = ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"];
        assert_eq!(step(mpi, "0"), step(mpi, "1"));
    }

    #[test]
    fn a_timeout_of_0_is_named() {
        let vars = [("RANK", "1"), ("WORLD_SIZE", "2"), ("BELLPUSH_JOB_SECRET", "s")];
        let job = job(&[&vars[..], &[("BELLPUSH_ROOT", "127.0.0.1:1")]].concat()).unwrap().unwrap();
        for job in [
            Job { join_timeout: Duration::ZERO, ..job.clone() },
            Job { timeout: Duration::ZERO, ..job.clone() },
        ] {
            let refused = Bootstrap::join(&job).err().expect("no time");
            assert!(matches!(refused, BootstrapError::NoTime { .. }), "{refused}");
        }
    }

    #[test]
    fn a_secret_that_can_be_guessed_is_refused() {
        let vars = [("RANK", "1"), ("WORLD_SIZE", "2"), ("BELLPUSH_ROOT", "127.0.0.1:1")];
        for (secret, short) in [("0123456789abcde", true), ("0123456789abcdef", false)] {
            let job = job(&[&vars[..], &[("BELLPUSH_JOB_SECRET", secret)]].concat());
            let refused = job.unwrap().unwrap().check().err();
            assert_eq!(refused.is_some(), short, "{secret}");
            let said = refused.map(|e| e.to_string()).unwrap_or_default();
            assert!(said.is_empty() || said.contains("has 15 bytes"), "{said}");
            assert!(!said.contains(secret), "it is told: {said}");
        }
        // Also of a program's own, before anything is sent.
        let job = job(&[&vars[..], &[("BELLPUSH_JOB_SECRET", "0")]].concat()).unwrap().unwrap();
        let refused = Bootstrap::join(&Job { secret: String::new(), ..job.clone() }).err().unwrap();
        assert!(matches!(refused, BootstrapError::ShortSecret { bytes: 0 }), "{refused}");
        let alone = Job { rank: 0, ranks: 1, secret: String::new(), ..job };
        Bootstrap::join(&alone).unwrap();
    }

    #[test]
    fn every_launcher_is_understood() {
        let root = [("BELLPUSH_ROOT", "127.0.0.1:7000"), ("BELLPUSH_JOB_SECRET", "s")];
        for names in LAUNCHERS {
            let mut vars = vec![(names[0], "3"), (names[1], "8"), (names[2], "1")];
            vars.extend(root);
            let job = job(&vars).unwrap().unwrap();
            assert_eq!((job.rank, job.ranks, job.local_rank), (3, 8, 1), "{names:?}");
            assert_eq!(job.root, "127.0.0.1:7000".parse().unwrap());
        }
        assert!(job(&root).unwrap().is_none(), "no launcher");
        let torch = [("RANK", "0"), ("WORLD_SIZE", "2"), ("BELLPUSH_JOB_SECRET", "s")];
        let with = |more: &[(&'static str, &'static str)]| job(&[&torch[..], more].concat());
        let made = with(&[("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29500")]);
        assert_eq!(made.unwrap().unwrap().root.port(), 29501);
        for (root, is) in [
            ("::1", "[::1]:29401"),
            ("[::1]", "[::1]:29401"),
            ("[::1]:20", "[::1]:20"),
            ("fd00::1:20", "[fd00::1:20]:29401"),
            ("10.0.0.1", "10.0.0.1:29401"),
            ("10.0.0.1:20", "10.0.0.1:20"),
        ] {
            let made = with(&[("BELLPUSH_ROOT", root)]).unwrap().unwrap();
            assert_eq!(made.root, is.parse().unwrap(), "{root}");
        }
    }

    #[test]
    fn rank_0_listens_where_other_hosts_find_its_name() {
        for (given, found, listens_at) in [
            ("node7", "127.0.1.1:20", "0.0.0.0:20"),
            ("node7:20", "127.0.1.1:20", "0.0.0.0:20"),
            ("node7", "[::1]:20", "[::]:20"),
            ("node7", "10.0.0.1:20", "10.0.0.1:20"),
            ("localhost:20", "127.0.0.1:20", "127.0.0.1:20"),
            ("localhost", "[::1]:20", "[::1]:20"),
            ("127.0.0.1:20", "127.0.0.1:20", "127.0.0.1:20"),
            ("127.0.1.1", "127.0.1.1:20", "127.0.1.1:20"),
            ("[::1]:20", "[::1]:20", "[::1]:20"),
            ("::1", "[::1]:20", "[::1]:20"),
        ] {
            let (found, listens_at) = (found.parse().unwrap(), listens_at.parse().unwrap());
            assert_eq!(listens(given, found), listens_at, "{given}");
        }
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        let text = |vars: &[(&str, &str)]| job(vars).err().expect("an error").to_string();
        let two = [("RANK", "0"), ("WORLD_SIZE", "2")];
        let nowhere = [&two[..], &[("BELLPUSH_ROOT", "::1"), ("HOME", "/proc/none")]].concat();
        assert!(text(&nowhere).contains("/proc/none/.local/state/bellpush/job-secret"));
        assert!(text(&nowhere).contains("BELLPUSH_JOB_SECRET"));
        let homeless = [&two[..], &[("BELLPUSH_ROOT", "::1")]].concat();
        assert!(text(&homeless).contains("neither XDG_STATE_HOME nor HOME"));
        let secret = [&two[..], &[("BELLPUSH_JOB_SECRET", "s")]].concat();
        assert!(text(&secret).contains("BELLPUSH_ROOT"));
        assert!(text(&[("RANK", "x"), ("WORLD_SIZE", "2")]).contains("RANK is 'x'"));
        assert!(text(&[("RANK", "2"), ("WORLD_SIZE", "2")]).contains("rank 2"));
        assert!(text(&[("RANK", "0"), ("WORLD_SIZE", "0")]).contains("0 ranks"));
        assert!(text(&[("RANK", "0"), ("WORLD_SIZE", "4294967295")]).contains("1 to 64"));
        assert!(text(&[("RANK", "0")]).contains("WORLD_SIZE is not set"));
        assert!(text(&[("WORLD_SIZE", "2")]).contains("RANK is not set"));
        let bad = [&secret[..], &[("BELLPUSH_ROOT", "127.0.0.1:0")]].concat();
        assert!(text(&bad).contains("BELLPUSH_ROOT is '127.0.0.1:0'"));
        let bad = [&secret[..], &[("MASTER_ADDR", "no such host")]].concat();
        assert!(text(&bad).contains("MASTER_ADDR is 'no such host'"));
        for port in ["0", "65535", "70000", "4294967295"] {
            let bad = [&secret[..], &[("MASTER_ADDR", "::1"), ("MASTER_PORT", port)]].concat();
            assert!(text(&bad).contains(&format!("MASTER_PORT is '{port}'")), "{}", text(&bad));
        }
    }
}
