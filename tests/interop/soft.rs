//! Our side: `bellpush serve` on the host's end of the tap.

use std::io::{BufRead, BufReader, Read};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::failure::Failure;

const START_TIMEOUT: Duration = Duration::from_secs(20);

/// A running `bellpush serve`; it is killed when this is dropped.
pub struct Served {
    line: String,
    child: Child,
    output: mpsc::Receiver<String>,
    errors: ChildStderr,
    port: u16,
}

impl Served {
    /// Starts the server of a program on an address and waits until it listens.
    pub fn start(
        program: &str,
        address: IpAddr,
        port: u16,
        arguments: &[&str],
    ) -> Result<Self, Failure> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bellpush"));
        command.args(["serve", program, "--address", &address.to_string()]);
        command.args(["--port", &port.to_string()]).args(arguments);
        let line = format!("bellpush serve {program} --address {address} {}", arguments.join(" "));
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let output = lines(child.stdout.take().expect("it is piped"));
        let errors = child.stderr.take().expect("it is piped");
        let mut served = Self { line, child, output, errors, port };
        match served.output.recv_timeout(START_TIMEOUT) {
            Ok(ready) if ready.starts_with("ready") => Ok(served),
            Ok(other) => Err(served.failed(&other)),
            Err(_) => Err(served.failed("it does not say that it is ready")),
        }
    }

    /// Where it listens.
    pub fn at(&self) -> SocketAddr {
        SocketAddr::new(Ipv4Addr::LOCALHOST.into(), self.port)
    }

    /// Waits for what it says of a client that it served.
    pub fn line(&mut self, timeout: Duration) -> Result<String, Failure> {
        self.output.recv_timeout(timeout).map_err(|_| self.failed("says nothing of its client"))
    }

    /// Waits for its end and returns its last line; any other status than 0 is a failure.
    pub fn finish(mut self, timeout: Duration) -> Result<String, Failure> {
        let end = Instant::now() + timeout;
        let mut last = String::new();
        // The channel ends when the process closes its output.
        while let Ok(line) = self.output.recv_timeout(end.saturating_duration_since(Instant::now()))
        {
            last = line;
        }
        while self.child.try_wait()?.is_none() {
            if Instant::now() > end {
                return Err(self.failed("no end in time"));
            }
            thread::sleep(Duration::from_millis(10));
        }
        match self.child.wait()? {
            status if status.success() => Ok(last),
            status => Err(self.failed(&status.to_string())),
        }
    }

    /// A failure, and what was printed of errors until now; the server is killed.
    pub fn failed(&mut self, why: &str) -> Failure {
        let _ = self.child.kill(); // so that its errors end
        let mut output = String::new();
        let _ = self.errors.read_to_string(&mut output); // as far as it is text
        Failure::Command { line: self.line.clone(), why: why.into(), output }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill(); // gone already is as good
        let _ = self.child.wait();
    }
}

fn lines(output: ChildStdout) -> mpsc::Receiver<String> {
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        let lines = BufReader::new(output).lines().map_while(Result::ok);
        lines.for_each(|line| drop(send.send(line)));
    });
    receive
}
