//! The shared-memory link between processes: names, ports, and peers that are killed.

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::suite;
use crate::suite::{Maker, clock, expect, push, recv, send_all, send_one};
use bellpush::nic::soft::link::{IN_PLACE, Link, LinkError, STALL_NS, ShmLink, ShmNet, TxBatch};

fn unique() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

fn path_of(name: &str) -> PathBuf {
    format!("/dev/shm/bellpush-{}-{name}", nix::unistd::geteuid()).into()
}

/// Links in a file; each NIC opens it anew, as another process would.
struct Named(String, #[expect(dead_code, reason = "keeps the file")] ShmNet);

impl Maker for Named {
    fn make() -> Self {
        let name = unique();
        let net = ShmNet::named(&name, false).unwrap();
        Self(name, net)
    }

    fn attach(&self, addr: Option<IpAddr>) -> Result<Box<dyn Link>, LinkError> {
        let net = ShmNet::named(&self.0, false)?;
        Ok(match addr {
            Some(addr) => Box::new(net.attach(addr)?),
            None => Box::new(net.attach_free()?),
        })
    }
}

suite!(named, Named);

#[test]
fn a_link_lasts_as_long_as_someone_has_it_open() {
    let name = unique();
    let net = ShmNet::named(&name, false).unwrap();
    let link = ShmNet::named(&name, false).unwrap().attach_free().unwrap();
    drop(net);
    assert!(path_of(&name).exists());
    assert!(link.describe().contains(&name));
    drop(link);
    assert!(!path_of(&name).exists());
}

#[test]
fn a_link_without_its_name_goes_on_and_leaves_another_alone() {
    let name = unique();
    let net = ShmNet::named(&name, false).unwrap();
    let (a, b) = (net.attach_free().unwrap(), net.attach_free().unwrap());
    net.unname();
    assert!(!path_of(&name).exists());
    assert_ne!(net.attach_free().unwrap().address(), a.address(), "who has it open sees its ports");
    let other = ShmNet::named(&name, false).unwrap();
    assert_eq!(other.attach_free().unwrap().address(), a.address(), "another link");
    net.unname();
    drop((net, a, b));
    assert!(path_of(&name).exists(), "the other one's");
    drop(other);
    assert!(!path_of(&name).exists());
}

#[test]
fn packets_that_are_dropped_are_work_as_well() {
    let net = ShmNet::anonymous(false).unwrap();
    let [to, from] = [1u8, 2].map(|host| IpAddr::from([127, 0, 0, host]));
    let (first, mut a) = (net.attach(to).unwrap(), net.attach(from).unwrap());
    let mut batch = TxBatch::new(100);
    (0..100).for_each(|psn| assert!(push(&a, &mut batch, to, psn, 64)));
    assert_eq!(a.send(0, &mut batch).unwrap(), 100);
    // Who holds the port next does not get them.
    drop(first);
    let mut next = net.attach(to).unwrap();
    for call in 1..=6 {
        let came = next.recv(0, 16, &mut |_| panic!("it is another's")).unwrap();
        assert_eq!(came, 1, "there may be more behind them");
        assert_eq!(next.counters().rx_dropped, 16 * call, "a call looks at 16");
    }
    assert_eq!(next.recv(0, 16, &mut |_| panic!("it is another's")).unwrap(), 0, "that was all");
    assert!(push(&a, &mut batch, to, 100, 64));
    a.send(0, &mut batch).unwrap();
    assert_eq!(next.recv(0, 16, &mut |_| {}).unwrap(), 1, "what is the next one's comes");
}

/// Long packets are taken a few at a time, so that their sender gets acknowledgements meanwhile; those that are copied
/// out whole count apart.
#[test]
fn long_packets_count_as_several() {
    let net = ShmNet::anonymous(false).unwrap();
    let (mut a, mut b) = (net.attach_free().unwrap(), net.attach_free().unwrap());
    let (to, most) = (b.address(), 12 * IN_PLACE);
    for (bytes, expected) in [(8, most), (4096, 12)] {
        let mut batch = TxBatch::new(most);
        (0..most as u32).for_each(|psn| assert!(push(&a, &mut batch, to, psn, bytes)));
        assert_eq!(a.send(0, &mut batch).unwrap(), most);
        let mut got = 0;
        let count = b.recv_in_place(0, most, &mut |_| got += 1).unwrap();
        assert_eq!((count, got), (expected, expected), "{bytes} B");
        while b.recv_in_place(0, most, &mut |_| got += 1).unwrap() > 0 {}
        assert_eq!(got, most);
    }
}

#[test]
fn packets_end_the_rest_of_who_drives_a_nic() {
    const LONG: Duration = Duration::from_secs(20);
    let name = unique();
    let net = ShmNet::named(&name, false).unwrap();
    let (mut a, mut b) = (net.attach_free().unwrap(), net.attach_free().unwrap());
    let (rest, to, start) = (b.rest().unwrap(), b.address(), Instant::now());
    assert!(!rest.wait(Duration::from_millis(5)).unwrap(), "nothing has come");
    for psn in 0..20 {
        let woken = std::thread::scope(|scope| {
            let waits = scope.spawn(|| rest.wait(LONG).unwrap());
            // At first the packet is most likely before the wait, then the wait before the packet.
            std::thread::sleep(Duration::from_millis(psn as u64));
            send_one(&mut a, to, psn, 8);
            waits.join().unwrap()
        });
        assert!(woken && start.elapsed() < LONG, "nobody was woken for packet {psn}");
        assert_eq!(expect(&mut b, 1)[0].0, psn);
    }
    // Who holds the port next is woken, too.
    drop((a, b));
    let (mut a, b) = (net.attach_free().unwrap(), net.attach_free().unwrap());
    let (rest, to) = (b.rest().unwrap(), b.address());
    send_one(&mut a, to, 0, 8);
    assert!(rest.wait(LONG).unwrap() && start.elapsed() < LONG);
}

#[test]
fn links_that_nobody_is_on_are_swept_away() {
    let prefix = unique();
    let [left, used] = ["left", "used"].map(|name| format!("{prefix}-{name}"));
    std::fs::write(path_of(&left), b"of a process that was killed").unwrap();
    let net = ShmNet::named(&used, false).unwrap();
    let other = unique();
    std::fs::write(path_of(&other), b"another name").unwrap();
    ShmNet::sweep(&format!("{prefix}-"));
    assert!(!path_of(&left).exists());
    assert!(path_of(&used).exists() && path_of(&other).exists());
    std::fs::remove_file(path_of(&other)).unwrap();
    drop(net);
}

#[test]
fn what_cannot_be_a_link_is_refused() {
    for name in ["", "a/b", "..", "a b", "é"] {
        let error = ShmNet::named(name, false).err().unwrap();
        assert!(matches!(error, LinkError::Name { .. }), "{name:?}: {error}");
    }
    let name = unique();
    std::os::unix::fs::symlink("/dev/null", path_of(&name)).unwrap();
    let error = ShmNet::named(&name, false).err().unwrap();
    assert!(matches!(error, LinkError::System { .. }), "{error}");
    std::fs::remove_file(path_of(&name)).unwrap();
    let name = unique();
    let net = ShmNet::named(&name, true).unwrap();
    let error = ShmNet::named(&name, false).err().unwrap();
    assert!(matches!(error, LinkError::OtherIcrc { icrc: true, .. }), "{error}");
    // Someone of this user writes what is no link.
    let file = std::fs::File::options().write(true).open(path_of(&name)).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"something", 0).unwrap();
    let error = ShmNet::named(&name, true).err().unwrap();
    assert!(matches!(error, LinkError::Foreign { .. }), "{error}");
    drop(net);
    // With nobody on it, it is made anew.
    std::fs::write(path_of(&name), b"left over").unwrap();
    drop(ShmNet::named(&name, false).unwrap());
}

#[test]
fn a_link_is_its_users_alone() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

    let name = unique();
    let net = ShmNet::named(&name, false).unwrap();
    let about = std::fs::metadata(path_of(&name)).unwrap();
    assert_eq!(about.permissions().mode() & 0o777, 0o600);
    assert_eq!(about.uid(), nix::unistd::geteuid().as_raw());
    drop(net);
    // Another's file, which he could write to later on: only root can make one here.
    std::fs::write(path_of(&name), b"").unwrap();
    if chown(path_of(&name), Some(65534), None).is_ok() {
        let error = ShmNet::named(&name, false).err().unwrap();
        assert!(matches!(error, LinkError::Foreign { .. }), "{error}");
    }
    std::fs::remove_file(path_of(&name)).unwrap();
    // Nor what is no file.
    nix::unistd::mkfifo(&path_of(&name), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let error = ShmNet::named(&name, false).err().unwrap();
    std::fs::remove_file(path_of(&name)).unwrap();
    assert!(matches!(error, LinkError::Foreign { .. }), "{error}");
}

#[test]
fn a_link_has_so_many_ports() {
    let net = ShmNet::anonymous(false).unwrap();
    let mut all: Vec<ShmLink> = (0..16).map(|_| net.attach_free().unwrap()).collect();
    assert!(matches!(net.attach_free(), Err(LinkError::Full { ports: 16 })));
    // Everybody reaches everybody.
    let addresses: Vec<IpAddr> = all.iter().map(|link| link.address()).collect();
    for (psn, link) in (0..).zip(&mut all) {
        addresses.iter().for_each(|&to| send_one(link, to, psn, 8));
    }
    for link in &mut all {
        let mut got = expect(link, 16);
        got.sort_unstable();
        assert!(got.iter().zip(&addresses).zip(0..).all(|((g, a), psn)| *g == (psn, 8, *a)));
    }
    all.pop();
    net.attach_free().unwrap();
}

#[test]
fn a_full_ring_pushes_back_and_then_loses() {
    let net = ShmNet::anonymous(false).unwrap();
    let (mut a, b) = (net.attach_free().unwrap(), net.attach_free().unwrap());
    let (mut batch, mut now) = (TxBatch::new(256), 1);
    for psn in 0..256 {
        assert!(push(&a, &mut batch, b.address(), psn, 8));
    }
    assert_eq!(a.send(now, &mut batch).unwrap(), 128);
    now += STALL_NS - 1;
    assert_eq!(a.send(now, &mut batch).unwrap(), 0);
    assert_eq!((a.counters().tx_full, a.counters().tx_lost), (2, 0));
    now += 1;
    assert_eq!(a.send(now, &mut batch).unwrap(), 128);
    assert_eq!(a.counters().tx_lost, 128);
}

const CHILD: &str = "BELLPUSH_TEST_LINK";

/// Not a test of its own: what the tests below run in another process. Answers each packet with
/// one of the same number, and sends what nobody asked for in between.
#[test]
fn child() {
    let Ok(name) = std::env::var(CHILD) else { return };
    let net = ShmNet::named(&name, false).unwrap();
    let mut link = net.attach("127.0.0.200".parse().unwrap()).unwrap();
    let parent = "127.0.0.100".parse().unwrap();
    let mut batch = TxBatch::new(8);
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(30) {
        let mut got = Vec::new();
        recv(&mut link, 4, &mut got);
        for (psn, bytes, from) in got {
            push(&link, &mut batch, from, psn, bytes);
        }
        push(&link, &mut batch, parent, 0xff_ffff, 4000);
        link.send(clock(), &mut batch).unwrap();
    }
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill(); // SIGKILL
        let _ = self.0.wait();
    }
}

fn spawn(name: &str) -> Killed {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "shm::child", "--nocapture"])
        .env(CHILD, name)
        .stdout(Stdio::null())
        .spawn();
    Killed(child.unwrap())
}

/// Sends until the other process has answered this number.
fn exchange(link: &mut ShmLink, psn: u32) {
    let to = "127.0.0.200".parse().unwrap();
    let start = Instant::now();
    let mut batch = TxBatch::new(1);
    loop {
        push(link, &mut batch, to, psn, 100);
        link.send(clock(), &mut batch).unwrap();
        let mut got = Vec::new();
        recv(link, 64, &mut got);
        if got.contains(&(psn, 100, to)) {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "no answer from the other process");
    }
}

#[test]
fn a_killed_peer_wedges_nobody_and_comes_back() {
    let name = unique();
    let net = ShmNet::named(&name, false).unwrap();
    let mut link = net.attach("127.0.0.100".parse().unwrap()).unwrap();
    let mut other = net.attach_free().unwrap();
    for round in 0..5 {
        let child = spawn(&name);
        exchange(&mut link, round);
        drop(child); // while it sends as fast as it can
        // Its ring fills up; the survivor goes on.
        let (start, mut batch) = (Instant::now(), TxBatch::new(32));
        for psn in 0..1000 {
            while !push(&link, &mut batch, "127.0.0.200".parse().unwrap(), psn, 1000) {
                link.send(clock(), &mut batch).unwrap();
            }
        }
        send_all(&mut link, &mut batch);
        assert!(start.elapsed() < Duration::from_secs(5));
        let to = other.address();
        send_one(&mut link, to, round, 64);
        assert_eq!(expect(&mut other, 1), [(round, 64, link.address())]);
        // Whole packets are left of it, as checked by `recv`, and then nothing.
        suite::drain(&mut link);
    }
    // The dead one's port and address are free again.
    let again = net.attach("127.0.0.200".parse().unwrap()).unwrap();
    assert!(matches!(net.attach("127.0.0.200".parse().unwrap()), Err(LinkError::InUse { .. })));
    drop((again, other, link, net));
    assert!(!path_of(&name).exists());
}

/// Files of a process that are a link's memory.
fn memory_of(process: u32) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap().flatten();
    let is_memory = |path: &PathBuf| {
        std::fs::read_link(path).is_ok_and(|to| to.to_string_lossy().contains("bellpush-link"))
    };
    entries.map(|entry| entry.path()).filter(is_memory).collect()
}

#[test]
fn a_link_whose_files_another_process_cuts_off_goes_on() {
    let name = unique();
    let net = ShmNet::named(&name, false).unwrap();
    let mut link = net.attach("127.0.0.100".parse().unwrap()).unwrap();
    let mut child = spawn(&name);
    exchange(&mut link, 0);
    let cut = |path: &PathBuf| std::fs::File::options().write(true).open(path)?.set_len(0);
    cut(&path_of(&name)).unwrap();
    exchange(&mut link, 1);
    let memory = memory_of(child.0.id());
    assert!(!memory.is_empty(), "the link's memory has a name");
    for path in &memory {
        assert_eq!(cut(path).unwrap_err().raw_os_error(), Some(libc::EPERM), "{path:?}");
    }
    exchange(&mut link, 2);
    assert!(child.0.try_wait().unwrap().is_none(), "the other process has ended");
    let error = ShmNet::named(&name, false).err().unwrap();
    assert!(matches!(error, LinkError::Foreign { .. }), "who comes then is refused: {error}");
}

#[test]
fn who_comes_finds_the_memory_by_anybody_who_is_there() {
    let name = unique();
    let first = ShmNet::named(&name, false).unwrap();
    let mut link = first.attach("127.0.0.100".parse().unwrap()).unwrap();
    for round in 0..3 {
        let child = spawn(&name);
        exchange(&mut link, round);
        drop(child); // its place in the list is somebody else's after that
    }
    let second = ShmNet::named(&name, false).unwrap();
    drop((link, first));
    let mut link = second.attach("127.0.0.100".parse().unwrap()).unwrap();
    let _child = spawn(&name);
    exchange(&mut link, 9);
}
