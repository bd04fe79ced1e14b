//! The receiving thread, and connections that end.

use std::net::Ipv4Addr;

use super::*;
use crate::gpu::{DeviceMem, Executor, HostOptions};
use crate::transport::{Local, Remote};
use bellpush_broken_mem::Broken;

const EIGHT: Put = Put { from: Local(0), to: Remote(0), bytes: 8, signal: None };

fn pair(memory: Option<Broken>) -> (Arc<Gpu>, Tcp, Tcp) {
    let gpu = Gpu::open(Executor::Host(HostOptions::default())).unwrap();
    let region = || Memory::from(gpu.alloc(4096).unwrap());
    let options = Options::default().timeout(Duration::from_secs(5));
    let mut a = Tcp::new(&gpu, region(), &options).unwrap();
    let mut b = match memory {
        Some(bad) => Tcp::receiving_into(&gpu, region(), Arc::new(bad), &options).unwrap(),
        None => Tcp::new(&gpu, region(), &options).unwrap(),
    };
    a.connect(b.listening, b.key).unwrap();
    b.connect(a.listening, a.key).unwrap();
    (gpu, a, b)
}

/// What ends the receiving thread is seen by the users of both ends.
#[test]
fn a_receiver_that_panics_or_fails_ends_its_endpoint_with_an_error() {
    for panics in [true, false] {
        let (gpu, a, b) = pair(Some(Broken { panics }));
        let stream = gpu.stream().unwrap();
        assert!(b.failure().is_none());
        a.put(&stream, EIGHT).unwrap();
        assert!(matches!(a.quiet(&stream), Err(Error::Tcp { .. })));
        assert!(a.failure().is_some() && a.put(&stream, EIGHT).is_err());
        // The thread says why before its connection's end can be seen, or shortly after.
        let until = Instant::now() + Duration::from_secs(5);
        while b.failure().is_none() && Instant::now() < until {
            std::thread::yield_now();
        }
        let why = b.put(&stream, EIGHT).unwrap_err().to_string();
        assert_eq!(why.contains("the receiving thread panicked: planted"), panics, "{why}");
        assert_eq!(b.quiet(&stream).unwrap_err().to_string(), why);
    }
}

/// A frame that was sent in part is the last: the rest of the next would be taken for its payload.
#[test]
fn a_frame_that_was_cut_short_ends_the_connection() {
    let (gpu, a, b) = pair(None);
    let stream = gpu.stream().unwrap();
    let cut = a.lock().send(|sender| {
        sender.frame(PUT, 0, 4096)?;
        Err(Error::Empty)
    });
    assert!(matches!(cut, Err(Error::Empty)));
    let why = a.put(&stream, EIGHT).unwrap_err().to_string();
    assert!(why.contains("half-way"), "{why}");
    assert!(a.quiet(&stream).is_err());
    let until = Instant::now() + Duration::from_secs(5);
    while b.failure().is_none() && Instant::now() < until {
        std::thread::yield_now();
    }
    assert!(b.failure().is_some(), "a message is missing its end");
}

#[test]
fn a_peer_that_goes_between_two_frames_is_no_failure() {
    let (gpu, mut a, b) = pair(None);
    let stream = gpu.stream().unwrap();
    b.put(&stream, EIGHT).unwrap();
    b.quiet(&stream).unwrap();
    drop(b);
    a.receiver.take().unwrap().join().unwrap();
    assert!(a.failure().is_none());
}

/// One endpoint, its region, and what a stranger's process makes of the connection.
fn against_stranger() -> (Tcp, Arc<DeviceMem>, TcpStream) {
    let gpu = Gpu::open(Executor::Host(HostOptions::default())).unwrap();
    let region = gpu.alloc(4096).unwrap();
    let ep = Tcp::new(&gpu, region.clone().into(), &Options::default()).unwrap();
    let mut stranger = TcpStream::connect(ep.listening).unwrap();
    stranger.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    stranger.write_all(&ep.key.to_le_bytes()).unwrap();
    (ep, region, stranger)
}

fn frames(kind: u64, payload: usize) -> Vec<u8> {
    let words = [kind, 0, payload as u64].map(u64::to_le_bytes);
    [words.concat(), vec![1; payload]].concat().repeat(256)
}

/// Who of this machine connects before the peer, with another key or with none, writes nothing.
#[test]
fn who_has_not_the_key_is_sent_away_and_the_peer_is_not() {
    let gpu = Gpu::open(Executor::Host(HostOptions::default())).unwrap();
    let region = gpu.alloc(4096).unwrap();
    let options = Options::default().timeout(Duration::from_secs(10));
    let ep = Tcp::new(&gpu, region.clone().into(), &options).unwrap();
    let wrong = [ep.key ^ 1, ep.key ^ 1 << 127, 0].map(u128::to_le_bytes);
    let mut strangers = Vec::new();
    for begin in [&[][..], &wrong[0], &wrong[1], &wrong[2], &ep.key.to_le_bytes()[..15]] {
        let mut stranger = TcpStream::connect(ep.listening).unwrap();
        // It may have been sent away by then.
        let _ = stranger.write_all(begin);
        if begin.len() == 16 {
            let _ = stranger.write_all(&frames(PUT, 4096)[..24 + 4096]);
        }
        strangers.push(stranger);
    }
    let mut peer = Tcp::new(&gpu, gpu.alloc(4096).unwrap().into(), &options).unwrap();
    peer.connect(ep.listening, ep.key).unwrap();
    let stream = gpu.stream().unwrap();
    let put = Put { from: Local(0), to: Remote(8), bytes: 8, signal: None };
    peer.put(&stream, put).unwrap();
    peer.quiet(&stream).unwrap();
    let mut all = [0; 4096];
    region.copy_out(0, &mut all).unwrap();
    assert_eq!(all, [0; 4096], "a stranger wrote");
    assert!(ep.failure().is_none(), "a stranger ended it");
    // They were sent away, and the one that said nothing in time too.
    for mut stranger in strangers {
        stranger.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let kind = match stranger.read(&mut [0]) {
            Ok(0) => continue,
            Ok(_) => panic!("it was answered"),
            Err(e) => e.kind(),
        };
        assert_eq!(kind, ErrorKind::ConnectionReset);
    }
}

/// However many connect before the peer.
#[test]
fn strangers_that_say_nothing_keep_no_peer_waiting() {
    let gpu = Gpu::open(Executor::Host(HostOptions::default())).unwrap();
    let options = Options::default().timeout(Duration::from_secs(10));
    let new = || Tcp::new(&gpu, gpu.alloc(4096).unwrap().into(), &options).unwrap();
    let (ep, mut peer) = (new(), new());
    let strangers: Vec<_> = (0..20).map(|_| TcpStream::connect(ep.listening).unwrap()).collect();
    let begin = Instant::now();
    peer.connect(ep.listening, ep.key).unwrap();
    let stream = gpu.stream().unwrap();
    peer.put(&stream, Put { from: Local(0), to: Remote(8), bytes: 8, signal: None }).unwrap();
    peer.quiet(&stream).unwrap();
    assert!(begin.elapsed() < SHOWS, "{:?} behind {} strangers", begin.elapsed(), strangers.len());
}

/// An endpoint goes at once, and its region is left alone, whatever the peer is doing.
#[test]
fn a_peer_keeps_no_endpoint_from_going() {
    // It takes no answers: the receiving thread has no room for the next.
    let (ep, region, mut stranger) = against_stranger();
    while stranger.write_all(&frames(FLUSH, 0)).is_ok() {}
    assert_gone(ep, &region);
    // It sends all the time: the receiving thread never waits.
    let (ep, region, mut stranger) = against_stranger();
    std::thread::scope(|s| {
        let until = Instant::now() + Duration::from_secs(5);
        s.spawn(
            move || {
                while Instant::now() < until && stranger.write_all(&frames(PUT, 4096)).is_ok() {}
            },
        );
        let mut first = [0];
        while first == [0] && Instant::now() < until {
            region.copy_out(0, &mut first).unwrap();
        }
        assert_gone(ep, &region);
    });
}

/// The receiving thread has ended: nobody else has the region any more.
fn assert_gone(ep: Tcp, region: &Arc<DeviceMem>) {
    drop(ep);
    assert_eq!(Arc::strong_count(region), 1);
}

#[test]
fn an_endpoint_that_cannot_be_made_leaves_no_thread() {
    let gpu = Gpu::open(Executor::Host(HostOptions::default())).unwrap();
    let region = gpu.alloc(4096).unwrap();
    let options = Options::default().host_numa(Some(usize::MAX));
    assert!(Tcp::new(&gpu, region.clone().into(), &options).is_err());
    assert_eq!(Arc::strong_count(&region), 1);
}

/// The bound is the answer's, not each part's.
#[test]
fn an_answer_in_parts_is_waited_for_once() {
    let (gpu, mut a, _b) = pair(None);
    a.timeout = Duration::from_millis(200);
    let strange = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    a.lock().sender = None;
    a.connect(strange.local_addr().unwrap(), 0).unwrap();
    let (mut peer, _) = strange.accept().unwrap();
    std::thread::scope(|s| {
        s.spawn(move || {
            for byte in 1u64.to_le_bytes() {
                std::thread::sleep(Duration::from_millis(100));
                let _ = peer.write_all(&[byte]); // its reader may have given up
            }
        });
        let ended = a.quiet(&gpu.stream().unwrap());
        assert!(matches!(ended, Err(Error::Tcp { .. })), "{ended:?}");
    });
}

/// The same of a put's piece, which a peer takes little by little.
#[test]
fn a_piece_that_is_taken_in_parts_is_waited_for_once() {
    let gpu = Gpu::open(Executor::Host(HostOptions::default())).unwrap();
    let options = Options::default().timeout(Duration::from_millis(400));
    let mut a = Tcp::new(&gpu, gpu.alloc(PIECE).unwrap().into(), &options).unwrap();
    let strange = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    // Little is on its way at once, so that every part that is taken lets some more go.
    socket2::SockRef::from(&strange).set_recv_buffer_size(4096).unwrap();
    a.connect(strange.local_addr().unwrap(), 0).unwrap();
    let (mut peer, _) = strange.accept().unwrap();
    let state = a.lock();
    socket2::SockRef::from(&state.sender.as_ref().unwrap().stream)
        .set_send_buffer_size(4096)
        .unwrap();
    drop(state);
    std::thread::scope(|s| {
        s.spawn(move || {
            let mut part = [0; 4096];
            while peer.read(&mut part).is_ok_and(|n| n > 0) {
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        let put = Put { from: Local(0), to: Remote(0), bytes: PIECE as u64, signal: None };
        let ended = a.put(&gpu.stream().unwrap(), put);
        assert!(matches!(ended, Err(Error::Tcp { .. })), "{ended:?}");
        drop(a); // and with it the connection, which the peer reads to its end
    });
}
