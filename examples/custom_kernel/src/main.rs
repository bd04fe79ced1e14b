//! A program with kernels of its own (`kernel.cu`) that call bellpush's device verbs: one kernel
//! computes and sends, piece by piece; another, at the other end, adds up each piece as it arrives.
//!
//! `cargo run -p custom_kernel [host]` has both ends in one process, on the first CUDA GPU, or on the host executor
//! where there is none or `host` is given. `custom_kernel receive [host]` and `custom_kernel send [host]` are the two
//! ends in two processes of one machine. Exit status 1 when a result is wrong.

mod kernels;
mod two_processes;

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use bellpush::gpu::Gpu;
use bellpush::nic::Nic;
use bellpush::nic::soft::{InProcess, SoftConfig, SoftNic};
use bellpush::transport::{Endpoint, Options};
use kernels::{BLOCKS, Consumer, KERNELS, PATH, Producer, dims, open, until_idle};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let told = match words[..] {
        [] => open(false).and_then(|gpu| run(&gpu)),
        ["host"] => open(true).and_then(|gpu| run(&gpu)),
        ["receive"] => open(false).and_then(|gpu| two_processes::receive(&gpu)),
        ["receive", "host"] => open(true).and_then(|gpu| two_processes::receive(&gpu)),
        ["send"] => open(false).and_then(|gpu| two_processes::send(&gpu)),
        ["send", "host"] => open(true).and_then(|gpu| two_processes::send(&gpu)),
        _ => {
            eprintln!("custom_kernel: it takes [receive|send] [host]");
            return ExitCode::from(2);
        }
    };
    match told {
        Ok(told) => {
            println!("{told}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("custom_kernel: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(gpu: &Arc<Gpu>) -> Result<String, Box<dyn Error>> {
    // 1. Memory, before any kernel runs.
    let producer = Producer::new(gpu)?;
    let consumer = Consumer::new(gpu)?;

    // 2. Two endpoints. The path is the one that kernel.cu instantiates the verbs for.
    let nic: Arc<dyn Nic> = SoftNic::open(SoftConfig::new(&InProcess::new()))?;
    let regions = (producer.y.clone(), consumer.arrived.clone());
    let (sender, receiver) = Endpoint::pair(gpu, &nic, PATH.parse()?, regions, Options::default())?;

    // 3. Both kernels at once, on streams of their own: the consumer waits for the producer.
    let module = gpu.load(&KERNELS)?;
    let (put, sum) = (module.kernel("saxpy_and_put")?, module.kernel("wait_and_sum")?);
    let (here, there) = (gpu.stream()?, gpu.stream()?);
    let (produce, consume) = (producer.args(&sender)?, consumer.args(&receiver)?);
    // SAFETY: the arguments name the memory above, which lives until both streams were found idle; a kernel
    // that does not end in time ends the program.
    unsafe {
        there.launch(&sum, dims(), &consume)?;
        here.launch(&put, dims(), &produce)?;
    }
    until_idle(&here, Duration::from_secs(30));
    until_idle(&there, Duration::from_secs(30));

    // 4. What the verbs returned, and the numbers.
    producer.check(&sender)?;
    consumer.check(&receiver)?;
    let credits = sender.max_credits_in_use()?;
    Ok(format!(
        "{BLOCKS} pieces sent, summed and right on {}; at most {credits} credits in use",
        gpu.describe()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_executor_gets_it_right() {
        run(&open(true).unwrap()).unwrap();
    }
}
