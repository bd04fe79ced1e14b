//! `bellpush serve --metrics`: counters of the NIC while it serves.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A server that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill(); // one that has ended
        let _ = self.0.wait();
    }
}

fn asked(port: u16) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn counters_are_served_while_a_server_waits() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bellpush"));
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    command.args(["serve", "verbs", "--metrics=0", "--port", &port.to_string()]);
    command.stdout(Stdio::null()).stderr(Stdio::piped()).stdin(Stdio::null());
    let mut server = Running(command.spawn().unwrap());
    let mut lines = BufReader::new(server.0.stderr.take().unwrap()).lines();
    let at = lines.find_map(|line| {
        let line = line.unwrap();
        line.strip_prefix("bellpush: metrics at http://127.0.0.1:").map(str::to_owned)
    });
    let port = at.expect("it says where").trim_end_matches("/metrics").parse().unwrap();
    // The first look may not have been.
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        let text = asked(port);
        assert!(text.starts_with("HTTP/1.0 200 OK\r\n"), "{text}");
        let named = "device=\"mlx5_0\"} ";
        if text.contains("# TYPE bellpush_doorbells_total counter\n") && text.contains(named) {
            break;
        }
        assert!(Instant::now() < until, "{text}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
