//! The two ends in two processes: each has a software NIC, and RoCEv2 packets go between them over loopback.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use bellpush::collective::{Bootstrap, Job};
use bellpush::gpu::Gpu;
use bellpush::nic::Nic;
use bellpush::nic::soft::link::UdpLink;
use bellpush::nic::soft::{SoftConfig, SoftNic};
use bellpush::transport::{Address, Endpoint, Memory, Options};

use crate::kernels::{BLOCKS, Consumer, KERNELS, PATH, Producer, dims, until_idle};

/// Where the receiver waits for the sender.
const MEETING: &str = "127.0.0.1:29411";
/// How long each waits for the other.
const COMES: Duration = Duration::from_secs(60);
const RECEIVER: u32 = 0;
const SENDER: u32 = 1;

/// One end, connected with that of the other process.
struct End {
    meeting: Bootstrap,
    endpoint: Endpoint,
}

impl End {
    fn connect(rank: u32, gpu: &Arc<Gpu>, region: Memory) -> Result<Self, Box<dyn Error>> {
        // 1. The processes meet. A secret of this user keeps others out.
        let job = Job::of_two(rank, MEETING, "custom_kernel", COMES, COMES)?;
        let mut meeting = Bootstrap::join(&job)?;

        // 2. A NIC, which here is software on a UDP port; and an endpoint, whose region the peer's puts write.
        let link = Box::new(UdpLink::open_free()?);
        let nic: Arc<dyn Nic> = SoftNic::open_on(SoftConfig::default(), link)?;
        let mut endpoint = Endpoint::new(gpu, &nic, PATH.parse()?, region, Options::default())?;

        // 3. Each tells the other its address, which is text, by the way that they met.
        let mine = serde_json::to_vec(&endpoint.address())?;
        let all = meeting.all_gather(&mine)?;
        let peer: Address = serde_json::from_slice(&all[1 - rank as usize])?;
        endpoint.connect(peer)?;
        Ok(Self { meeting, endpoint })
    }

    /// Runs to the end, says how it went, and hears how it went at the other side.
    fn leave(mut self, ended: Result<(), Box<dyn Error>>) -> Result<(), Box<dyn Error>> {
        if let Err(why) = ended {
            self.meeting.fail(&why.to_string());
            return Err(why);
        }
        self.meeting.all_gather(b"all is well")?;
        Ok(())
    }
}

/// Waits for the sender's pieces, with a kernel that adds up each as it arrives.
pub fn receive(gpu: &Arc<Gpu>) -> Result<String, Box<dyn Error>> {
    let consumer = Consumer::new(gpu)?;
    let end = End::connect(RECEIVER, gpu, consumer.arrived.clone())?;
    let ended = wait_and_sum(gpu, &consumer, &end.endpoint);
    end.leave(ended)?;
    Ok(format!("{BLOCKS} pieces arrived, summed and right on {}", gpu.describe()))
}

fn wait_and_sum(
    gpu: &Arc<Gpu>,
    consumer: &Consumer,
    endpoint: &Endpoint,
) -> Result<(), Box<dyn Error>> {
    let kernel = gpu.load(&KERNELS)?.kernel("wait_and_sum")?;
    let stream = gpu.stream()?;
    // SAFETY: the arguments name memory that lives until the stream was found idle, or the program ends.
    unsafe { stream.launch(&kernel, dims(), &consumer.args(endpoint)?)? };
    until_idle(&stream, COMES);
    consumer.check(endpoint)
}

/// Computes and sends the pieces, with a kernel.
pub fn send(gpu: &Arc<Gpu>) -> Result<String, Box<dyn Error>> {
    let producer = Producer::new(gpu)?;
    let end = End::connect(SENDER, gpu, producer.y.clone())?;
    let ended = saxpy_and_put(gpu, &producer, &end.endpoint);
    end.leave(ended)?;
    Ok(format!("{BLOCKS} pieces sent on {}", gpu.describe()))
}

fn saxpy_and_put(
    gpu: &Arc<Gpu>,
    producer: &Producer,
    endpoint: &Endpoint,
) -> Result<(), Box<dyn Error>> {
    let kernel = gpu.load(&KERNELS)?.kernel("saxpy_and_put")?;
    let stream = gpu.stream()?;
    // SAFETY: the arguments name memory that lives until the stream was found idle, or the program ends.
    unsafe { stream.launch(&kernel, dims(), &producer.args(endpoint)?)? };
    until_idle(&stream, COMES);
    producer.check(endpoint)
}
