//! Counters of running devices for Prometheus: a thread that takes connections, and one for each, up to [`MOST_AT_ONCE`].

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use bellpush::nic::soft::trace::Tracing;
use bellpush_cli::trace::stats;
use nix::sys::signal::{SigSet, SigmaskHow};

use crate::cli::CliError;

/// Longest request, and how long it may take to come.
const MOST_BYTES: usize = 4096;
const PATIENCE: Duration = Duration::from_secs(2);
/// Connections that are answered at once. What comes while so many are open is closed; a silent one is, after
/// [`PATIENCE`].
const MOST_AT_ONCE: usize = 32;

/// Answers on a port of the loopback interface for as long as the process lives.
pub fn serve(port: u16, tracing: &Arc<Tracing>) -> Result<(), CliError> {
    let refused = |e: io::Error| {
        CliError::new(
            format!("--metrics: port {port} of 127.0.0.1: {e}"),
            "give another port, or 0",
        )
    };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map_err(refused)?;
    let at = listener.local_addr().map_err(refused)?;
    eprintln!("bellpush: metrics at http://{at}/metrics");
    let tracing = tracing.clone();
    let answer = move || answer_all(&listener, &tracing);
    // Signals are for the thread that waits for the program: this one begins, and stays, without any.
    let before =
        SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK).map_err(|e| refused(e.into()))?;
    let spawned = thread::Builder::new().name("bellpush-metrics".into()).spawn(answer);
    before.thread_set_mask().map_err(|e| refused(e.into()))?;
    spawned.map_err(refused)?;
    Ok(())
}

/// Answers for as long as the process lives.
fn answer_all(listener: &TcpListener, tracing: &Arc<Tracing>) {
    let open = Arc::new(());
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            thread::sleep(Duration::from_millis(100)); // no descriptors: perhaps soon
            continue;
        };
        let (own, own_tracing) = (open.clone(), tracing.clone());
        let answer = move || {
            let _own = own;
            let _ = answer(stream, &own_tracing); // who asked may have gone
        };
        let is_free = Arc::strong_count(&open) <= MOST_AT_ONCE + 1;
        // Without another thread the connection is closed: who asks again is served when others have ended.
        if is_free {
            let _ = thread::Builder::new().name("bellpush-metrics".into()).spawn(answer);
        }
    }
}

fn answer(mut stream: TcpStream, tracing: &Tracing) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let request = request(&mut stream)?;
    let (status, body) = match status(&request) {
        200 => ("200 OK", stats::prometheus(&tracing.devices(false), tracing.refused())),
        403 => ("403 Forbidden", "ask for 127.0.0.1 or localhost\n".into()),
        404 => ("404 Not Found", "see /metrics\n".into()),
        405 => ("405 Method Not Allowed", "GET\n".into()),
        _ => ("400 Bad Request", "an HTTP request of up to 4 KiB\n".into()),
    };
    let (kind, bytes) = ("text/plain; version=0.0.4", body.len());
    write!(
        stream,
        "HTTP/1.0 {status}\r\nContent-Type: {kind}\r\nContent-Length: {bytes}\r\nConnection: close\r\n\r\n{body}"
    )
}

/// A request's bytes up to the empty line; fewer where that does not come in time or in 4 KiB.
fn request(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let (mut bytes, end) = (Vec::new(), Instant::now() + PATIENCE);
    let mut part = [0; 512];
    while bytes.len() < MOST_BYTES && !bytes.windows(4).any(|four| four == b"\r\n\r\n") {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        stream.set_read_timeout(Some(left))?;
        let room = part.len().min(MOST_BYTES - bytes.len());
        match stream.read(&mut part[..room]) {
            Ok(0) => break,
            Ok(n) => bytes.extend_from_slice(&part[..n]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                break;
            }
            Err(e) => return Err(e),
        }
    }
    Ok(bytes)
}

/// Whether a request is for this machine's loopback interface by name: a page of another name that resolves to it
/// reads nothing.
fn is_for_here(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request).to_ascii_lowercase();
    let mut hosts = text.split("\r\n").skip(1).filter_map(|line| line.strip_prefix("host:"));
    hosts.all(|host| {
        let host = host.trim();
        let name = host.rsplit_once(':').map_or(host, |(name, _port)| name);
        matches!(name, "127.0.0.1" | "localhost")
    })
}

/// What a request is answered with.
fn status(request: &[u8]) -> u16 {
    let whole = request.windows(4).any(|four| four == b"\r\n\r\n");
    let line = request.split(|&byte| byte == b'\r').next().unwrap_or_default();
    let words: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
    match words[..] {
        [method, path, version] if whole && version.starts_with(b"HTTP/1.") => match (method, path)
        {
            _ if !is_for_here(request) => 403,
            // What a scrape configuration adds as parameters changes nothing.
            (b"GET", path) if path.split(|&byte| byte == b'?').next() == Some(b"/metrics") => 200,
            (b"GET", _) => 404,
            _ => 405,
        },
        _ => 400,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever connects and says nothing keeps nobody from an answer.
    #[test]
    fn silent_connections_delay_no_answer() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let at = listener.local_addr().unwrap();
        let tracing = Tracing::new(false, true).unwrap();
        thread::spawn(move || answer_all(&listener, &tracing));
        let silent: Vec<_> = (0..5).map(|_| TcpStream::connect(at).unwrap()).collect();
        let begin = Instant::now();
        let mut asking = TcpStream::connect(at).unwrap();
        asking.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut answer = String::new();
        asking.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.0 200"), "{answer}");
        assert!(begin.elapsed() < PATIENCE, "{:?}", begin.elapsed());
        // So many may be silent, and no more.
        let more: Vec<_> = (0..MOST_AT_ONCE).map(|_| TcpStream::connect(at).unwrap()).collect();
        let mut last: &TcpStream = more.last().unwrap();
        last.set_read_timeout(Some(PATIENCE / 2)).unwrap();
        let closed = last.read(&mut [0; 1]);
        assert!(
            matches!(closed, Ok(0))
                || closed.is_err_and(|e| e.kind() == io::ErrorKind::ConnectionReset)
        );
        drop(silent);
    }

    #[test]
    fn only_whole_requests_for_the_metrics_are_answered() {
        for (request, is) in [
            (&b"GET /metrics HTTP/1.1\r\nHost: localhost:9464\r\n\r\n"[..], 200),
            (b"GET /metrics HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n", 200),
            (b"GET /metrics HTTP/1.1\r\nHost: example.org:9464\r\n\r\n", 403),
            (b"GET /metrics HTTP/1.0\r\n\r\n", 200),
            (b"GET /metrics?module=a HTTP/1.1\r\nHost: localhost\r\n\r\n", 200),
            (b"GET /metrics2?a HTTP/1.1\r\n\r\n", 404),
            (b"GET / HTTP/1.1\r\n\r\n", 404),
            (b"POST /metrics HTTP/1.1\r\n\r\n", 405),
            (b"GET /metrics HTTP/1.1\r\n", 400),
            (b"GET /metrics\r\n\r\n", 400),
            (b"", 400),
            (&[0xff; MOST_BYTES], 400),
        ] {
            assert_eq!(status(request), is, "{request:?}");
        }
    }
}
