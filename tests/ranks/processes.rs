//! Ranks as processes: how they find each other, who is kept out, and what the others say when one
//! of them is killed or stopped.
//!
//! A rank's process is this test program again, told by its environment which rank it is.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use bellpush::collective::{
    Bootstrap, BootstrapError, Dtype, Error, Job, Member, Op, Options, RankAddress,
};
use bellpush::gpu::{Executor, Gpu, HostOptions};
use bellpush::nic::Nic;
use bellpush::nic::soft::link::{Link, ShmNet, UdpLink};
use bellpush::nic::soft::{SoftConfig, SoftNic};
use bellpush::transport::Memory;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// What a rank's process is told: the link. The rest is a launcher's variables.
const CHILD: &str = "BELLPUSH_TEST_RANK";
/// After this a rank's process ends by itself.
const LIFE: Duration = Duration::from_secs(40);
/// Bound of a rank's waits.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long a rank is stopped that goes on: shorter than that, longer than a queue pair's usual patience (0.54 s).
const SLOW: Duration = Duration::from_millis(1500);
const SAYS: &str = "rank says: ";

/// Below those that the system gives to connections, which could have it before rank 0 does.
fn free_port() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let begin = std::process::id() as u16 % 10_000;
    loop {
        let port = 20_000 + (begin + NEXT.fetch_add(1, Ordering::Relaxed)) % 10_000;
        let root = SocketAddr::from(([127, 0, 0, 1], port));
        if TcpListener::bind(root).is_ok() {
            return root;
        }
    }
}

fn job(rank: u32, ranks: u32, root: SocketAddr, ms: u64) -> Job {
    let (secret, timeout) = ("a secret between us".to_owned(), Duration::from_millis(ms));
    let (start, communicator) = ("1".to_owned(), String::new());
    Job {
        rank,
        ranks,
        local_rank: rank,
        root,
        secret,
        start,
        communicator,
        join_timeout: timeout,
        timeout,
    }
}

/// Joins on a thread for each job, and does something with the others.
fn joined<R: Send>(
    jobs: &[Job],
    run: impl Fn(u32, &mut Bootstrap) -> Result<R, BootstrapError> + Sync,
) -> Vec<Result<R, BootstrapError>> {
    std::thread::scope(|scope| {
        let join = |job| {
            let run = &run;
            scope.spawn(move || run(Job::clone(job).rank, &mut Bootstrap::join(job)?))
        };
        let threads: Vec<_> = jobs.iter().map(join).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

/// Joins and exchanges.
fn join_all(jobs: Vec<Job>) -> Vec<Result<Vec<Vec<u8>>, BootstrapError>> {
    joined(&jobs, |rank, all| all.all_gather(&vec![rank as u8; rank as usize * 1000]))
}

#[test]
fn ranks_bring_as_many_nics_as_all_have_room_and_channels_for() {
    let nics = |wanted: [Option<usize>; 3], channels| {
        let root = free_port();
        let jobs: Vec<_> = (0..3).map(|r| job(r, 3, root, 5000)).collect();
        joined(&jobs, |rank, all| all.nics(wanted[rank as usize], channels, 16))
    };
    let agreed = |wanted, channels| -> Vec<_> {
        nics(wanted, channels).into_iter().map(Result::unwrap).collect()
    };
    assert_eq!(agreed([Some(5), Some(3), Some(usize::MAX)], 24), [3; 3]);
    assert_eq!(agreed([None, None, Some(20)], 24), [12; 3], "three quarters of 16 cores");
    assert_eq!(agreed([Some(9), None, None], 4), [4; 3]);
    for refused in nics([Some(2), Some(0), None], 24) {
        let why = refused.unwrap_err().to_string();
        assert!(why.starts_with("rank 1 does not say how many NICs it wants"), "{why}");
    }
    // A rank that says something else, as another version might.
    let root = free_port();
    let jobs: Vec<_> = (0..2).map(|r| job(r, 2, root, 5000)).collect();
    let said = joined(&jobs, |rank, all| match rank {
        0 => all.nics(None, 24, 16),
        _ => all.all_gather(b"{}").map(|_| 0),
    });
    assert!(matches!(said[0], Err(BootstrapError::Garbled { rank: 1, .. })), "{said:?}");
    // Ranks that may run on the same cores share them.
    let root = free_port();
    let jobs: Vec<_> = (0..2).map(|r| job(r, 2, root, 5000)).collect();
    let all = std::thread::available_parallelism().unwrap().get();
    let cores = joined(&jobs, |_, all| all.cores());
    assert!(cores.into_iter().all(|c| c.unwrap() == (all / 2).max(1)));
}

#[test]
fn ranks_come_together_in_any_order_beside_strangers_and_garbage() {
    let root = free_port();
    let mut jobs: Vec<_> = (0..4).rev().map(|rank| job(rank, 4, root, 20_000)).collect();
    // Others knock first and stay: silent, with garbage, with half a greeting.
    let noise = std::thread::spawn(move || {
        let until = Instant::now() + Duration::from_secs(10);
        let mut held = Vec::new();
        while held.len() < 6 && Instant::now() < until {
            let Ok(mut stream) = TcpStream::connect(root) else { continue };
            let bytes: &[u8] = [&b""[..], &[0xff; 4096], b"bellpush bootstrap 1"][held.len() % 3];
            let _ = stream.write_all(bytes);
            held.push(stream);
        }
        held.len()
    });
    let all = join_all(std::mem::take(&mut jobs));
    assert_eq!(noise.join().unwrap(), 6);
    let want: Vec<Vec<u8>> = (0..4).map(|r| vec![r as u8; r * 1000]).collect();
    for one in all {
        assert_eq!(one.unwrap(), want);
    }
}

#[test]
fn a_missing_rank_is_named_by_all_that_came() {
    let root = free_port();
    let since = Instant::now();
    let all = join_all([0, 1, 3].map(|rank| job(rank, 4, root, 1000)).into());
    assert!(since.elapsed() < Duration::from_secs(10));
    for (i, one) in all.into_iter().enumerate() {
        let why = one.unwrap_err().to_string();
        assert!(why.contains("rank 2 did not join within 1000 ms"), "{i}: {why}");
    }
}

#[test]
fn a_rank_that_gives_up_says_why_to_all() {
    let root = free_port();
    let jobs: Vec<_> = (0..3).map(|rank| job(rank, 3, root, 4000)).collect();
    let since = Instant::now();
    let all = joined(&jobs, |rank, all| match rank {
        1 => {
            all.fail("the link is full");
            Ok(vec![])
        }
        _ => all.all_gather(b"here"),
    });
    assert!(since.elapsed() < Duration::from_secs(2), "{:?}", since.elapsed());
    for rank in [0, 2] {
        let why = all[rank].as_ref().unwrap_err().to_string();
        assert!(why.contains("rank 1 gave up: the link is full"), "{rank}: {why}");
    }
}

/// What a rank says too late is not taken for its part of the next exchange.
#[test]
fn after_an_exchange_that_failed_there_are_no_others() {
    let root = free_port();
    let timeout = Duration::from_millis(300);
    let jobs = [0, 1].map(|rank| Job { timeout, ..job(rank, 2, root, 5000) });
    let said = joined(&jobs, |rank, all| {
        if rank == 1 {
            std::thread::sleep(2 * timeout);
        }
        let first = all.all_gather(b"first");
        assert!(first.is_err(), "rank {rank}: {first:?}");
        all.all_gather(b"second")
    });
    for said in said {
        assert!(matches!(said, Err(BootstrapError::Ended)), "{said:?}");
    }
}

#[test]
fn without_rank_0_the_others_say_so() {
    let root = free_port();
    let why = join_all(vec![job(1, 2, root, 500)]).remove(0).unwrap_err().to_string();
    assert!(why.contains(&format!("rank 0 did not answer at {root}")), "{why}");
}

#[test]
fn a_stranger_is_refused_and_the_job_goes_on() {
    let root = free_port();
    let stranger = Job { secret: "guessed by somebody".into(), ..job(1, 2, root, 300) };
    let other_size = job(1, 3, root, 10_000);
    let no_such = job(7, 8, root, 10_000);
    let outside = |job: Job| std::thread::spawn(move || Bootstrap::join(&job).err().unwrap());
    let rank_0 = std::thread::spawn(move || join_all(vec![job(0, 2, root, 20_000)]));
    for (job, reason) in
        [(stranger, "secret"), (other_size, "number of ranks"), (no_such, "number of ranks")]
    {
        let why = outside(job).join().unwrap().to_string();
        assert!(why.contains("refused") && why.contains(reason), "{why}");
    }
    // A rank twice: whoever comes second is refused.
    let both = join_all(vec![job(1, 2, root, 5000), job(1, 2, root, 5000)]);
    let joined = both.iter().filter(|r| r.is_ok()).count();
    let twice = both.iter().filter(|r| matches!(r, Err(BootstrapError::Twice { .. }))).count();
    assert_eq!((joined, twice), (1, 1), "{both:?}");
    assert!(rank_0.join().unwrap()[0].is_ok());
}

#[test]
fn a_root_that_does_not_know_the_secret_is_not_believed() {
    let root = free_port();
    let wrong = Job { secret: "guessed by somebody".into(), ..job(0, 2, root, 600) };
    let all = join_all(vec![wrong, job(1, 2, root, 600)]);
    assert!(all[0].as_ref().unwrap_err().to_string().contains("rank 1 did not join"), "{all:?}");
    assert!(matches!(all[1], Err(BootstrapError::Refused { .. })), "{all:?}");
}

/// A rank's process that waits for its rank 0 when a launcher has started the job again.
#[test]
fn a_process_of_an_earlier_start_is_not_seated() {
    let root = free_port();
    let started = |start: &str, rank| Job { start: start.into(), ..job(rank, 2, root, 10_000) };
    let stale = Job { join_timeout: Duration::from_secs(2), ..started("run 0", 1) };
    let stale = std::thread::spawn(move || Bootstrap::join(&stale).err());
    std::thread::sleep(Duration::from_millis(100)); // it knocks first
    let rank_0 = started("run 1", 0);
    let rank_0 = std::thread::spawn(move || join_all(vec![rank_0]).remove(0));
    let why = stale.join().unwrap().expect("it is of another start").to_string();
    assert!(why.contains("another start of the job"), "{why}");
    let rank_1 = join_all(vec![started("run 1", 1)]).remove(0).unwrap();
    assert_eq!(rank_1, rank_0.join().unwrap().unwrap());
}

/// In other orders at the two ranks: each meets the one of its own name.
#[test]
fn communicators_that_are_joined_at_once_do_not_cross() {
    let root = free_port();
    let of = |name: &str, rank| Job { communicator: name.into(), ..job(rank, 2, root, 10_000) };
    let names = ["a", "b", "c", "d", "e", "f"];
    let jobs: Vec<_> = (names.iter().map(|name| of(name, 0)))
        .chain(names.iter().rev().map(|name| of(name, 1)))
        .collect();
    let said: Vec<_> = std::thread::scope(|scope| {
        let join = |job: &Job| {
            let mut joined = Bootstrap::join(job)?;
            joined.all_gather(job.communicator.as_bytes())
        };
        let threads: Vec<_> = jobs.iter().map(|job| scope.spawn(move || join(job))).collect();
        threads.into_iter().map(|t| t.join().unwrap().unwrap()).collect()
    });
    for (job, said) in jobs.iter().zip(&said) {
        assert_eq!(said[0], said[1], "rank {} of {}", job.rank, job.communicator);
    }
    // Of one name one at a time: nothing could tell them apart.
    let alone = job(0, 2, root, 400);
    let both = join_all(vec![alone.clone(), alone]);
    let twice = both.iter().filter(|r| matches!(r, Err(BootstrapError::Twice { .. }))).count();
    assert_eq!(twice, 1, "{both:?}");
}

/// More of them than there are handshakes at once, and they say nothing.
#[test]
fn idle_strangers_keep_nobody_out() {
    let root = free_port();
    let rank_0 = std::thread::spawn(move || join_all(vec![job(0, 2, root, 20_000)]).remove(0));
    let mut held = Vec::new();
    while held.len() < 450 {
        held.extend(TcpStream::connect(root));
    }
    let since = Instant::now();
    join_all(vec![job(1, 2, root, 20_000)]).remove(0).unwrap();
    assert!(since.elapsed() < Duration::from_secs(2), "{:?}", since.elapsed());
    rank_0.join().unwrap().unwrap();
}

/// Who is not of the job has its port for a while, and says no.
#[test]
fn a_refusal_without_proof_is_not_the_end() {
    let root = free_port();
    let liar = TcpListener::bind(root).unwrap();
    let rank_1 = std::thread::spawn(move || join_all(vec![job(1, 2, root, 20_000)]).remove(0));
    let (mut stream, _) = liar.accept().unwrap();
    stream.write_all(&[&b"bellpush bootstrap 5"[..], &[7; 32]].concat()).unwrap();
    stream.read_exact(&mut [0; HELLO]).unwrap();
    stream.write_all(&[&[2][..], &[0; ANSWER - 1]].concat()).unwrap();
    drop((stream, liar));
    join_all(vec![job(0, 2, root, 20_000)]).remove(0).unwrap();
    rank_1.join().unwrap().unwrap();
}

/// Bytes of what rank 0 says first, of a rank's answer, and of rank 0's.
const CHALLENGE: usize = 20 + 32;
const HELLO: usize = 20 + 4 + 4 + 32 + 32 + 32 + 32;
const ANSWER: usize = 1 + 16 + 32;

/// What rank 1 of so many says to this challenge.
fn hello_to(challenge: &[u8], ranks: u32) -> [u8; HELLO] {
    let root = free_port();
    let listener = TcpListener::bind(root).unwrap();
    let rank_1 = std::thread::spawn(move || Bootstrap::join(&job(1, ranks, root, 50)).err());
    let (mut stream, _) = listener.accept().unwrap();
    stream.write_all(challenge).unwrap();
    let mut hello = [0; HELLO];
    stream.read_exact(&mut hello).unwrap();
    drop((stream, listener));
    rank_1.join().unwrap().expect("nobody answered it");
    hello
}

#[test]
fn what_a_rank_said_once_is_not_taken_from_another() {
    let root = free_port();
    let rank_0 = std::thread::spawn(move || join_all(vec![job(0, 2, root, 1500)]).remove(0));
    let knock = || loop {
        if let Ok(stream) = TcpStream::connect(root) {
            return stream;
        }
    };
    let answered = |stream: &mut TcpStream, hello: &[u8]| {
        let mut answer = [0; ANSWER];
        stream.write_all(hello).unwrap();
        stream.read_exact(&mut answer).unwrap();
        answer[0]
    };
    let challenged = |stream: &mut TcpStream| {
        let mut challenge = [0; CHALLENGE];
        stream.read_exact(&mut challenge).unwrap();
        challenge
    };
    let (mut stranger, mut rank_1) = (knock(), knock());
    let overheard = hello_to(&challenged(&mut rank_1), 2);
    challenged(&mut stranger);
    assert_eq!(answered(&mut stranger, &overheard), 1, "a stranger has repeated it");
    assert_eq!(answered(&mut rank_1, &overheard), 0, "it is right where it was asked for");
    drop(rank_1);
    assert!(rank_0.join().unwrap().is_err());
}

#[test]
fn what_rank_0_said_once_is_not_believed_of_another() {
    let root = free_port();
    let rank_0 = std::thread::spawn(move || join_all(vec![job(0, 2, root, 2000)]).remove(0));
    let mut stream = loop {
        if let Ok(stream) = TcpStream::connect(root) {
            break stream;
        }
    };
    let (mut challenge, mut answer) = ([0; CHALLENGE], [0; ANSWER]);
    stream.read_exact(&mut challenge).unwrap();
    stream.write_all(&hello_to(&challenge, 2)).unwrap();
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer[0], 0);
    drop(stream);
    assert!(rank_0.join().unwrap().is_err());
    // Another process at its place, which says the same again.
    let listener = TcpListener::bind(root).unwrap();
    let rank_1 = std::thread::spawn(move || Bootstrap::join(&job(1, 2, root, 300)).err());
    let (mut stream, _) = listener.accept().unwrap();
    stream.write_all(&challenge).unwrap();
    stream.read_exact(&mut [0; HELLO]).unwrap();
    stream.write_all(&answer).unwrap();
    let why = rank_1.join().unwrap().expect("it is not rank 0").to_string();
    assert!(why.contains("rank 0"), "{why}");
    let mut rest = Vec::new();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    stream.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty(), "it went on as if it were");
}

/// A rank that gave up a try, or whose process was started again, after it had come and said what a rank says then.
#[test]
fn a_rank_whose_connection_is_closed_may_come_again() {
    let root = free_port();
    let come =
        |rank| std::thread::spawn(move || join_all(vec![job(rank, 3, root, 20_000)]).remove(0));
    let rank_0 = come(0);
    let answered = || {
        let mut stream = loop {
            if let Ok(stream) = TcpStream::connect(root) {
                break stream;
            }
        };
        let (mut challenge, mut answer) = ([0; CHALLENGE], [0; ANSWER]);
        stream.read_exact(&mut challenge).unwrap();
        stream.write_all(&hello_to(&challenge, 3)).unwrap();
        stream.read_exact(&mut answer).unwrap();
        (stream, answer[0])
    };
    let (mut first, seated) = answered();
    assert_eq!(seated, 0);
    first.write_all(&[1; 37]).unwrap();
    assert_eq!(answered().1, 3, "it is still there");
    let again = come(1);
    std::thread::sleep(Duration::from_millis(100)); // it is told so too, and tries again
    drop(first);
    let since = Instant::now();
    for rank in [come(2), again, rank_0] {
        assert_eq!(rank.join().unwrap().unwrap().len(), 3);
    }
    assert!(since.elapsed() < Duration::from_secs(5), "{:?}", since.elapsed());
}

/// Under a launcher that says which rank a process is: the ranks need nothing else of it, and make the job's
/// secret themselves.
#[test]
fn mpirun_starts_ranks() {
    if Command::new("mpirun").arg("--version").output().is_err() {
        let said = "SKIPPED: no mpirun; openmpi-bin brings it";
        writeln!(std::io::stderr(), "{said}").unwrap(); // past the capture of a passing test
        return;
    }
    let state = tempfile::tempdir().unwrap();
    let out = Command::new("timeout")
        .args(["30", "mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "3"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "processes::child", "--nocapture"])
        .env(CHILD, format!("shm-coll-mpi{}", std::process::id()))
        .env("ALGORITHM", "two-shot")
        .env("CALLS", "50")
        .env("BELLPUSH_ROOT", free_port().to_string())
        .env_remove("BELLPUSH_JOB_SECRET")
        .env("XDG_STATE_HOME", state.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    assert_eq!(said.matches(&format!("{SAYS}done")).count(), 3, "{said}");
    assert!(out.status.success(), "{said}");
    assert!(state.path().join("bellpush/job-secret").exists());
}

/// Not a test of its own: a rank's process, which calls (without end, unless told how often) and says how that ended.
#[test]
fn child() {
    let Ok(link) = std::env::var(CHILD) else { return };
    std::thread::spawn(|| {
        std::thread::sleep(LIFE);
        std::process::exit(3);
    });
    let job = Job::from_env(Duration::from_secs(20), Duration::from_secs(20)).unwrap().unwrap();
    let mut bootstrap = Bootstrap::join(&job).unwrap();
    // Two NICs each: channels of a rank are on both.
    let mut nets = Vec::new();
    let mut nic = |place: usize| -> Arc<dyn Nic> {
        let link: Box<dyn Link> = match link.strip_prefix("shm-") {
            Some(name) => {
                nets.push(ShmNet::named(&format!("{name}-{place}"), false).unwrap());
                Box::new(nets[place].attach_free().unwrap())
            }
            None => Box::new(UdpLink::open_free().unwrap()),
        };
        SoftNic::open_on(SoftConfig::default(), link).unwrap()
    };
    let nics = [nic(0), nic(1)];
    let gpu = Gpu::open(Executor::Host(HostOptions::default())).unwrap();
    let mut options = Options::new("push/inband".parse().unwrap());
    (options.channels, options.timeout) = (2, TIMEOUT);
    options.algorithm = Some(std::env::var("ALGORITHM").unwrap().parse().unwrap());
    let member = Member::new(&gpu, &nics, job.rank, job.ranks, &options).unwrap();
    let said = bootstrap.all_gather(&serde_json::to_vec(member.address()).unwrap()).unwrap();
    nets.iter().for_each(ShmNet::unname); // all are there, and some will be killed
    let addresses: Vec<RankAddress> =
        said.iter().map(|text| serde_json::from_slice(text).unwrap()).collect();
    let rank = member.connect(&addresses).unwrap();

    let stream = gpu.stream().unwrap();
    let memory = Memory::from(gpu.alloc(40_000).unwrap());
    let (first, n) = (f64::from(job.ranks) as f32, 10_000);
    let calls = std::env::var("CALLS").map_or(u64::MAX, |n| n.parse().unwrap());
    for call in 0..calls {
        memory.write(0, bytemuck::cast_slice(&vec![1f32; n])).unwrap();
        rank.all_reduce(&stream, &memory, &memory, n as u64, Dtype::F32, Op::Sum).unwrap();
        let since = Instant::now();
        let done = rank.synchronize(&stream);
        if let (Ok(()), true) = (&done, call > 3 && since.elapsed() > SLOW / 2) {
            println!("\n{SAYS}waited, and went on");
        }
        if let Err(error) = done {
            let blamed = match &error {
                Error::Silent { rank, .. } | Error::Link { rank, .. } => *rank as i64,
                _ => -1,
            };
            println!("\n{SAYS}{blamed} {error}");
            return;
        }
        let mut found = vec![0f32; n];
        memory.read(0, bytemuck::cast_slice_mut(&mut found)).unwrap();
        assert!(found.iter().all(|&sum| sum == first), "call {call}: a wrong sum");
        if call == 3 {
            println!("\n{SAYS}under way");
        }
    }
    bootstrap.all_gather(&[]).unwrap();
    println!("\n{SAYS}done");
}

fn spawn(link: &str, algorithm: &str, rank: u32, ranks: u32, root: SocketAddr) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "processes::child", "--nocapture"])
        .env(CHILD, link)
        .env("ALGORITHM", algorithm)
        .env("RANK", rank.to_string())
        .env("WORLD_SIZE", ranks.to_string())
        .env("BELLPUSH_ROOT", root.to_string())
        .env("BELLPUSH_JOB_SECRET", "a secret between us")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Three ranks in the middle of their calls, and what each says from then on.
fn under_way(link: &str, algorithm: &str) -> (Vec<Child>, Vec<impl Iterator<Item = String>>) {
    use std::io::{BufRead, BufReader};
    let root = free_port();
    let name = format!("{link}{}", std::process::id());
    let link = if link == "udp" { link } else { &name };
    let mut ranks: Vec<Child> = (0..3).map(|r| spawn(link, algorithm, r, 3, root)).collect();
    let mut lines: Vec<_> = ranks
        .iter_mut()
        .map(|child| {
            let said = BufReader::new(child.stdout.take().unwrap()).lines();
            said.map_while(Result::ok).filter_map(|l| l.strip_prefix(SAYS).map(str::to_owned))
        })
        .collect();
    for (rank, said) in lines.iter_mut().enumerate() {
        assert_eq!(said.next().as_deref(), Some("under way"), "rank {rank}");
    }
    (ranks, lines)
}

fn end(ranks: Vec<Child>) {
    for mut child in ranks {
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Hurts a rank in the middle of its calls, and asks the others whom they blame.
fn hurt(link: &str, algorithm: &str, hurt: usize, signal: Signal) {
    let (ranks, mut lines) = under_way(link, algorithm);
    let since = Instant::now();
    kill(Pid::from_raw(ranks[hurt].id() as i32), signal).unwrap();
    for rank in (0..3).filter(|&rank| rank != hurt) {
        let said = lines[rank].next().expect("an error, and no hang");
        let blames = format!("{hurt} ");
        assert!(said.starts_with(&blames), "{link}, {algorithm}, {signal}, rank {rank}: {said}");
    }
    assert!(since.elapsed() < 3 * TIMEOUT, "{:?}", since.elapsed());
    end(ranks);
}

/// Stops a rank for a while: all wait, and go on.
fn slow(link: &str, algorithm: &str, slow: usize) {
    let (ranks, mut lines) = under_way(link, algorithm);
    let pid = Pid::from_raw(ranks[slow].id() as i32);
    kill(pid, Signal::SIGSTOP).unwrap();
    std::thread::sleep(SLOW);
    kill(pid, Signal::SIGCONT).unwrap();
    for rank in (0..3).filter(|&rank| rank != slow) {
        let said = lines[rank].next();
        let on = Some("waited, and went on");
        assert_eq!(said.as_deref(), on, "{link}, {algorithm}, {slow} was slow, rank {rank}");
    }
    end(ranks);
}

#[test]
fn a_killed_rank_is_named_by_the_others() {
    hurt("shm-coll-kill", "ring", 1, Signal::SIGKILL);
    hurt("udp", "two-shot", 0, Signal::SIGKILL);
}

#[test]
fn a_stopped_rank_is_named_by_the_others() {
    hurt("shm-coll-stop", "two-shot", 2, Signal::SIGSTOP);
    hurt("udp", "one-shot", 1, Signal::SIGSTOP);
}

#[test]
fn a_slow_rank_is_waited_for() {
    slow("shm-coll-slow", "two-shot", 1);
    slow("udp", "ring", 0);
}
