//! The guest: Debian's kernel with `rdma_rxe` under QEMU, on a tap in this network namespace.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::failure::Failure;

/// Our end of the tap.
pub const HOST_IP: Ipv4Addr = Ipv4Addr::new(10, 47, 0, 1);
/// The same, for a device beside those of the other cases.
pub const HOST_IP_BESIDE: Ipv4Addr = Ipv4Addr::new(10, 47, 0, 3);
/// Our end of the tap.
pub const HOST_IP6: Ipv6Addr = Ipv6Addr::new(0xfd47, 0, 0, 0, 0, 0, 0, 1);
/// The guest's end.
pub const GUEST_IP: Ipv4Addr = Ipv4Addr::new(10, 47, 0, 2);
/// The guest's end.
pub const GUEST_IP6: Ipv6Addr = Ipv6Addr::new(0xfd47, 0, 0, 0, 0, 0, 0, 2);
/// Index of the guest's IPv4 GID: 0 is the link-local one, and these come in the order in which
/// `guest-init` adds them.
pub const GID_IPV4: u32 = 1;
/// Index of the guest's IPv6 GID.
pub const GID_IPV6: u32 = 2;

/// Room for a packet of path MTU 4096 with every header.
const MTU: u32 = 4400;
const AGENT_PORT: u16 = 7;
/// TCG on a busy machine; 6 s is usual.
const BOOT_TIMEOUT: Duration = Duration::from_secs(90);

/// A running guest; it is killed when this is dropped.
pub struct Guest {
    qemu: Child,
    console: PathBuf,
}

impl Guest {
    /// Sets up the tap and boots.
    pub fn boot(folder: &str) -> Result<Self, Failure> {
        for line in [
            "mount -t sysfs sysfs /sys".into(),
            "ip link set lo up".into(),
            "ip tuntap add tap0 mode tap".into(),
            format!("ip link set tap0 mtu {MTU}"),
            format!("ip addr add {HOST_IP}/24 dev tap0"),
            format!("ip addr add {HOST_IP_BESIDE}/24 dev tap0"),
            format!("ip addr add {HOST_IP6}/64 dev tap0 nodad"),
            "ip link set tap0 up".into(),
        ] {
            host(&line)?;
        }
        let console = PathBuf::from(folder).join("console.log");
        File::create(&console)?; // what the last guest said is gone
        let log = File::create(console.with_file_name("qemu.log"))?;
        let kernel_line = format!(
            "console=ttyS0 quiet panic=-1 GUEST_IP={GUEST_IP}/24 GUEST_IP6={GUEST_IP6}/64 \
             GUEST_MTU={MTU}"
        );
        // TCG: hardware acceleration hangs in nested machines. A second processor that could be plugged in: for a machine that
        // never has more than one, QEMU before 8.0 leaves the guest's memory barriers out, though its own I/O thread reads the
        // virtio rings; now and then the notification of a packet was lost then, and with it the guest's network.
        let qemu = Command::new("qemu-system-x86_64")
            .args(["-accel", "tcg", "-machine", "q35", "-cpu", "max", "-m", "512"])
            .args(["-smp", "1,maxcpus=2"])
            .args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"])
            .args(["-kernel", &format!("{folder}/vmlinuz"), "-initrd", &format!("{folder}/initrd")])
            .args(["-append", &kernel_line])
            .args(["-serial", &format!("file:{}", console.display())])
            .args(["-netdev", "tap,id=net,ifname=tap0,script=no,downscript=no"])
            .args(["-device", &format!("virtio-net-pci,netdev=net,host_mtu={MTU}")])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        let mut guest = Self { qemu, console };
        let start = Instant::now();
        while !guest.console().contains("guest: ready") {
            if guest.qemu.try_wait()?.is_some() || start.elapsed() > BOOT_TIMEOUT {
                return Err(Failure::NoBoot(guest.console()));
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(guest)
    }

    /// What the guest's kernel and `guest-init` printed.
    pub fn console(&self) -> String {
        fs::read(&self.console)
            .map(|b| String::from_utf8_lossy(&b).into_owned())
            .unwrap_or_default()
    }

    /// Runs a line of shell and returns its output.
    pub fn run(&self, line: &str, timeout: Duration) -> Result<String, Failure> {
        self.start(line)?.finish(timeout)
    }

    /// Starts a line of shell.
    pub fn start(&self, line: &str) -> Result<GuestCommand, Failure> {
        let start = Instant::now();
        let at = SocketAddr::new(IpAddr::V4(GUEST_IP), AGENT_PORT);
        // The guest says that it is ready a moment before its agent listens.
        let mut stream = loop {
            match TcpStream::connect_timeout(&at, Duration::from_secs(5)) {
                Ok(stream) => break stream,
                Err(e) if start.elapsed() > Duration::from_secs(10) => return Err(e.into()),
                Err(_) => thread::sleep(Duration::from_millis(50)),
            }
        };
        writeln!(stream, "{line}")?;
        stream.shutdown(Shutdown::Write)?;
        Ok(GuestCommand { line: line.into(), stream, output: Vec::new() })
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.qemu.kill(); // gone already is as good
        let _ = self.qemu.wait();
    }
}

/// A command that runs in the guest.
pub struct GuestCommand {
    line: String,
    stream: TcpStream,
    output: Vec<u8>,
}

impl GuestCommand {
    /// Waits for its end, however it ends; its output.
    pub fn said(self, timeout: Duration) -> String {
        match self.finish(timeout) {
            Ok(output) | Err(Failure::Command { output, .. }) => output,
            Err(e) => e.to_string(),
        }
    }

    /// Waits for its end and returns its output; any other status than 0 is a failure.
    pub fn finish(mut self, timeout: Duration) -> Result<String, Failure> {
        let end = Instant::now() + timeout;
        let mut piece = [0; 4096];
        loop {
            let left = end.saturating_duration_since(Instant::now());
            self.stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
            match self.stream.read(&mut piece) {
                Ok(0) => break,
                Ok(n) => self.output.extend_from_slice(&piece[..n]),
                Err(e) if timed_out(&e) => return Err(self.failed("no end in time")),
                Err(e) => return Err(e.into()),
            }
        }
        let text = String::from_utf8_lossy(&self.output).into_owned();
        match text.trim_end().rsplit_once("status ") {
            Some((output, "0")) => Ok(output.into()),
            Some((_, status)) => Err(self.failed(&format!("status {status}"))),
            None => Err(self.failed("no status")),
        }
    }

    fn failed(&self, why: &str) -> Failure {
        Failure::Command {
            line: self.line.clone(),
            why: why.into(),
            output: String::from_utf8_lossy(&self.output).into_owned(),
        }
    }
}

fn timed_out(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Runs words, no shell, on the host.
fn host(line: &str) -> Result<(), Failure> {
    let mut words = line.split_whitespace();
    let program = words.next().expect("a command has a name");
    let output = Command::new(program).args(words).stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(Failure::Command {
        line: line.into(),
        why: output.status.to_string(),
        output: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}
