//! Round trips: a message to the peer, and one back once its signal is seen.

use std::time::{Duration, Instant};

use bellpush::abi::bench::{AutoTurnsArgs, Turns, TurnsArgs};
use bellpush::gpu::{Dims, Kernel};
use bellpush::transport::{Local, Path, Put, Remote, Signal};

use super::sender::{Sender, stride};
use crate::launch::launch;

/// Round trips of a call that are not counted: until both sides run.
pub const WARM_UP: u32 = 2;

impl Sender<'_> {
    /// Takes `n` turns with the peer through the first endpoint, with the first messages of the source, which
    /// take turns themselves where there are fewer; the times of the round trips in nanoseconds. The peer does the same,
    /// and one of the two begins. Both words are 0 before.
    ///
    /// # Errors
    /// What ended the turns.
    pub fn take_turns(
        &self,
        size: usize,
        n: u32,
        places: u32,
        begins: bool,
    ) -> Result<Vec<u64>, String> {
        let mut times = match &self.turns {
            Some(kernel) => self.turns_of_kernels(kernel, size, (n, places), begins)?,
            None => self.turns_of_hosts(size, (n, places), begins)?,
        };
        times.drain(..times.len().min(WARM_UP as usize));
        Ok(times)
    }

    fn turns_of_kernels(
        &self,
        kernel: &Kernel,
        size: usize,
        (n, places): (u32, u32),
        begins: bool,
    ) -> Result<Vec<u64>, String> {
        let fail = |e: &dyn std::fmt::Display| e.to_string();
        let (bed, endpoint, word) = (self.bed, &self.endpoints[0], self.bed.word as u64);
        let turns = Turns {
            messages: n,
            begins: begins.into(),
            src: bed.src.addr(),
            bytes: size as u64,
            stride: stride(size) as u64,
            places: places.into(),
            signal_offset: word,
            word: bed.dst.addr() + word,
            ticks: bed.ticks.addr(),
            result: bed.result.addr(),
        };
        let (stream, dims) = (&bed.stream, Dims::new(1, self.threads(size)));
        let launched = if self.path == Path::AUTO {
            let ep = endpoint.auto_device().map_err(|e| fail(&e))?;
            launch(stream, kernel, dims, &AutoTurnsArgs { ep, turns })
        } else {
            let ep = endpoint.device().map_err(|e| fail(&e))?;
            launch(stream, kernel, dims, &TurnsArgs { ep, turns })
        };
        launched.map_err(|e| fail(&e))?;
        stream.synchronize(self.bound()).map_err(|e| fail(&e))?;
        let result = self.result().map_err(|(_, why)| why)?;
        self.ticks(n as usize, &result).map_err(|e| fail(&e))
    }

    fn turns_of_hosts(
        &self,
        size: usize,
        (n, places): (u32, u32),
        begins: bool,
    ) -> Result<Vec<u64>, String> {
        let (stream, endpoint) = (&self.bed.stream, &self.endpoints[0]);
        let until = Instant::now() + self.bound();
        let signal = Some(Signal { word: Remote(self.bed.word as u64), add: 1 });
        let mut times = Vec::with_capacity(n as usize);
        for turn in 0..u64::from(n) {
            let at = turn % u64::from(places) * stride(size) as u64;
            let put = Put { from: Local(at), to: Remote(at), bytes: size as u64, signal };
            let begun = Instant::now();
            let put = || endpoint.put(stream, put).map_err(|e| e.to_string());
            let sees = || self.sees(turn + 1, until);
            if begins {
                put().and_then(|()| sees())?;
            } else {
                sees().and_then(|()| put())?;
            }
            times.push(begun.elapsed().as_nanos() as u64);
        }
        endpoint.quiet(stream).map_err(|e| e.to_string())?;
        Ok(times)
    }

    /// Waits until the word has come to `value`.
    fn sees(&self, value: u64, until: Instant) -> Result<(), String> {
        let bed = self.bed;
        let until = until.min(Instant::now() + bed.timeout.max(Duration::from_millis(1)));
        loop {
            let mut word = [0; 8];
            bed.dst.read(bed.word, &mut word).map_err(|e| e.to_string())?;
            if u64::from_ne_bytes(word) >= value {
                return Ok(());
            }
            if Instant::now() > until {
                return Err(format!("message {value} of the other side did not come"));
            }
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, Sender as Tell, channel};
    use std::thread;

    use bellpush::nic::Nic;
    use bellpush::transport::{Address, Endpoint, Memory};

    use super::*;
    use crate::bench::test_bed::TestBed;
    use crate::bench::{BenchArgs, ask};
    use crate::plan::BenchPlan;

    const LATE: Duration = Duration::from_millis(300);

    fn bed() -> (BenchPlan, TestBed) {
        let (gpu, link) = (Some("host".into()), Some("shm".parse().unwrap()));
        let args = BenchArgs { gpu, link, ..BenchArgs::default_of_the_command_line() };
        let plan = BenchPlan::try_from(&args).unwrap();
        let bed = TestBed::new(&plan).unwrap();
        (plan, bed)
    }

    /// One side's turns, which it begins when it has waited.
    fn side(
        nic: Arc<dyn Nic>,
        path: Path,
        (tell, hear): (Tell<[Address; 2]>, Receiver<[Address; 2]>),
        (begins, wait): (bool, Duration),
    ) -> Vec<u64> {
        let (plan, mut bed) = bed();
        bed.nic = nic;
        let ask = ask(&plan, &bed, path);
        let new = |local: &Memory| {
            Endpoint::new(&bed.gpu, &bed.nic, path, local.clone(), ask.options.clone()).unwrap()
        };
        let (mut sends, mut receives) = (new(&bed.src), new(&bed.dst));
        let own = [sends.address(), receives.address()];
        tell.send(own).unwrap();
        let [their_sender, their_receiver] = hear.recv().unwrap();
        sends.connect(their_receiver).unwrap();
        receives.connect(their_sender).unwrap();
        bed.dst.write(bed.word, &[0; 8]).unwrap();
        tell.send(own).unwrap();
        hear.recv().unwrap();
        thread::sleep(wait);
        let sender = Sender::new(&bed, path, &ask, vec![sends]).unwrap();
        let times = sender.take_turns(64, 8, 3, begins).unwrap();
        tell.send(own).unwrap();
        hear.recv().unwrap(); // the other side may still read
        times
    }

    #[test]
    fn round_trips_do_not_count_before_both_sides_run() {
        for path in ["push/kernel", "pull/cpu"] {
            let path: Path = path.parse().unwrap();
            let (_, both) = bed();
            let ((to_b, from_a), (to_a, from_b)) = (channel(), channel());
            let (a, b) = (both.nic.clone(), both.peer.clone());
            let begins =
                thread::spawn(move || side(a, path, (to_b, from_b), (true, Duration::ZERO)));
            let answers = thread::spawn(move || side(b, path, (to_a, from_a), (false, LATE)));
            let (times, answers) = (begins.join().unwrap(), answers.join().unwrap());
            assert_eq!((times.len(), answers.len()), (6, 6), "two of each are left out");
            assert!(Duration::from_nanos(times[0]) < LATE, "{path}: {times:?}");
        }
    }
}
