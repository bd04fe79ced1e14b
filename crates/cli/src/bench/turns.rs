//! Round trips: a message to the peer, and one back once its signal is seen.

use std::time::{Duration, Instant};

use bellpush::abi::bench::{AutoTurnsArgs, Turns, TurnsArgs};
use bellpush::gpu::{Dims, Module};
use bellpush::transport::{Endpoint, Local, Path, Put, Remote, Signal};

use super::sender::Sender;
use crate::launch::launch;

impl Sender<'_> {
    /// Takes `n` turns with the peer through the first endpoint, with the first message of the source; the times of
    /// the round trips in nanoseconds. The peer does the same, and one of the two begins. Both words are 0 before.
    ///
    /// # Errors
    /// How many turns were taken, and what ended them.
    pub fn take_turns(&self, size: usize, n: u32, begins: bool) -> Result<Vec<u64>, (u32, String)> {
        let endpoint = &self.endpoints[0];
        let order = self.bed.nic.order();
        let kernel = self.path.kernel_name(endpoint.options().line, order, endpoint.reach());
        match kernel {
            Some(name) => self.turns_of_kernels(endpoint, name, size, n, begins),
            None => self.turns_of_hosts(endpoint, size, n, begins),
        }
    }

    fn turns_of_kernels(
        &self,
        endpoint: &Endpoint,
        name: &str,
        size: usize,
        n: u32,
        begins: bool,
    ) -> Result<Vec<u64>, (u32, String)> {
        let fail = |e: &dyn std::fmt::Display| (0, e.to_string());
        let bed = self.bed;
        let kernel = bed.gpu.load(&Module::builtin()).map_err(|e| fail(&e))?;
        let kernel = kernel.kernel(&format!("bp_turns_{name}")).map_err(|e| fail(&e))?;
        let word = bed.word as u64;
        let turns = Turns {
            messages: n,
            begins: begins.into(),
            src: bed.src.addr(),
            bytes: size as u64,
            remote_offset: 0,
            signal_offset: word,
            word: bed.dst.addr() + word,
            ticks: bed.ticks.addr(),
            result: bed.result.addr(),
        };
        let (stream, dims) = (&bed.stream, Dims::new(1, self.threads(size)));
        let launched = if self.path == Path::AUTO {
            let ep = endpoint.auto_device().map_err(|e| fail(&e))?;
            launch(stream, &kernel, dims, &AutoTurnsArgs { ep, turns })
        } else {
            let ep = endpoint.device().map_err(|e| fail(&e))?;
            launch(stream, &kernel, dims, &TurnsArgs { ep, turns })
        };
        launched.map_err(|e| fail(&e))?;
        stream.synchronize(self.bound()).map_err(|e| fail(&e))?;
        let result = self.result()?;
        self.ticks(n as usize, &result).map_err(|e| fail(&e))
    }

    fn turns_of_hosts(
        &self,
        endpoint: &Endpoint,
        size: usize,
        n: u32,
        begins: bool,
    ) -> Result<Vec<u64>, (u32, String)> {
        let stream = &self.bed.stream;
        let signal = Some(Signal { word: Remote(self.bed.word as u64), add: 1 });
        let put = Put { from: Local(0), to: Remote(0), bytes: size as u64, signal };
        let mut times = Vec::with_capacity(n as usize);
        for turn in 0..n {
            let begun = Instant::now();
            let seen = || self.sees(u64::from(turn) + 1);
            let put = || endpoint.put(stream, put).map_err(|e| e.to_string());
            let done =
                if begins { put().and_then(|()| seen()) } else { seen().and_then(|()| put()) };
            done.map_err(|why| (turn, why))?;
            times.push(begun.elapsed().as_nanos() as u64);
        }
        endpoint.quiet(stream).map_err(|e| (n, e.to_string()))?;
        Ok(times)
    }

    /// Waits until the word has come to `value`.
    fn sees(&self, value: u64) -> Result<(), String> {
        let (bed, begun) = (self.bed, Instant::now());
        loop {
            let mut word = [0; 8];
            bed.dst.read(bed.word, &mut word).map_err(|e| e.to_string())?;
            if u64::from_ne_bytes(word) >= value {
                return Ok(());
            }
            if begun.elapsed() > bed.timeout.max(Duration::from_millis(1)) {
                return Err(format!("message {value} of the peer did not come"));
            }
            std::thread::yield_now();
        }
    }
}
