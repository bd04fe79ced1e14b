//! What a rank gives back at its end, and in which order.

use std::sync::{Arc, Mutex};

use crate::world::{path, small};
use bellpush::collective::{Algorithm, Communicator};
use bellpush::gpu::{Executor, Gpu, HostOptions};
use bellpush::mem::{Dma, View};
use bellpush::nic::soft::{InProcess, SoftConfig, SoftNic};
use bellpush::nic::{Access, Dm, Mr, Nic, NicError, Order, QpAttr, QueueMemory, QueuePair};
use bellpush::transport::{Options, Peers};
use bellpush::wire::{Iova, Qpn};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Create,
    Destroy(u32),
    Deregister,
}

/// A software NIC that notes what it is asked.
struct Watched(Arc<dyn Nic>, Mutex<Vec<Call>>);

impl Watched {
    fn new(link: &Arc<InProcess>) -> Arc<Self> {
        Arc::new(Self(SoftNic::open(SoftConfig::new(link)).unwrap(), Mutex::default()))
    }

    fn note(&self, call: Call) {
        self.1.lock().unwrap().push(call);
    }

    /// Every queue pair was destroyed once, and no region was given back before the last of them.
    fn ended_in_order(&self) {
        let calls = self.1.lock().unwrap();
        let count = |f: fn(&Call) -> bool| calls.iter().filter(|call| f(call)).count();
        let made = count(|call| *call == Call::Create);
        let mut gone: Vec<_> =
            calls.iter().filter(|call| matches!(call, Call::Destroy(_))).collect();
        assert!(made > 1 && gone.len() == made, "{calls:?}");
        gone.sort_unstable_by_key(|call| match call {
            Call::Destroy(number) => *number,
            _ => 0,
        });
        gone.dedup();
        assert_eq!(gone.len(), made, "one twice: {calls:?}");
        let last = calls.iter().rposition(|call| matches!(call, Call::Destroy(_))).unwrap();
        let first = calls.iter().position(|call| *call == Call::Deregister).unwrap();
        assert!(last < first, "memory before a queue pair: {calls:?}");
    }
}

impl Nic for Watched {
    fn name(&self) -> &str {
        self.0.name()
    }
    fn is_software(&self) -> bool {
        true
    }
    fn order(&self) -> Order {
        self.0.order()
    }
    fn trouble(&self) -> Option<NicError> {
        self.0.trouble()
    }
    fn register(&self, mem: Arc<dyn Dma>, iova: Iova, access: Access) -> Result<Mr, NicError> {
        self.0.register(mem, iova, access)
    }
    fn deregister(&self, mr: Mr) -> Result<(), NicError> {
        self.note(Call::Deregister);
        self.0.deregister(mr)
    }
    fn alloc_dm(&self, bytes: usize) -> Result<Option<Dm>, NicError> {
        self.0.alloc_dm(bytes)
    }
    fn alloc_queues(&self, bytes: usize) -> Result<Option<View>, NicError> {
        self.0.alloc_queues(bytes)
    }
    fn queue_bytes(&self, attr: &QpAttr) -> usize {
        self.0.queue_bytes(attr)
    }
    fn create_qp(
        &self,
        attr: &QpAttr,
        memory: QueueMemory,
    ) -> Result<Arc<dyn QueuePair>, NicError> {
        self.note(Call::Create);
        self.0.create_qp(attr, memory)
    }
    fn destroy_qp(&self, qpn: Qpn) -> Result<(), NicError> {
        self.note(Call::Destroy(qpn.0));
        self.0.destroy_qp(qpn)
    }
}

/// An engine on a GPU is launched as long as it has a queue pair, and each call that frees a GPU's memory waits for it.
#[test]
fn a_communicator_ends_all_queue_pairs_before_it_gives_memory_back() {
    for name in ["push/inband", "pull/kernel"] {
        let gpu = Gpu::open(Executor::Host(HostOptions::default())).unwrap();
        let link = InProcess::new();
        let nics: Vec<_> = (0..3).map(|_| Watched::new(&link)).collect();
        let places: Vec<_> =
            nics.iter().map(|nic| (gpu.clone(), nic.clone() as Arc<dyn Nic>)).collect();
        let options = small(Algorithm::Ring).path(path(name)).channels(2);
        drop(Communicator::threads(&places, &options).unwrap());
        nics.iter().for_each(|nic| nic.ended_in_order());
    }
}

#[test]
fn so_does_a_table_of_peers() {
    let gpu = Gpu::open(Executor::Host(HostOptions::default())).unwrap();
    let link = InProcess::new();
    let nic = Watched::new(&link);
    let nics = [nic.clone() as Arc<dyn Nic>];
    let region = gpu.alloc(4096).unwrap().into();
    let options = Options::default();
    drop(Peers::new(&gpu, &nics, (0, 3), path("push/kernel"), region, &options).unwrap());
    nic.ended_in_order();
}
