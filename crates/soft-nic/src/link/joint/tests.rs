//! Links of one address, all in this process: they know of each other what processes do.

use std::fs::File;
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};

use super::message::{BUFFER_BYTES, ToKeeper, packet_header, welcome};
use super::socket::{Came, Line, Sent, accept, connect, listen};
use super::*;
use bellpush_wire::cm::{Dreq, GSI_QPN, Mad, Message, Rej, SidrReq};
use bellpush_wire::roce::{Addresses, Envelope, MAX_PACKET_BYTES, ROCE_PORT};

/// Bounds every wait.
const LONG: Duration = Duration::from_secs(20);
const SERVICE: u64 = 0x0106_1234;

/// An address of the loopback interface that no other test has.
fn address() -> IpAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [high, low] = (std::process::id() as u16).to_be_bytes();
    [127, 2 + high % 200, low, NEXT.fetch_add(1, Ordering::Relaxed)].into()
}

/// Has a link do what an engine would, and hands out what came: its source, source port and bytes.
fn drive(link: &mut JointLink) -> Vec<(IpAddr, u16, Vec<u8>)> {
    let mut came = Vec::new();
    // Every look is a late one.
    let now = link.now_ns + 10_000_000;
    link.is_up();
    let each = &mut |received: &Received<'_>| {
        let envelope = &received.envelope;
        came.push((envelope.addresses.src(), envelope.src_port, received.bytes.to_vec()));
    };
    link.recv(now, 64, each).unwrap();
    came
}

/// A member of the address that a keeper has.
fn member_of(keeper: &mut JointLink) -> JointLink {
    joined(keeper).unwrap()
}

fn joined(keeper: &mut JointLink) -> Result<JointLink, LinkError> {
    let addr = keeper.address();
    let joining = thread::spawn(move || JointLink::open(addr, None));
    let begin = Instant::now();
    while !joining.is_finished() {
        assert!(begin.elapsed() < LONG);
        drive(keeper);
    }
    joining.join().unwrap()
}

fn packet(qpn: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 12];
    bytes[4..8].copy_from_slice(&qpn.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// A packet to queue pair 1.
fn to_gsi(mad: &[u8]) -> Vec<u8> {
    let mut bytes = packet(GSI_QPN, &[0; 8]);
    bytes[0] = 0x64; // UD SEND Only
    [&bytes, mad, &[0; 4]].concat()
}

fn message(message: Message) -> Vec<u8> {
    to_gsi(&Mad { transaction: 1, modifier: 0, message }.emit())
}

/// A REQ, of which all that counts here is its ID and service (InfiniBand vol. 1, 12.6.5).
fn req(local_id: u32, service: u64) -> Vec<u8> {
    let dreq = Dreq { local_id, remote_id: 0, remote_qpn: 0, private: [0; 220] };
    let mut mad = Mad { transaction: 1, modifier: 0, message: Message::Dreq(dreq) }.emit();
    mad[16..18].copy_from_slice(&0x0010u16.to_be_bytes());
    mad[32..40].copy_from_slice(&service.to_be_bytes());
    to_gsi(&mad)
}

fn send(link: &mut JointLink, to: IpAddr, bytes: &[u8]) {
    let mut batch = TxBatch::new(1);
    batch.push_with(to, Fields::default(), |buf| {
        buf[..bytes.len()].copy_from_slice(bytes);
        Some(bytes.len())
    });
    assert_eq!(link.send(0, &mut batch).unwrap(), 1);
}

/// Sends a packet from one link to all of them, and says which has got it. It is sent again where
/// nobody has it: a socket may be full, and a keeper may be new.
#[track_caller]
fn goes_to(links: &mut [&mut JointLink], from: usize, bytes: &[u8]) -> usize {
    let (begin, to) = (Instant::now(), links[1].address());
    loop {
        assert!(begin.elapsed() < LONG, "nobody has it");
        send(links[from], to, bytes);
        let again = Instant::now();
        while again.elapsed() < Duration::from_millis(200) {
            for (n, link) in links.iter_mut().enumerate() {
                if drive(link).iter().any(|(_, _, came)| came == bytes) {
                    return n;
                }
            }
        }
    }
}

fn own_qpn(link: &JointLink) -> u32 {
    link.share.qpns().0 + 0x123
}

#[test]
fn packets_reach_the_process_whose_number_they_name() {
    let (mut far, mut a) =
        (JointLink::open(address(), None).unwrap(), JointLink::open(address(), None).unwrap());
    let (mut b, mut c) = (member_of(&mut a), member_of(&mut a));
    assert!(a.keeps() && !b.keeps() && !c.keeps());
    assert!(a.share != b.share && b.share != c.share && a.share != c.share);
    let (here, there) = (a.address(), far.address());
    let qpns = [own_qpn(&a), own_qpn(&b), own_qpn(&c)];
    let mut all = [&mut far, &mut a, &mut b, &mut c];
    for (n, qpn) in qpns.into_iter().enumerate() {
        assert_eq!(goes_to(&mut all, 0, &packet(qpn, b"from afar")), n + 1);
        for from in 1..4 {
            let payload = [from as u8; MAX_PACKET_BYTES - 12];
            assert_eq!(goes_to(&mut all, from, &packet(qpn, &payload)), n + 1, "from {from}");
        }
    }
    // Of a process that is none, the keeper says so.
    let (taken, mut others) =
        ([a.share, b.share, c.share], (0..Share::MOST).filter_map(Share::new));
    let nobodys = others.find(|share| !taken.contains(share)).unwrap().qpns().0 + 7;
    let mut all = [&mut far, &mut a, &mut b, &mut c];
    assert_eq!(goes_to(&mut all, 0, &packet(nobodys, b"nobody")), 1);
    // What a member has is what the sender sent, and what it sends comes from where it says.
    send(&mut far, here, &packet(qpns[1], b"as it was"));
    send(&mut b, there, &packet(1 << 20, b"answer"));
    let begin = Instant::now();
    let mut came = [None, None];
    while came.iter().any(Option::is_none) {
        assert!(begin.elapsed() < LONG);
        drive(&mut a);
        for (came, link) in came.iter_mut().zip([&mut b, &mut far]) {
            *came = came.take().or_else(|| drive(link).pop());
        }
    }
    let [at_b, at_far] = came.map(Option::unwrap);
    assert_eq!(at_b, (there, ROCE_PORT, packet(qpns[1], b"as it was")));
    assert_eq!(at_far, (here, b.src_port(), packet(1 << 20, b"answer")));
}

#[test]
fn requests_go_to_whoever_offers_the_service() {
    let (mut far, mut a) =
        (JointLink::open(address(), None).unwrap(), JointLink::open(address(), None).unwrap());
    let (mut b, mut c) = (member_of(&mut a), member_of(&mut a));
    let sidr = |request_id, service| {
        message(Message::SidrReq(SidrReq { request_id, pkey: 0xffff, service, private: [0; 216] }))
    };
    // Who manages says that nobody offers it.
    c.tell(Notice::Manages);
    assert_eq!(goes_to(&mut [&mut far, &mut a, &mut b, &mut c], 0, &req(1, SERVICE)), 3);
    a.tell(Notice::Manages);
    assert_eq!(goes_to(&mut [&mut far, &mut a, &mut b, &mut c], 0, &req(1, SERVICE)), 1);
    b.tell(Notice::Offers(SERVICE));
    c.tell(Notice::Offers(SERVICE + 1));
    let mut all = [&mut far, &mut a, &mut b, &mut c];
    assert_eq!(goes_to(&mut all, 0, &req(2, SERVICE)), 2);
    assert_eq!(goes_to(&mut all, 0, &req(3, SERVICE + 1)), 3);
    assert_eq!(goes_to(&mut all, 0, &sidr(4, SERVICE + 1)), 3);
    for (n, share) in [(1, all[1].share), (2, all[2].share), (3, all[3].share)] {
        let remote_id = share.ids().0 + 99;
        let dreq = Dreq { local_id: 2, remote_id, remote_qpn: 7, private: [0; 220] };
        assert_eq!(goes_to(&mut all, 0, &message(Message::Dreq(dreq))), n);
    }
    // Whoever has a request has it again when it comes again, or is taken back.
    b.tell(Notice::Withdraws(SERVICE));
    let mut all = [&mut far, &mut a, &mut b, &mut c];
    assert_eq!(goes_to(&mut all, 0, &req(2, SERVICE)), 2);
    let (info, private) = ([0; 72], [0; 148]);
    let rej =
        Rej { local_id: 2, remote_id: 0, rejected: 2, info_bytes: 0, reason: 4, info, private };
    assert_eq!(goes_to(&mut all, 0, &message(Message::Rej(rej))), 2);
    assert_eq!(goes_to(&mut all, 0, &req(5, SERVICE)), 1);
}

#[test]
fn when_the_keeper_goes_a_member_takes_its_place() {
    let (mut far, mut a) =
        (JointLink::open(address(), None).unwrap(), JointLink::open(address(), None).unwrap());
    let (mut b, mut c) = (member_of(&mut a), member_of(&mut a));
    let shares = [b.share, c.share];
    c.tell(Notice::Offers(SERVICE));
    b.tell(Notice::Offers(SERVICE + 1));
    drop(a);
    let mut all = [&mut far, &mut b, &mut c];
    for (n, share) in shares.into_iter().enumerate() {
        assert_eq!(goes_to(&mut all, 0, &packet(share.qpns().0 + 5, b"still here")), n + 1);
    }
    assert_eq!(goes_to(&mut all, 0, &req(1, SERVICE)), 2);
    assert_eq!(goes_to(&mut all, 0, &req(2, SERVICE + 1)), 1);
    assert_ne!(b.keeps(), c.keeps());
    assert_eq!([b.share, c.share], shares);
    // And a new one comes, to whoever it is.
    let (keeper, other) = if b.keeps() { (&mut b, &mut c) } else { (&mut c, &mut b) };
    let mut d = member_of(keeper);
    let qpn = own_qpn(&d);
    let mut all = [&mut far, keeper, other, &mut d];
    assert_eq!(goes_to(&mut all, 0, &packet(qpn, b"new")), 3);
}

#[test]
fn nobody_gets_the_share_of_one_that_lives() {
    let (mut far, mut a) =
        (JointLink::open(address(), None).unwrap(), JointLink::open(address(), None).unwrap());
    let (addr, mut b) = (a.address(), member_of(&mut a));
    // Others are there before it sees that the keeper is gone.
    drop(a);
    let mut new = JointLink::open(addr, None).unwrap();
    assert!(new.keeps());
    let mut links: Vec<_> = (2..Share::MOST).map(|_| member_of(&mut new)).collect();
    let refused = joined(&mut new).err().expect("all shares are taken");
    assert!(matches!(refused, LinkError::InUse { .. }), "{refused}");
    links.push(new);
    for (n, link) in links.iter().enumerate() {
        assert_ne!(link.share, b.share);
        assert!(links[..n].iter().all(|other| other.share != link.share));
    }
    let (mut new, qpn) = (links.pop().unwrap(), own_qpn(&b));
    rejoin(&mut b, &mut new);
    assert_eq!(goes_to(&mut [&mut far, &mut new, &mut b], 0, &packet(qpn, b"back again")), 2);
    assert!(!b.keeps());
    // What one leaves, the next one may have.
    let left = links.pop().unwrap().share;
    assert_eq!(member_of(&mut new).share, left);
}

/// Drives two links until one is a member of the other's, beside others that may be.
fn rejoin(member: &mut JointLink, keeper: &mut JointLink) {
    let begin = Instant::now();
    drive(member); // sees that the one before is gone
    while !matches!(&member.part, Part::Member(member) if member.is_joined()) {
        assert!(begin.elapsed() < LONG);
        drive(member);
        drive(keeper);
    }
}

#[test]
fn the_port_of_one_that_has_no_keeper_goes_down() {
    let mut a = JointLink::open(address(), None).unwrap();
    let (addr, mut b) = (a.address(), member_of(&mut a));
    drop(a);
    // Somebody else has the port, who keeps nothing for others.
    let other = UdpLink::open(addr, None).unwrap();
    let begin = Instant::now();
    drive(&mut b);
    assert!(b.is_up(), "it may be a hand-over");
    let mut longest = 0;
    while b.is_up() {
        assert!(begin.elapsed() < LONG);
        drive(&mut b);
        longest = longest.max(b.poll_at().unwrap() - b.now_ns);
        thread::sleep(Duration::from_millis(1));
    }
    assert!(begin.elapsed() > ALONE / 2, "{:?}", begin.elapsed());
    assert!(longest > 20_000_000, "it looks ever more seldom: after {longest} ns at most");
    drop(other);
    while !b.is_up() {
        assert!(begin.elapsed() < LONG);
        drive(&mut b);
    }
    assert!(b.keeps());
}

#[test]
fn nobody_answers_for_one_that_is_still_to_come() {
    let (mut far, mut a) =
        (JointLink::open(address(), None).unwrap(), JointLink::open(address(), None).unwrap());
    let (mut b, mut c) = (member_of(&mut a), member_of(&mut a));
    a.tell(Notice::Manages);
    b.tell(Notice::Manages);
    c.tell(Notice::Offers(SERVICE));
    let remote_id = c.share.ids().0 + 99;
    let dreq =
        message(Message::Dreq(Dreq { local_id: 2, remote_id, remote_qpn: 7, private: [0; 220] }));
    drop(a);
    while !b.keeps() {
        drive(&mut b);
    }
    let begin = Instant::now();
    let early = [req(1, SERVICE), dreq.clone(), packet(own_qpn(&c), b"data")];
    early.iter().for_each(|bytes| send(&mut far, b.address(), bytes));
    let before = b.counters().rx_dropped;
    while begin.elapsed() < Duration::from_millis(300) {
        assert_eq!(drive(&mut b), [], "of another");
    }
    assert_eq!(b.counters().rx_dropped - before, 3);
    rejoin(&mut c, &mut b);
    for bytes in early {
        assert_eq!(goes_to(&mut [&mut far, &mut b, &mut c], 0, &bytes), 2);
    }
    // Who has not come by then is not waited for; neither is anybody where nobody else was.
    assert_eq!(goes_to(&mut [&mut far, &mut b, &mut c], 0, &req(2, SERVICE + 1)), 1);
    drop(c);
    assert_eq!(goes_to(&mut [&mut far, &mut b], 0, &dreq), 1);
    let (begin, mut alone) = (Instant::now(), JointLink::open(address(), None).unwrap());
    assert_eq!(goes_to(&mut [&mut far, &mut alone], 0, &req(3, SERVICE)), 1);
    assert!(begin.elapsed() < Duration::from_millis(900), "{:?}", begin.elapsed());
}

#[test]
fn a_member_that_takes_nothing_is_tried_ever_more_seldom() {
    let (mut far, mut a) =
        (JointLink::open(address(), None).unwrap(), JointLink::open(address(), None).unwrap());
    let mut b = member_of(&mut a);
    let qpn = own_qpn(&b);
    let big = packet(qpn, &[7; MAX_PACKET_BYTES - 12]);
    let begin = Instant::now();
    while a.poll_at().is_none() {
        assert!(begin.elapsed() < LONG);
        send(&mut far, a.address(), &big);
        drive(&mut a);
    }
    let mut now = a.now_ns;
    let mut waits = Vec::new();
    for _ in 0..12 {
        let at = a.poll_at().unwrap();
        waits.push(at - now);
        // No look before that is a try.
        a.recv(at - 1, 64, &mut |_| ()).unwrap();
        assert_eq!(a.poll_at(), Some(at));
        a.recv(at, 64, &mut |_| ()).unwrap();
        now = at;
    }
    assert_eq!(waits[..3], [FLUSH_NS, 2 * FLUSH_NS, 4 * FLUSH_NS]);
    assert_eq!(waits[11], MOST_FLUSH_NS);
    // It takes them again, and so nothing waits.
    while a.poll_at().is_some() {
        assert!(begin.elapsed() < LONG);
        drive(&mut b);
        drive(&mut a);
    }
    assert_eq!(goes_to(&mut [&mut far, &mut a, &mut b], 0, &packet(qpn, b"on")), 2);
}

#[test]
fn one_that_is_there_is_waited_for() {
    let addr = address();
    let port = UdpLink::open(addr, None).unwrap();
    let listener = listen(addr).unwrap();
    let mut waiting = Vec::new();
    while let Ok(line) = connect(addr) {
        waiting.push(line);
    }
    let begin = Instant::now();
    let opening = move || (JointLink::open(addr, None), begin.elapsed());
    // Whoever has the port is busy, and then gone: what comes after it is another.
    let joining = thread::spawn(opening);
    thread::sleep(2 * NOBODY);
    assert!(!joining.is_finished(), "others wait as well");
    drop(listener);
    thread::sleep(NOBODY / 2);
    drop(port);
    let mut keeper = joining.join().unwrap().0.unwrap();
    assert!(keeper.keeps());
    // And there is an end to it.
    waiting.clear();
    while let Ok(line) = connect(addr) {
        waiting.push(line);
    }
    let (refused, after) = thread::spawn(opening).join().unwrap();
    assert!(matches!(refused, Err(LinkError::InUse { .. })));
    assert!(after > PATIENCE && after < LONG / 2, "{after:?}");
    waiting.clear();
    assert!(!member_of(&mut keeper).keeps());
}

/// Has a keeper hear what a line says, until it has answered or ended it.
fn answer(keeper: &mut JointLink, line: &Line) -> Option<Vec<u8>> {
    let begin = Instant::now();
    loop {
        assert!(begin.elapsed() < LONG);
        drive(keeper);
        match line.receive(&mut [0; BUFFER_BYTES]) {
            Came::Nothing => {}
            Came::End => return None,
            Came::Message(bytes) => return Some(bytes.to_vec()),
        }
    }
}

#[test]
fn a_keeper_lets_go_whoever_talks_nonsense() {
    let mut a = JointLink::open(address(), None).unwrap();
    let mut b = member_of(&mut a);
    let wish = |line: &Line, share| line.send(&[&ToKeeper::Hello(share).emit()]);
    let offer = ToKeeper::Notice(Notice::Offers(SERVICE)).emit();
    for words in [&b"hello"[..], &[0xff; BUFFER_BYTES + 100], &offer] {
        let line = connect(a.address()).unwrap().unwrap();
        assert_eq!(line.send(&[words]), Sent::Yes);
        assert_eq!(answer(&mut a, &line), None, "{} bytes", words.len());
    }
    for taken in [a.share, b.share] {
        let line = connect(a.address()).unwrap().unwrap();
        assert_eq!(wish(&line, taken), Sent::Yes);
        assert_eq!(answer(&mut a, &line), None, "another has {taken:?}");
    }
    let mut free =
        (0..Share::MOST).map(Share::wrapping).filter(|s| ![a.share, b.share].contains(s));
    let (one, other) = (free.next().unwrap(), free.next().unwrap());
    let line = connect(a.address()).unwrap().unwrap();
    assert_eq!(wish(&line, one), Sent::Yes);
    assert!(answer(&mut a, &line).is_some());
    assert_eq!(wish(&line, other), Sent::Yes);
    assert_eq!(answer(&mut a, &line), None, "it has one already");
    // There is an end to those who say nothing.
    let silent: Vec<_> = (0..20).filter_map(|_| connect(a.address()).ok()).collect();
    drive(&mut a);
    let Part::Keeper(keeper) = &a.part else { panic!() };
    assert!(keeper.count() <= 9, "{} of {}", keeper.count(), silent.len());
    drop(silent);
    let qpn = own_qpn(&b);
    let mut far = JointLink::open(address(), None).unwrap();
    assert_eq!(goes_to(&mut [&mut far, &mut a, &mut b], 0, &packet(qpn, b"all is well")), 2);
}

#[test]
fn a_member_drops_what_is_no_packet() {
    let addr = address();
    let _port = UdpLink::open(addr, None).unwrap();
    let listener = listen(addr).unwrap();
    let joining = thread::spawn(move || JointLink::open(addr, None).unwrap());
    let begin = Instant::now();
    let line = loop {
        assert!(begin.elapsed() < LONG);
        match accept(&listener).unwrap() {
            Some(line) => break line,
            None => thread::sleep(RETRY),
        }
    };
    let share = loop {
        assert!(begin.elapsed() < LONG);
        if let Came::Message(bytes) = line.receive(&mut [0; BUFFER_BYTES]) {
            let Some(ToKeeper::Hello(share)) = ToKeeper::parse(bytes) else { panic!("{bytes:?}") };
            break share;
        }
    };
    assert_eq!(line.send(&[&welcome(share)]), Sent::Yes);
    let mut member = joining.join().unwrap();
    let v6 = Addresses::new("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap()).unwrap();
    let header = packet_header(&Envelope::new(v6, 1));
    let long = [0; 2 * BUFFER_BYTES];
    for nonsense in [&[9][..], &header, &long, &welcome(share), &header[..7]] {
        assert_eq!(line.send(&[nonsense]), Sent::Yes);
    }
    let v4 = Addresses::new([192, 0, 2, 1].into(), addr).unwrap();
    let header = packet_header(&Envelope::new(v4, 1));
    assert_eq!(line.send(&[&header, &[0; MAX_PACKET_BYTES + 1]]), Sent::Yes);
    assert_eq!(line.send(&[&header, b"a packet"]), Sent::Yes);
    let came = drive(&mut member);
    assert_eq!(came, [([192, 0, 2, 1].into(), 1, b"a packet".to_vec())]);
}

/// All shares of an address that nobody has.
fn all_shares(addr: IpAddr) -> Vec<Hold> {
    std::iter::from_fn(|| Some(Hold::any(addr, 0).unwrap()?.1)).collect()
}

fn is_readable(fd: &OwnedFd) -> bool {
    let at_once = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut fds = [rustix::event::PollFd::new(fd, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&at_once)).unwrap() > 0
}

/// Another process may have the share by now.
#[test]
fn a_member_whose_share_the_program_closed_is_nobodys() {
    let mut a = JointLink::open(address(), None).unwrap();
    let (addr, mut b) = (a.address(), member_of(&mut a));
    b.hold.close();
    drop(a);
    let begin = Instant::now();
    while begin.elapsed() < 3 * MOST_RETRY {
        drive(&mut b);
        assert!(!b.keeps() && !b.is_up());
    }
    // Its engine may rest: the line that has ended says nothing any more.
    let b_rests = b.descriptors().unwrap().iter().all(|fd| !is_readable(fd));
    assert!(b_rests && b.tend() == LOST_NS && b.poll_at().unwrap() > b.now_ns);
    let mut new = JointLink::open(addr, None).unwrap();
    let begin = Instant::now();
    while begin.elapsed() < 3 * MOST_RETRY {
        drive(&mut b);
        drive(&mut new);
        let Part::Keeper(keeper) = &new.part else { panic!("the port was taken") };
        assert_eq!(keeper.count(), 0, "it asks");
    }
}

/// Another user can have all names of an address whose port is free.
#[test]
fn an_address_without_shares_is_not_free() {
    let port = UdpLink::open_free().unwrap();
    let taken = port.address();
    let _shares = all_shares(taken);
    drop(port);
    let refused = JointLink::open_alone(taken, None).err().unwrap();
    assert!(matches!(refused, LinkError::InUse { .. }), "{refused}");
    let link = JointLink::open_free().unwrap();
    assert!(link.keeps() && link.address() != taken);
}

/// One that has just ended has its share for a moment longer than the port.
#[test]
fn shares_that_are_held_for_a_moment_are_waited_for() {
    let addr = address();
    let shares = all_shares(addr);
    let opening = move || (JointLink::open(addr, None), Instant::now());
    let joining = thread::spawn(opening);
    thread::sleep(NOBODY / 10);
    assert!(!joining.is_finished(), "they may be free in a moment");
    drop(shares);
    assert!(joining.join().unwrap().0.unwrap().keeps());
    // And there is an end to it. Meanwhile the port is others' to take.
    let (_shares, begin) = (all_shares(addr), Instant::now());
    let joining = thread::spawn(opening);
    thread::sleep(NOBODY / 10);
    while let Err(refused) = UdpLink::open(addr, None) {
        assert!(!joining.is_finished(), "{refused}");
    }
    let (refused, end) = joining.join().unwrap();
    assert!(matches!(refused, Err(LinkError::InUse { .. })));
    assert!(end - begin >= NOBODY && end - begin < LONG / 2, "{:?}", end - begin);
}

/// Run again in a process of its own, which has few descriptors and uses them up.
#[test]
fn a_process_without_descriptors_is_told_so() {
    const ALONE: &str = "BELLPUSH_TEST_FEW_DESCRIPTORS";
    if std::env::var_os(ALONE).is_some() {
        let addr = address();
        let mut files: Vec<_> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
        files.pop(); // for the port
        let refused = JointLink::open(addr, None).err().expect("there is none for a share");
        drop(files);
        let LinkError::System { call: "socket", source } = &refused else { panic!("{refused}") };
        assert_eq!(source.raw_os_error(), Some(libc::EMFILE));
        return;
    }
    let name = "link::joint::tests::a_process_without_descriptors_is_told_so";
    let status = Command::new("sh")
        .args(["-c", "ulimit -n 64; exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name])
        .env(ALONE, "1")
        .status();
    assert!(status.unwrap().success());
}

#[test]
fn where_somebody_else_has_the_port_an_address_is_in_use() {
    let addr = address();
    let other = UdpLink::open(addr, None).unwrap();
    let refused = JointLink::open(addr, None).err().unwrap();
    assert!(matches!(refused, LinkError::InUse { .. }), "{refused}");
    // One that does not answer is none either, and is not waited for for long.
    let _listener = listen(addr).unwrap();
    let begin = Instant::now();
    assert!(JointLink::open(addr, None).is_err());
    assert!(begin.elapsed() < LONG / 2, "{:?}", begin.elapsed());
    drop(other);
    assert!(JointLink::open(addr, None).unwrap().keeps());
}
