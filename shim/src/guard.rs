//! A link whose descriptors are the device's no more: the program has closed them.
//!
//! libc's functions that close are hooked; a system call of the program's own is not seen, nor is
//! what libc closes inside of itself. What has the numbers then is the program's own: a device that
//! went on would take its datagrams. Such a device's port goes down instead, as if the cable had
//! been pulled.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bellpush_mem::hidden::{self, Mark};
use bellpush_soft_nic::link::{
    Apart, Built, Carries, FaultCounters, InPlace, Link, LinkCounters, LinkError, Notice, Received,
    Room, Share, TxBatch,
};
use bellpush_wire::roce::Fields;

use crate::process::say;

/// How often a busy engine looks: each time would cost as much as the packets do.
pub const LOOK: Duration = Duration::from_micros(10);
/// The same over shared memory, where packets go through no descriptor: what has one's number now is not written to.
pub const LOOK_IN_MEMORY: Duration = Duration::from_micros(100);
/// How long after it lost a descriptor a link is let go: a program that closes one may be about to close the others, and
/// what has a number then is its own.
const LET_GO_NS: u64 = LET_GO.as_nanos() as u64;
/// The same.
pub const LET_GO: Duration = Duration::from_millis(200);

/// What a link was. Its counters are those of when it was let go.
struct Was {
    address: IpAddr,
    mtu: usize,
    src_port: u16,
    carries: Carries,
    has_icrc: bool,
    joins: bool,
    is_in_place: bool,
    share: Option<Share>,
    counters: LinkCounters,
    faults: Option<FaultCounters>,
    description: String,
}

impl Was {
    fn new(link: &dyn Link) -> Self {
        Self {
            address: link.address(),
            mtu: link.mtu(),
            src_port: link.src_port(),
            carries: link.carries(),
            has_icrc: link.has_icrc(),
            joins: link.joins(),
            is_in_place: link.is_in_place(),
            share: link.share(),
            counters: link.counters(),
            faults: link.faults(),
            description: link.describe(),
        }
    }
}

/// A link that looks after its descriptors.
pub struct Guarded {
    /// `None` some time after one was closed: what is left of it would keep others from the address.
    inner: Option<Box<dyn Link>>,
    was: Was,
    /// Descriptors of the link.
    marks: Vec<Mark>,
    /// Those of source ports that were taken, and how often each port was.
    ports: HashMap<u16, (usize, Vec<Mark>)>,
    /// Whether one was closed.
    lost: Arc<AtomicBool>,
    /// The device's number.
    index: usize,
    /// How often they are looked at, and when next.
    every_ns: u64,
    look_ns: u64,
    /// When a link that has lost one is let go.
    let_go_ns: u64,
}

impl Guarded {
    /// Looks after the descriptors of a device's link, so often.
    pub fn new(
        inner: Box<dyn Link>,
        (marks, every): (Vec<Mark>, Duration),
        (index, lost): (usize, Arc<AtomicBool>),
    ) -> Self {
        let was = Was::new(&*inner);
        let (inner, ports) = (Some(inner), HashMap::new());
        let every_ns = every.as_nanos() as u64;
        Self { inner, was, marks, ports, lost, index, every_ns, look_ns: 0, let_go_ns: 0 }
    }

    /// Before anything is sent or received: an engine that rests looks after every rest.
    fn look(&mut self, now_ns: u64) -> Result<&mut dyn Link, LinkError> {
        if now_ns >= self.look_ns && !self.lost.load(Ordering::Relaxed) {
            self.look_ns = now_ns + self.every_ns;
            let of_ports = self.ports.values().flat_map(|(_, marks)| marks);
            if !self.marks.iter().chain(of_ports).all(|mark| mark.is_there()) {
                self.lost.store(true, Ordering::Relaxed);
                let index = self.index;
                self.let_go_ns = now_ns + LET_GO_NS;
                say(&format!(
                    "mlx5_{index}: the program has closed a descriptor of the device's: its port is down"
                ));
            }
        }
        if self.lost.load(Ordering::Relaxed)
            && now_ns >= self.let_go_ns
            && let Some(link) = self.inner.take()
        {
            self.was = Was::new(&*link);
        }
        self.link()
    }

    fn link(&mut self) -> Result<&mut dyn Link, LinkError> {
        match &mut self.inner {
            Some(link) if !self.lost.load(Ordering::Relaxed) => Ok(&mut **link),
            _ => {
                let source = io::Error::from_raw_os_error(libc::EBADF);
                Err(LinkError::System { call: "a descriptor that was closed", source })
            }
        }
    }
}

impl Link for Guarded {
    fn address(&self) -> IpAddr {
        self.was.address
    }

    fn mtu(&self) -> usize {
        self.was.mtu
    }

    fn src_port(&self) -> u16 {
        self.was.src_port
    }

    fn carries(&self) -> Carries {
        self.was.carries
    }

    fn fields(&self, wanted: &Fields) -> Fields {
        match &self.inner {
            Some(link) => link.fields(wanted),
            None => self.was.carries.of(wanted, self.was.src_port),
        }
    }

    fn take_port(&mut self, port: u16) -> Result<(), LinkError> {
        let (taken, marks) = hidden::gather(|| self.link()?.take_port(port));
        taken?;
        let (users, all) = self.ports.entry(port).or_default();
        *users += 1;
        all.extend(marks); // of its first user
        Ok(())
    }

    fn leave_port(&mut self, port: u16) {
        if let Some(link) = &mut self.inner {
            link.leave_port(port);
        }
        if let Entry::Occupied(mut taken) = self.ports.entry(port) {
            taken.get_mut().0 -= 1;
            if taken.get().0 == 0 {
                taken.remove(); // the link has closed what it had for that
            }
        }
    }

    fn has_icrc(&self) -> bool {
        self.was.has_icrc
    }

    fn joins(&self) -> bool {
        self.was.joins
    }

    fn send(&mut self, now_ns: u64, batch: &mut TxBatch) -> Result<usize, LinkError> {
        self.look(now_ns)?.send(now_ns, batch)
    }

    fn is_in_place(&self) -> bool {
        self.was.is_in_place
    }

    fn build(
        &mut self,
        to: IpAddr,
        fields: &Fields,
        packet: Apart<'_>,
        fill: &mut dyn FnMut(Room<'_>) -> bool,
    ) -> Result<Built, LinkError> {
        // An engine has received in the same step.
        self.link()?.build(to, fields, packet, fill)
    }

    fn wake(&mut self) -> Result<(), LinkError> {
        self.link()?.wake()
    }

    fn recv(
        &mut self,
        now_ns: u64,
        most: usize,
        each: &mut dyn FnMut(&Received<'_>),
    ) -> Result<usize, LinkError> {
        self.look(now_ns)?.recv(now_ns, most, each)
    }

    fn recv_in_place(
        &mut self,
        now_ns: u64,
        most: usize,
        each: &mut dyn FnMut(&InPlace<'_>),
    ) -> Result<usize, LinkError> {
        self.look(now_ns)?.recv_in_place(now_ns, most, each)
    }

    fn share(&self) -> Option<Share> {
        self.was.share
    }

    fn tell(&mut self, notice: Notice) {
        if let Some(link) = &mut self.inner {
            link.tell(notice);
        }
    }

    fn poll_at(&self) -> Option<u64> {
        self.inner.as_ref()?.poll_at()
    }

    fn holds(&self) -> bool {
        self.inner.as_ref().is_some_and(|link| link.holds())
    }

    fn is_up(&mut self) -> bool {
        self.link().is_ok_and(|link| link.is_up())
    }

    fn counters(&self) -> LinkCounters {
        self.inner.as_ref().map_or(self.was.counters, |link| link.counters())
    }

    fn faults(&self) -> Option<FaultCounters> {
        self.inner.as_ref().map_or(self.was.faults, |link| link.faults())
    }

    fn describe(&self) -> String {
        self.inner.as_ref().map_or_else(|| self.was.description.clone(), |link| link.describe())
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::RawFd;

    use bellpush_soft_nic::link::{ShmNet, UdpLink};

    use super::*;

    /// The socket of that port.
    fn socket_of(address: IpAddr, port: u16) -> Option<RawFd> {
        let bound = |&fd: &RawFd| {
            // SAFETY: all zeros are an address; the call writes no more than one.
            let (got, bound) = unsafe {
                let mut bound: libc::sockaddr_in = std::mem::zeroed();
                let mut room = size_of_val(&bound) as libc::socklen_t;
                (libc::getsockname(fd, (&raw mut bound).cast(), &mut room), bound)
            };
            let at = IpAddr::from(u32::from_be(bound.sin_addr.s_addr).to_be_bytes());
            got == 0 && (at, u16::from_be(bound.sin_port)) == (address, port)
        };
        (3..4096).find(bound)
    }

    #[test]
    fn payload_goes_from_its_place_to_its_place_over_shared_memory() {
        let net = ShmNet::anonymous(false).unwrap();
        let [mut a, mut b] = [(); 2].map(|()| {
            let link = Box::new(net.attach_free().unwrap());
            Guarded::new(link, (Vec::new(), LOOK_IN_MEMORY), (0, Arc::default()))
        });
        assert!(a.is_in_place() && b.is_in_place());
        let packet = Apart { head: &[0; 12], payload: 4096, tail: &[0; 4] };
        let fill = &mut |room: Room<'_>| matches!(room, Room::Shared(_));
        assert_eq!(a.build(b.address(), &Fields::default(), packet, fill).unwrap(), Built::Yes);
        a.wake().unwrap();
        let mut shared = 0;
        let came = b.recv_in_place(0, 1, &mut |it| shared += it.shared.map_or(0, |it| it.len()));
        assert_eq!((came.unwrap(), shared), (1, 4112));
        a.lost.store(true, Ordering::Relaxed);
        a.build(b.address(), &Fields::default(), packet, fill).unwrap_err();
        a.wake().unwrap_err();
    }

    #[test]
    fn the_socket_of_a_source_port_is_looked_after_as_long_as_it_is_there() {
        const PORT: u16 = 50_123;
        let (link, marks) = hidden::gather(|| UdpLink::open_free().unwrap());
        let (address, lost) = (link.address(), Arc::new(AtomicBool::new(false)));
        let mut link = Guarded::new(Box::new(link), (marks, LOOK), (0, lost.clone()));
        let mut now_ns = 0;
        let mut look = |link: &mut Guarded| {
            now_ns += LOOK.as_nanos() as u64;
            link.recv(now_ns, 1, &mut |_| {}).is_ok() && !lost.load(Ordering::Relaxed)
        };
        (0..2).for_each(|_| link.take_port(PORT).unwrap());
        assert!(look(&mut link));
        link.leave_port(PORT);
        assert!(socket_of(address, PORT).is_some() && look(&mut link), "another has it");
        link.leave_port(PORT);
        assert!(socket_of(address, PORT).is_none() && look(&mut link), "it is no loss");
        link.take_port(PORT).unwrap();
        let fd = socket_of(address, PORT).unwrap();
        assert!(hidden::is_hidden(fd), "the hooks of close and its kin leave it alone");
        // SAFETY: as a program may that knows nothing of it; its owner is told apart from what has the number then.
        unsafe { libc::syscall(libc::SYS_close, fd) };
        assert!(!look(&mut link), "what has its number now is the program's");
        UdpLink::open(address, None).err().expect("the program may be about to close the rest");
        link.recv(now_ns + LET_GO_NS, 1, &mut |_| {}).unwrap_err();
        assert!(!link.is_up() && link.take_port(PORT).is_err() && link.address() == address);
        UdpLink::open(address, None).expect("the address is another's to have");
    }
}
